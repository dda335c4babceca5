"""Which phase the main thread is in: an explicit stack, innermost wins, with a table of exceptions.

Owned by the session, used by hooks in the main thread only (calls from other threads are ignored: a phase is what the
rank's training loop does). Never raises; the first error switches it off. Standard library only.
``_phases.c`` is the same class in C, at a third of the cost; ``make_phase_tracker`` prefers it. Change both together.

In a training step these functions run cold: torch has just used the processor's caches for itself. A call that takes
0.5 us in a loop takes 2 to 4 there, roughly in proportion to the objects it touches; hence the few, plain statements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from time import thread_time_ns
from typing import Protocol

from ...telemetry.vocabulary import Phase
from ..support.guard import Guard
from ..support.native import native_wanted
from .phase_rules import CLOSED_BY, COMBINED, LOOP, FailedPhase

_INIT, _DATA, _FORWARD = int(Phase.INIT), int(Phase.DATA), int(Phase.FORWARD)
_BACKWARD, _OPTIMIZER, _EVAL = int(Phase.BACKWARD), int(Phase.OPTIMIZER), int(Phase.EVAL)
_OTHER = int(Phase.OTHER)
#: Own cost is measured on one call in this many, in CPU time of the thread: on a crowded machine wall time would charge
#: us for others' work, and reading a thread's CPU time costs more than the call. A prime, so that it meets all of them.
COST_EVERY = 61
#: What each call costs outside its body: the hook that makes it, reading the loss, caches that torch has to fill again
#: (measured: benchmarks/overhead.py, divided by the calls of a step).
CROSSING_NS = 5_000


Entry = tuple[int, int, int, bool]  # identifier, phase, what is shown, left open


class Phases(Protocol):
    """What hooks use: PhaseTracker, or the C one."""

    base: int
    shown: int
    enabled: bool
    cost_ns: int
    calls: int

    def enter(self, phase: int, *, left_open: bool = False, by_hand: bool = False) -> int:
        """Begins a phase, and returns the identifier by which it is left.

        left_open: it lasts until the next one begins.
        """

    def leave(self, identifier: int) -> None:
        """Ends that phase, and whatever was left open above it."""

    def leave_by_exception(self, identifier: int, error: BaseException) -> None:
        """Ends a phase whose body raised ``error``, which is remembered as the error's phase."""

    def phase_of_exception(self, error: BaseException) -> int | None:
        """The phase that this error, or what it was raised from, unwound; None where it unwound none."""

    def set_base(self, phase: int) -> None:
        """Sets the phase that is shown while none is open."""

    def force(self, phase: int) -> None:
        """Shows this phase now, whatever is open."""

    def in_main_thread(self) -> bool:
        """Whether the caller is the main thread: phases of others are not tracked."""

    def depth(self) -> int:
        """How many phases are open."""


class PhaseTracker(FailedPhase):
    """Stack of phases of the main thread.

    set_phase: the ring writer's; called only when what is shown changes.
    """

    __slots__ = (
        "_guard",
        "_main_thread",
        "_next_id",
        "_set_phase",
        "_stack",
        "base",
        "calls",
        "cost_ns",
        "enabled",
        "shown",
        "unwound",
    )

    def __init__(self, set_phase: Callable[[int], int], guard: Guard) -> None:
        self._set_phase = set_phase
        self._guard = guard
        self._main_thread = threading.main_thread().ident
        self._stack: list[Entry] = []
        self._next_id = 0
        #: Shown while the stack is empty: INIT, then OTHER (EVAL while the model is in eval mode), EXIT at the end.
        self.base = _INIT
        self.shown = _INIT
        #: False while the level is off.
        self.enabled = True
        self.cost_ns = 0
        self.calls = 0
        self.unwound = (0, _INIT)

    def enter(self, phase: int, *, left_open: bool = False, by_hand: bool = False) -> int:
        """Begin a phase. Returns the identifier for ``leave``; 0 where nothing was begun.

        left_open: no ``finally`` guards its end, so the phases of CLOSED_BY end it as well.
        by_hand: the user named it, so it is shown whatever is around it.
        """
        if not self.enabled or get_ident() != self._main_thread or not self._guard.enabled:
            return 0
        self.calls = calls = self.calls + 1
        begin_ns = 0 if calls % COST_EVERY else thread_time_ns()
        try:
            stack = self._stack
            if stack:
                while stack and stack[-1][3] and phase in CLOSED_BY.get(stack[-1][1], ()):
                    stack.pop()
            if self.base == _INIT and phase in LOOP:
                self.base = _OTHER
            shown = phase if by_hand else COMBINED[stack[-1][2] if stack else self.base][phase]
            self._next_id = identifier = self._next_id + 1
            stack.append((identifier, phase, shown, left_open))
            if shown != self.shown:
                self.shown = shown
                self._set_phase(shown)
            if begin_ns:
                self.cost_ns += (thread_time_ns() - begin_ns) * COST_EVERY
            return identifier
        except Exception as error:  # edge: hook
            self._guard.fail(error)
            return 0

    def leave(self, identifier: int) -> None:
        """End a phase and whatever was left open inside it. 0 and phases that already ended are ignored."""
        if not identifier or not self._guard.enabled:
            return
        self.calls = calls = self.calls + 1
        begin_ns = 0 if calls % COST_EVERY else thread_time_ns()
        try:
            stack = self._stack
            if stack and stack[-1][0] == identifier:  # the usual case: nothing inside it is open
                stack.pop()
            else:
                for index in range(len(stack) - 1, -1, -1):
                    if stack[index][0] <= identifier:
                        if stack[index][0] != identifier:
                            return
                        del stack[index:]
                        break
                else:
                    return
            shown = stack[-1][2] if stack else self.base
            if shown != self.shown and self.enabled:
                self.shown = shown
                self._set_phase(shown)
            if begin_ns:
                self.cost_ns += (thread_time_ns() - begin_ns) * COST_EVERY
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def set_base(self, phase: int) -> None:
        """Sets what is shown outside all phases. Calls of other threads than the main one are ignored."""
        if get_ident() != self._main_thread or not self._guard.enabled:
            return
        try:
            self.base = phase
            if not self._stack and phase != self.shown and self.enabled:
                self._show(phase)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def force(self, phase: int) -> None:
        """Shows a phase now and drops all that are open (an exception ends the program, or the program ends)."""
        try:
            self._stack.clear()
            self.base = phase
            if phase != self.shown:
                self._show(phase)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def in_main_thread(self) -> bool:
        """Whether the calling thread's phases count."""
        return get_ident() == self._main_thread

    def depth(self) -> int:
        """Number of phases begun and not ended."""
        return len(self._stack)

    def _show(self, phase: int) -> None:
        self.shown = phase
        self._set_phase(phase)


def make_phase_tracker(set_phase: Callable[[int], int], guard: Guard) -> Phases:
    """A tracker of phases: the C one where it was built and is wanted, else the one in Python.

    set_phase: the ring writer's.
    """
    if native_wanted():
        try:
            from .phases_native import NativePhaseTracker
        except ImportError:
            pass
        else:
            return NativePhaseTracker(set_phase, guard)
    return PhaseTracker(set_phase, guard)
