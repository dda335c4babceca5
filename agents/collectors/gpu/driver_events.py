"""What the driver tells by itself: Xid errors and their like, as events of the GPUs they concern.

One event set for all GPUs. A wait blocks for its time-out at most, unless the driver hangs. A GPU that is lost ends
every wait of its set at once and for ever, so such a set is given up and a new one made without it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pynvml as nvml

from .driver import LOST, Gpu, handle_number, is_instance
from .maker import DriverEvent

#: In the words of ``DEVICE_EVENT``. Changes of clocks and P-states come by the thousand and are left out.
KINDS: Mapping[int, str] = {
    0x2: "ecc_uncorrected",
    0x8: "xid",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "poison_nonfatal",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_WANTED = sum(KINDS)
#: A driver in trouble can tell the same thing without end.
_AT_ONCE = 256


class NvidiaEvents:
    """An event set over those GPUs that take part. ``problem``: why it hears nothing, or not of all; else empty."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self.problem = ""
        self._gpus = {handle_number(gpu.handle): gpu for gpu in gpus}
        self._set: Any = None
        deaf: list[str] = []
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.problem = f"Xid events cannot be heard of: {error}"
            return
        for gpu in self._gpus.values():
            try:
                supported = nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
                nvml.nvmlDeviceRegisterEvents(gpu.handle, supported & _WANTED, events)
            except nvml.NVMLError as error:
                if error.value not in LOST:
                    deaf.append(f"GPU {gpu.index} ({error})")
        if deaf:
            self.problem = f"Xid events of {', '.join(deaf)} cannot be heard of"
        self._set = events

    @property
    def is_open(self) -> bool:
        """Whether the driver took our registration; False also after ``close``."""
        return self._set is not None

    def wait(self, timeout_s: float) -> list[DriverEvent]:
        """Waits for driver events, and returns as soon as something came; empty after the time-out.

        Where the driver fails, the set is closed, ``problem`` may be set, and it returns at once.
        """
        found: list[DriverEvent] = []
        until = time.monotonic() + timeout_s
        while self._set is not None and len(found) < _AT_ONCE:
            left_ms = 0 if found else max(0, int((until - time.monotonic()) * 1e3))
            try:
                data = nvml.nvmlEventSetWait(self._set, left_ms)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    break
                if error.value not in LOST:
                    self.problem = f"Xid events cannot be heard of for now: {error}"
                self.close()
                break
            found.append(self._decode(data))
        return found

    def close(self) -> None:
        """Frees the event set; may be called again."""
        events, self._set = self._set, None
        if events is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def _decode(self, data: Any) -> DriverEvent:
        gpu = self._gpus.get(handle_number(data.device))
        instance, compute = int(data.gpuInstanceId), int(data.computeInstanceId)
        is_part = gpu is not None and is_instance(instance)
        return DriverEvent(
            kind=KINDS.get(data.eventType, hex(data.eventType)),
            code=int(data.eventData),
            gpu=gpu,
            gpu_instance=instance if is_part else None,
            mig=gpu.mig_uuid(instance, compute) if gpu is not None and is_part else None,
        )
