"""One GPU that is watched: which of its values can be read, its links, and whether it is still there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pynvml as nvml

from .driver import AWAY, LOST, NEVER, Gpu, error_words
from .fields import FIELDS, Field, read_fields
from .gathering import GpuCollection, GpuResponse, labels_of
from .gpu_readings import READINGS, GpuReading
from .links import LinkChange, Links
from .values import Value

_NO_SCOPE = 0


class WatchedNvidia:
    """``WatchedGpu``. What a GPU or driver never gives is asked for once."""

    def __init__(self, gpu: Gpu, lost: str = "") -> None:
        self.gpu = gpu
        self.lost = lost
        self._links: Links | None = None
        self._readings: list[GpuReading] = list(READINGS)
        self._fields: list[Field] = list(FIELDS)

    def look(self, slow: bool, out: GpuCollection) -> GpuResponse:
        """Reads the GPU's values and links into ``out``, and tells links that changed; how that ended is the result.

        slow: also the values that change by an administrator's hand only. A lost GPU is told by ``lose``.
        """
        points = len(out.points)
        try:
            self._read_fields(slow, out)
            for reading in list(self._readings):
                if slow or not reading.slow:
                    out.add(labels_of(self.gpu), self._read(reading, out))
            if self._links is None:
                self._links = Links(self.gpu.handle)
            values, changes = self._links.look()
            out.add(labels_of(self.gpu), values)
            self._report_links(changes, out)
        except nvml.NVMLError as error:
            if error.value in LOST:
                self.lose(LOST[error.value], out)
                return GpuResponse.LOST
            if error.value in AWAY:
                return GpuResponse.AWAY
            out.problem(f"GPU {self.gpu.index}: not all values: {error}")
        return GpuResponse.ANSWERED if len(out.points) > points else GpuResponse.SILENT

    def find_out_if_lost(self, out: GpuCollection) -> None:
        """Asks the GPU itself by one call; if it is lost, that is told in ``out`` by ``lose``."""
        try:
            nvml.nvmlDeviceGetPerformanceState(self.gpu.handle)
        except nvml.NVMLError as error:
            if error.value in LOST:
                self.lose(LOST[error.value], out)

    def lose(self, why: str, out: GpuCollection) -> None:
        """Notes in ``lost`` why the GPU no longer answers, and adds a device event ``gpu_lost`` with it to ``out``."""
        self.lost = why
        out.tell_device("gpu_lost", self.gpu, {"why": why})

    def _read(self, reading: GpuReading, out: GpuCollection) -> Sequence[Value]:
        """Raises NVMLError where the GPU or the driver is gone; another refusal costs this reading only."""
        try:
            return reading.read(self.gpu.handle)
        except AttributeError:
            out.lack(reading.what, "nvidia-ml-py has no call for it, a newer one has")
        except nvml.NVMLError as error:
            if error.value in LOST or error.value in AWAY:
                raise
            if error.value not in NEVER:
                out.problem(f"GPU: no {reading.what}: {error}")
                return ()
            out.lack(reading.what, str(error))
        self._readings.remove(reading)
        return ()

    def _read_fields(self, slow: bool, out: GpuCollection) -> None:
        wanted = [item for item in self._fields if slow or not item.slow]
        labels = labels_of(self.gpu)
        answers = read_fields(self.gpu.handle, [(item.number, _NO_SCOPE) for item in wanted])
        for item, answer in zip(wanted, answers, strict=True):
            if answer.status == nvml.NVML_SUCCESS:
                out.add(labels, (Value(item.metric, answer.number * item.scale, item.labels),))
            elif answer.status in NEVER:
                self._fields.remove(item)
                out.lack(item.what, error_words(answer.status))
        have = {item.number for item in self._fields}
        self._readings = [reading for reading in self._readings if reading.unless_field not in have]

    def _report_links(self, changes: Sequence[LinkChange], out: GpuCollection) -> None:
        for change in changes:
            where: Mapping[str, Any] = {
                "link": change.link,
                "remote": change.remote,
                "remote_pci_bus": change.remote_pci_bus,
            }
            out.tell_device("nvlink_up" if change.up else "nvlink_down", self.gpu, where)
