"""An error of the kernel itself: the lines after it say on which CPU, in which process and in whose code."""

from __future__ import annotations

import re
from dataclasses import replace

from .event import DeviceKind, KernelEvent, Stamp
from .history import CRASHES

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


class OopsFollower:
    """Holds the oops until process and place are known, or its lines are over."""

    LINES = 30

    def __init__(self) -> None:
        self.lines_left = 0
        self._held: KernelEvent | None = None
        self._begun = Stamp()

    def takes(self, event: KernelEvent) -> bool:
        return event.event == KERNEL_OOPS or (event.event in CRASHES and not event.process)

    def begin(self, event: KernelEvent, stamp: Stamp) -> list[KernelEvent]:
        """What was held before."""
        out = self.flush()
        self._held, self._begun, self.lines_left = event, stamp, self.LINES
        return out

    def read(self, text: str, stamp: Stamp) -> list[KernelEvent]:
        held = self._held
        if held is None or stamp.host != held.host:
            return []
        self.lines_left -= 1
        if not self.lines_left or not self._begun.is_within(OOPS_S, stamp):
            return self.flush()
        if not held.process and (who := WHO.search(text) or _OLD_WHO.search(text)) is not None:
            facts = {**held.facts, **({"cpu": who["cpu"]} if "cpu" in who.groupdict() else {})}
            held = replace(held, process=who["process"], pid=int(who["pid"]), facts=facts)
            if held.device_kind is DeviceKind.PROCESS:
                held = replace(held, device=held.process)
        if "function" not in held.facts and (where := _WHERE.search(text)) is not None:
            told = {name: value for name, value in where.groupdict().items() if value}
            held = replace(held, facts={**held.facts, **told})
        self._held = held
        is_told = bool(held.process) and "function" in held.facts
        return self.flush() if is_told or _ENDS.search(text) else []

    def flush(self) -> list[KernelEvent]:
        held, self._held, self.lines_left = self._held, None, 0
        return [held] if held is not None else []
