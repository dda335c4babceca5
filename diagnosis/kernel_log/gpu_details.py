"""A fault of an AMD GPU whose own line tells too little: the lines after it name the process and the device.

``[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout`` has neither; ``Process information: process ...`` and
``amdgpu 0000:03:00.0: GPU reset begin!`` follow at once.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .device import canonical_pci
from .event import KernelEvent
from .holder import Holder
from .macros import PCI

#: What is done for a process, and what has none.
_OF_A_PROCESS = frozenset({"gpu_job_timeout", "gpu_page_fault"})
_OF_THE_DEVICE = frozenset({"gpu_memory_error", "gpu_scheduler_error", "gpu_management_error", "gpu_hardware_error"})
_DRIVER = re.compile(r"\b(?:amdgpu|amdkfd|radeon|kfd)\b")
_WHO = re.compile(
    r"(?:\b[Pp]rocess information: process|\bfor process|^(?:amdgpu [^\n]{0,40}: )?\s*Process)"
    r" (?P<process>\S[^\n]{0,60}?) pid (?P<pid>\d{1,10})\b"
)
_WHOSE = re.compile(rf"\b(?:amdgpu|radeon|kfd) (?P<device>{PCI})")


class GpuDetailFollower(Holder):
    """Holds the fault until process and device are known, or its lines are over."""

    #: Between the two stand the registers of a page fault.
    LINES = 12

    def takes(self, event: KernelEvent) -> bool:
        """Whether the event is a fault of an AMD GPU that lacks its process or its device."""
        is_known = event.event in _OF_A_PROCESS or event.event in _OF_THE_DEVICE
        return is_known and self._lacks(event) and _DRIVER.search(event.text) is not None

    @staticmethod
    def _lacks(event: KernelEvent) -> bool:
        return not event.device or (event.event in _OF_A_PROCESS and not event.process)

    def add(self, held: KernelEvent, text: str) -> tuple[KernelEvent, bool]:
        """The event with what this line tells, and whether nothing more is needed."""
        whose = _WHOSE.search(text)
        device = (canonical_pci(whose["device"]) or "") if whose is not None else ""
        if held.device and device and device != held.device:
            return held, False  # another GPU's line stands in between
        if not held.process and (who := _WHO.search(text)) is not None:
            held = replace(held, process=who["process"], pid=int(who["pid"]))
        if not held.device and device:
            held = replace(held, device=device)
        return held, not self._lacks(held)
