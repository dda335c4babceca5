"""One of AMD's GPUs that is watched: which of its values can be read, its links, and whether it is still there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.kernel_files import read_bytes
from .amd_errors import ERROR_READINGS, BlockErrors, XgmiLinks
from .amd_readings import READINGS, AmdReading
from .amd_status import AWAY, NEVER, status_of, words_of
from .driver import Gpu
from .gathering import GpuCollection, GpuResponse, labels_of
from .values import Value

_LINKS = "XGMI links"
#: What the PCI bus answers for a device that does not.
_NOBODY = b"\xff\xff\xff\xff"


class _DriverAway(Exception):
    """The driver is gone: nothing more need be asked."""


class WatchedAmd:
    """``WatchedGpu``. What a GPU or release never gives is asked for once. sys: where sysfs is mounted."""

    def __init__(self, smi: Any, gpu: Gpu, sys: Path, lost: str = "") -> None:
        self.gpu = gpu
        self.lost = lost
        self._smi = smi
        self._config = sys / "bus/pci/devices" / gpu.pci_bus / "config"
        #: A part of a GPU (a compute partition) has a name of its own, and none on the bus.
        self._is_on_bus = read_bytes(self._config, len(_NOBODY)) not in (None, _NOBODY)
        self._links: XgmiLinks | None = XgmiLinks()
        self._readings: list[AmdReading] = [
            *READINGS,
            AmdReading("errors by block", BlockErrors().read),
            *ERROR_READINGS,
        ]

    def look(self, slow: bool, out: GpuCollection) -> GpuResponse:
        """Reads the GPU's values and links into ``out``, and tells links that changed; how that ended is the result.

        slow: also the values that change by an administrator's hand only. A lost GPU is told by ``lose``.
        """
        points = len(out.points)
        self.find_out_if_lost(out)
        if self.lost:
            return GpuResponse.LOST
        try:
            for reading in list(self._readings):
                if slow or not reading.slow:
                    out.add(labels_of(self.gpu), self._read(reading, out))
            self._read_links(out)
        except _DriverAway:
            return GpuResponse.AWAY
        return GpuResponse.ANSWERED if len(out.points) > points else GpuResponse.SILENT

    def find_out_if_lost(self, out: GpuCollection) -> None:
        """Asks the PCI bus by one read; if nobody answers there, that is told in ``out`` by ``lose``.

        The library cannot say it: of a GPU that is gone it finds no files, as of one that never had them.
        """
        if self._is_on_bus and read_bytes(self._config, len(_NOBODY)) in (None, _NOBODY):
            self.lose("off_the_bus", out)

    def lose(self, why: str, out: GpuCollection) -> None:
        """Notes in ``lost`` why the GPU no longer answers, and adds a device event ``gpu_lost`` with it to ``out``."""
        self.lost = why
        out.tell_device("gpu_lost", self.gpu, {"why": why})

    def _read(self, reading: AmdReading, out: GpuCollection) -> Sequence[Value]:
        """Raises ``_DriverAway``; another refusal costs this reading only."""
        try:
            return reading.read(self._smi, self.gpu.handle)
        except AttributeError:
            out.lack(reading.what, "this release of amdsmi has no call for it")
        except self._smi.AmdSmiException as error:
            if not self._is_lacking(error, reading.what, out):
                return ()
        self._readings.remove(reading)
        return ()

    def _read_links(self, out: GpuCollection) -> None:
        if self._links is None:
            return
        try:
            values, changes = self._links.look(self._smi, self.gpu.handle)
        except AttributeError:
            out.lack(_LINKS, "this release of amdsmi has no call for it")
            self._links = None
            return
        except self._smi.AmdSmiException as error:
            if self._is_lacking(error, _LINKS, out):
                self._links = None
            return
        out.add(labels_of(self.gpu), values)
        for link, up in changes:
            out.tell_device("xgmi_up" if up else "xgmi_down", self.gpu, {"link": link})

    def _is_lacking(self, error: Exception, what: str, out: GpuCollection) -> bool:
        """Whether it will never be told here. Raises ``_DriverAway``."""
        status = status_of(error)
        if status in AWAY:
            raise _DriverAway from error
        if status in NEVER:
            out.lack(what, words_of(error))
            return True
        out.problem(f"GPU: no {what}: {words_of(error)}")
        return False
