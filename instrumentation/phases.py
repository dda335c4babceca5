"""Which phase the main thread is in: an explicit stack, innermost wins, with a table of exceptions.

Owned by the session, used by hooks in the main thread only (calls from other threads are ignored: a phase is what the
rank's training loop does). Never raises; the first error switches it off. Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..telemetry.vocabulary import Phase
from .guard import Guard

_INIT, _DATA, _FORWARD = int(Phase.INIT), int(Phase.DATA), int(Phase.FORWARD)
_BACKWARD, _OPTIMIZER, _EVAL = int(Phase.BACKWARD), int(Phase.OPTIMIZER), int(Phase.EVAL)
_OTHER = int(Phase.OTHER)
#: The training loop has begun when one of these is entered.
_LOOP = frozenset({_DATA, _FORWARD, _BACKWARD, _OPTIMIZER})
#: Own cost is measured on one call in this many, in CPU time of the thread: on a crowded machine wall time would charge
#: us for others' work, and reading a thread's CPU time costs half a hook. Odd, because beginnings and ends alternate.
COST_EVERY = 7


def _combine(outer: Phase, inner: Phase) -> Phase:
    """What to show while ``inner`` runs inside ``outer``."""
    if outer in (Phase.CHECKPOINT, Phase.RESTORE, Phase.COMPILE):
        return outer
    long_ones = (Phase.CHECKPOINT, Phase.RESTORE, Phase.COMPILE, Phase.EVAL)
    if outer is Phase.EVAL:
        return inner if inner in long_ones else outer
    if outer is Phase.BACKWARD and inner in (Phase.FORWARD, Phase.OPTIMIZER):
        return outer  # activation recomputation; optimizers that step inside backward
    if outer is Phase.DATA and inner in (Phase.CHECKPOINT, Phase.RESTORE):
        return outer  # data sets that torch.load their samples
    return inner


COMBINED = tuple(tuple(int(_combine(outer, inner)) for inner in Phase) for outer in Phase)

#: A phase that was left open (its end was not seen because something raised) ends when one of these begins.
_CLOSED_BY = {
    _FORWARD: frozenset({_DATA, _FORWARD, _BACKWARD, _OPTIMIZER}),
    _OPTIMIZER: frozenset({_DATA}),
}

Entry = tuple[int, int, int, bool]  # identifier, phase, what is shown, left open


class PhaseTracker:
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
        "changed_ns",
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
        self.changed_ns = time.monotonic_ns()
        #: False while the level is off.
        self.enabled = True
        self.cost_ns = 0
        self.calls = 0
        #: Identity of the last exception that unwound a phase, and that phase: see ``phase_of_exception``.
        self.unwound: tuple[int, int] = (0, _INIT)

    def enter(self, phase: int, *, left_open: bool = False, by_hand: bool = False) -> int:
        """Begin a phase. Returns the identifier for ``leave``; 0 where nothing was begun.

        left_open: no ``finally`` guards its end, so the phases of _CLOSED_BY end it as well.
        by_hand: the user named it, so it is shown whatever is around it.
        """
        if not (self.enabled and self._guard.enabled) or threading.get_ident() != self._main_thread:
            return 0
        self.calls = calls = self.calls + 1
        begin_ns = 0 if calls % COST_EVERY else time.thread_time_ns()
        try:
            stack = self._stack
            while stack and stack[-1][3] and phase in _CLOSED_BY.get(stack[-1][1], ()):
                stack.pop()
            if self.base == _INIT and phase in _LOOP:
                self.base = _OTHER
            outer = stack[-1][2] if stack else self.base
            shown = phase if by_hand else COMBINED[outer][phase]
            self._next_id = identifier = self._next_id + 1
            stack.append((identifier, phase, shown, left_open))
            if shown != self.shown:
                self._show(shown)
            if begin_ns:
                self.cost_ns += (time.thread_time_ns() - begin_ns) * COST_EVERY
            return identifier
        except Exception as error:  # edge: hook
            self._guard.fail(error)
            return 0

    def leave(self, identifier: int) -> None:
        """End a phase and whatever was left open inside it. 0 and phases that already ended are ignored."""
        if not identifier or not self._guard.enabled:
            return
        self.calls = calls = self.calls + 1
        begin_ns = 0 if calls % COST_EVERY else time.thread_time_ns()
        try:
            stack = self._stack
            for index in range(len(stack) - 1, -1, -1):
                if stack[index][0] == identifier:
                    del stack[index:]
                    break
                if stack[index][0] < identifier:
                    return
            else:
                return
            shown = stack[-1][2] if stack else self.base
            if shown != self.shown and self.enabled:
                self._show(shown)
            if begin_ns:
                self.cost_ns += (time.thread_time_ns() - begin_ns) * COST_EVERY
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def leave_by_exception(self, identifier: int, error: BaseException) -> None:
        """Like ``leave``; remembers which phase the exception came from.

        Only the exception's identity is kept: a reference would keep its traceback, and with it tensors, alive.
        """
        if identifier and self.unwound[0] != id(error):
            self.unwound = (id(error), self.shown)
        self.leave(identifier)

    def phase_of_exception(self, error: BaseException) -> int | None:
        """The phase that ``error``, or what it was raised from, unwound; None where no phase was unwound by it."""
        cause: BaseException | None = error
        for _ in range(32):
            if cause is None:
                return None
            if id(cause) == self.unwound[0]:
                return self.unwound[1]
            cause = cause.__cause__ or cause.__context__
        return None

    def set_base(self, phase: int) -> None:
        """What is shown outside all phases. Any thread's call but the main thread's is ignored."""
        if not self._guard.enabled or threading.get_ident() != self._main_thread:
            return
        try:
            self.base = phase
            if not self._stack and phase != self.shown and self.enabled:
                self._show(phase)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def force(self, phase: int) -> None:
        """Show a phase now and drop the stack (an exception ends the program, or the program ends)."""
        try:
            self._stack.clear()
            self.base = phase
            if phase != self.shown:
                self._show(phase)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def in_main_thread(self) -> bool:
        """Whether the calling thread's phases count."""
        return threading.get_ident() == self._main_thread

    def depth(self) -> int:
        """Number of phases begun and not ended."""
        return len(self._stack)

    def _show(self, phase: int) -> None:
        self.shown = phase
        self.changed_ns = time.monotonic_ns()
        self._set_phase(phase)
