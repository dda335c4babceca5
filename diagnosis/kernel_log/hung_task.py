"""A hung task with the stack that follows it: what the task waits for, told by the innermost frame that says so.

Pure but for the one open case that ``HungFollower`` keeps; which frames belong to what stands in waits.toml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from ...telemetry.vocabulary import Action
from .event import Domain, KernelEvent
from .holder import Holder
from .kernel_log_tables import read_toml

HUNG_TASK = "hung_task"
#: A frame that the unwinder is not sure of is marked "?": what lay on the stack of calls that are over.
_FRAME = re.compile(
    r"(?:^|\s|\])(?P<unsure>\? )?(?P<function>[A-Za-z_][\w.]{1,100})\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8}"
    r"(?: \[(?P<module>\w{1,60})(?: [0-9a-f]{6,40})?\])?\s*$"
)
#: Old kernels mark the caller in parentheses, ``(sync_page+0x0/0x50)``, others print no offsets at all.
_BARE_FRAME = re.compile(
    r"^(?:\[<[0-9a-fx]{1,18}>\] )?(?P<unsure>\? )?\(?(?P<function>[A-Za-z_]\w{2,100})\+0x[0-9a-f]{1,8}"
)
_STACK_ENDS = re.compile(
    r"^</TASK>|\b(?:ret_from_fork(?:_asm)?|entry_SYSCALL_64_after_hwframe|system_call_fastpath|child_rip|el0t?_64_sync|"
    r"el0_svc_naked|system_call_vectored_common|kernel_thread_helper|ret_from_kernel_thread)\b"
)
#: The kernel says something else: the stack is over, or was never printed.
_OTHER = re.compile(
    r"^(?:INFO: |BUG: |WARNING: |Kernel panic|NMI backtrace|Showing all locks|Future hung task|NVRM: |rcu: |watchdog: |"
    r"Out of memory)"
)
_OWNER = re.compile(
    r"is blocked on an? (?P<lock>[\w ]{3,40}?),? (?:likely |but the )?(?:owned by task (?P<owner>\S{1,80}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPattern:
    """One entry of waits.toml."""

    name: str
    is_weak: bool
    domain: Domain
    component: str
    action: Action
    modules: frozenset[str]
    functions: tuple[str, ...]

    def knows(self, function: str, module: str) -> bool:
        """Whether a frame of this function and module is such a wait. module "": the kernel itself."""
        return module in self.modules if module else function.startswith(self.functions)


@cache
def waits() -> tuple[WaitPattern, ...]:
    """What tasks may wait for, from waits.toml, in its order."""
    return tuple(
        WaitPattern(
            name=name,
            is_weak=entry.get("is_weak", False),
            domain=Domain(entry["domain"]),
            component=entry["component"],
            action=Action(entry["action"]),
            modules=frozenset(entry["modules"]),
            functions=tuple(entry["functions"]),
        )
        for name, entry in read_toml("waits.toml").items()
    )


def waits_for(frames: Sequence[tuple[str, str]]) -> tuple[WaitPattern, str] | None:
    """(what a hung task waits for, the frame that says it); None: no frame tells.

    frames: (function, module), innermost first; weak signs count only where no other is.
    """
    weak: list[tuple[int, WaitPattern, str]] = []
    for function, module in frames:
        for order, wait in enumerate(waits()):
            if wait.knows(function, module):
                told = f"{function} [{module}]" if module else function
                if not wait.is_weak:
                    return wait, told
                weak.append((order, wait, told))
                break
    return min(weak, key=lambda found: found[0])[1:] if weak else None


class HungFollower(Holder):
    """Holds a hung task until its stack is over, then says what it waits for."""

    #: With registers and the list of modules of a long stack.
    LINES = 100
    #: The stack comes at once; a slow console takes its time for it.
    SECONDS = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._facts: dict[str, str] = {}
        self._frames: list[tuple[str, str]] = []
        self._unsure: list[tuple[str, str]] = []

    def takes(self, event: KernelEvent) -> bool:
        """Whether the event says that a task is blocked."""
        return event.event == HUNG_TASK

    def add(self, held: KernelEvent, text: str) -> tuple[KernelEvent, bool]:
        """Keeps a frame, or who holds the lock, for ``finish``.

        The flag: the stack is over, or another report begins.
        """
        if (owner := _OWNER.search(text)) is not None and held.process in text:
            self._facts |= {name: value for name, value in owner.groupdict().items() if value}
            return held, False
        if _OTHER.match(text):
            return held, True
        frame = _FRAME.search(text) or _BARE_FRAME.match(text)
        if frame is not None:
            found = (frame["function"], frame.groupdict().get("module") or "")
            (self._unsure if frame["unsure"] else self._frames).append(found)
        return held, _STACK_ENDS.search(text) is not None

    def finish(self, held: KernelEvent) -> KernelEvent:
        """The event with what its innermost telling frame says that the task waits for; frames are forgotten."""
        facts, frames = self._facts, self._frames or self._unsure
        self._facts, self._frames, self._unsure = {}, [], []
        found = waits_for(frames)
        if found is not None:
            facts = {**facts, "waits_for": found[0].name, "frame": found[1]}
            held = replace(held, domain=found[0].domain, component=found[0].component, action=found[0].action)
        return replace(held, facts={**held.facts, **facts})
