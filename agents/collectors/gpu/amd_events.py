"""What AMD's driver tells by itself, as events of the GPUs they concern: page faults, resets, throttling by heat.

Each GPU is registered for itself; one wait hears of all. It blocks for its time-out at most, unless the driver hangs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .amd_status import NO_DATA, TIMEOUT, status_of, words_of
from .driver import Gpu
from .maker import DriverEvent

#: In the words of ``DEVICE_EVENT``, by the names of ``AmdSmiEvtNotificationType``; a release may not have them all.
#: Migrations of pages, evictions of queues, beginnings and ends of processes come by the thousand and are left out.
KINDS: Mapping[str, str] = {
    "VMFAULT": "gpu_page_fault",
    "THERMAL_THROTTLE": "gpu_thermal_throttle",
    "GPU_PRE_RESET": "gpu_reset",
    "GPU_POST_RESET": "gpu_reset_done",
    "RING_HANG": "gpu_job_timeout",
}
#: A driver in trouble can tell the same thing without end.
_AT_ONCE = 256


class AmdEvents:
    """``EventWatch`` over those GPUs that take part."""

    def __init__(self, smi: Any, gpus: Iterable[Gpu]) -> None:
        self.problem = ""
        self.is_open = True
        self._smi = smi
        self._gpus = {gpu.handle.value: gpu for gpu in gpus}
        self._readers: list[Any] = []
        known = smi.AmdSmiEvtNotificationType.__members__
        wanted = [known[name] for name in KINDS if name in known]
        deaf: list[str] = []
        for gpu in self._gpus.values():
            try:
                self._readers.append(smi.AmdSmiEventReader(gpu.handle, wanted))
            except smi.AmdSmiException as error:
                deaf.append(f"GPU {gpu.index} ({words_of(error)})")
        if deaf:
            self.problem = f"events of {', '.join(deaf)} cannot be heard of"

    def wait(self, timeout_s: float) -> list[DriverEvent]:
        """Waits for driver events, and returns as soon as something came; empty after the time-out.

        Where the driver fails, the registration is given up, ``problem`` is set, and it returns at once.
        """
        found: list[DriverEvent] = []
        until = time.monotonic() + timeout_s
        while self._readers and len(found) < _AT_ONCE:
            left_ms = 0 if found else max(0, int((until - time.monotonic()) * 1e3))
            try:
                # It fills what it is given before its time is up: the first is waited for alone.
                told = self._readers[0].read(left_ms, 10 if found else 1)
            except self._smi.AmdSmiException as error:
                if status_of(error) not in (NO_DATA, TIMEOUT):
                    self.problem = f"events cannot be heard of for now: {words_of(error)}"
                    self.close()
                break
            if not told:
                break
            found += [self._decode(item) for item in told if item["event"] in KINDS]
        return found

    def close(self) -> None:
        """Ends the registrations; may be called again."""
        readers, self._readers, self.is_open = self._readers, [], False
        for reader in readers:
            with contextlib.suppress(self._smi.AmdSmiException):
                reader.stop()

    def _decode(self, item: Mapping[str, Any]) -> DriverEvent:
        """Its message has the name of a user's program, which an event of the driver's must not carry."""
        return DriverEvent(kind=KINDS[item["event"]], code=0, gpu=self._gpus.get(item["processor_handle"].value))
