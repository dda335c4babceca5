"""An error of the kernel itself: the lines after it say on which CPU, in which process and in whose code."""

from __future__ import annotations

import re
from dataclasses import replace

from .device_history import CRASHES
from .event import DeviceKind, KernelEvent
from .holder import Holder

KERNEL_OOPS = "kernel_oops"

WHO = re.compile(
    r"\bCPU: (?P<cpu>\d{1,5}) (?:UID: \d+ )?PID: (?P<pid>\d{1,10}) "
    r"Comm: (?P<process>\S[^\n]{0,30}?)(?: (?:Not tainted|Tainted|Kdump)|$)"
)
#: Before 3.10: ``Pid: 4711, comm: python Tainted: P``.
_OLD_WHO = re.compile(r"\bPid: (?P<pid>\d{1,10}), comm: (?P<process>\S[^\n]{0,30}?)(?: (?:Not tainted|Tainted)|$)")
_WHERE = re.compile(
    r"(?:\bR?IP: (?:[0-9a-f]{4}:)?(?:\[<[0-9a-f]{1,18}>\] ?){0,2}|\bpc : |\bNIP \[[0-9a-f]+\] )"
    r"(?P<function>[A-Za-z_][\w.]{1,100})\+0x[0-9a-f]{1,8}(?:/0x[0-9a-f]{1,8})?(?: \[(?P<module>\w{1,60}))?"
)
_ENDS = re.compile(r"end trace|Kernel panic|^Modules linked in: |^Code: ")
#: The lines of one oops come at once.
OOPS_S = 10.0


class OopsFollower(Holder):
    """Holds the oops until process and place are known, or its lines are over."""

    LINES = 30
    SECONDS = OOPS_S

    def takes(self, event: KernelEvent) -> bool:
        """Whether the event is an oops, or a crash that does not tell whose it was."""
        return event.event == KERNEL_OOPS or (event.event in CRASHES and not event.process)

    def add(self, held: KernelEvent, text: str) -> tuple[KernelEvent, bool]:
        """The event with process and function where this line has them, and whether both are known."""
        if not held.process and (who := WHO.search(text) or _OLD_WHO.search(text)) is not None:
            facts = {**held.facts, **({"cpu": who["cpu"]} if "cpu" in who.groupdict() else {})}
            held = replace(held, process=who["process"], pid=int(who["pid"]), facts=facts)
            if held.device_kind is DeviceKind.PROCESS:
                held = replace(held, device=held.process)
        if "function" not in held.facts and (where := _WHERE.search(text)) is not None:
            told = {name: value for name, value in where.groupdict().items() if value}
            held = replace(held, facts={**held.facts, **told})
        is_told = bool(held.process) and "function" in held.facts
        return held, is_told or _ENDS.search(text) is not None
