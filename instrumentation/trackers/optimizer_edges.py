"""Begin and end of an optimizer's step: the phase between them, and the step that ends with it.

Runs in the main thread only; other threads' optimizers have no phase and end no step. Never raises. ``_steps.c`` has
the same class in C; ``make_optimizer_edges`` prefers it. Change both together. Standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from threading import get_ident
from typing import Any, Protocol

from ...telemetry.vocabulary import Phase
from ..support.guard import Guard
from ..support.native import native_wanted
from .phases import Phases

_OPTIMIZER = int(Phase.OPTIMIZER)
#: Optimizers inside optimizers (ZeRO, wrappers); deeper means that ends were not seen because steps raised.
MAX_NESTED = 8


class Edges(Protocol):
    """What the hook uses: OptimizerEdges, or the C one."""

    def begin(self, optimizer: Any, /) -> None:
        """Called by the hook as ``optimizer.step`` begins: the optimizer phase begins with it."""

    def end(self, optimizer: Any, /) -> None:
        """Called by the hook as ``optimizer.step`` returns or raises: the phase ends, and the step counter is told."""


class OptimizerEdges:
    """Pairs the beginning of each optimizer's step with its end, also where steps nest or raise.

    on_step: the step counter's. poll: looks for completed collectives, called only while ``open_operations`` has some.
    """

    __slots__ = ("_enter", "_entered", "_guard", "_leave", "_main_thread", "_on_step", "_open", "_poll", "_tracker")

    def __init__(
        self,
        tracker: Phases,
        on_step: Callable[[Any], None],
        poll: Callable[[], object],
        open_operations: Sized,
        guard: Guard,
    ) -> None:
        self._tracker = tracker
        self._enter, self._leave = tracker.enter, tracker.leave
        self._on_step = on_step
        self._poll = poll
        self._open = open_operations
        self._guard = guard
        self._main_thread = threading.main_thread().ident
        self._entered: list[tuple[int, int]] = []  # optimizer, phase entry

    def begin(self, optimizer: Any, /) -> None:
        """Begins the optimizer phase, as ``optimizer`` is about to step. In the main thread only."""
        if not (self._guard.enabled and self._tracker.enabled) or get_ident() != self._main_thread:
            return
        try:
            if self._open:
                self._poll()
            if self._entered:
                self._drop_raised(id(optimizer))
            self._entered.append((id(optimizer), self._enter(_OPTIMIZER, left_open=True)))
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def end(self, optimizer: Any, /) -> None:
        """Counts the step of ``optimizer`` and ends its phase, if ``begin`` was called for it."""
        entered = self._entered
        if not (entered and self._guard.enabled) or get_ident() != self._main_thread:
            return
        try:
            identity = id(optimizer)
            for index in range(len(entered) - 1, -1, -1):
                if entered[index][0] == identity:
                    entry = entered[index][1]
                    del entered[index:]
                    # The step ends before the phase does, so that what follows belongs to the next step.
                    self._on_step(optimizer)
                    self._leave(entry)
                    break
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def _drop_raised(self, identity: int) -> None:
        """Steps of optimizers that raised have no end of their own."""
        entered = self._entered
        for index in range(len(entered) - 1, -1, -1):
            if entered[index][0] == identity:
                self._leave(entered[index][1])
                del entered[index:]
                break
        if len(entered) >= MAX_NESTED:
            entered.clear()


def make_optimizer_edges(
    tracker: Phases,
    on_step: Callable[[Any], None],
    poll: Callable[[], object],
    open_operations: Sized,
    guard: Guard,
) -> Edges:
    """Edges for a tracker and step counter: the C ones where they were built and are wanted, else the Python ones.

    on_step: the step counter's. poll: looks for completed collectives, while ``open_operations`` has some.
    """
    if native_wanted():
        try:
            from .._steps import OptimizerEdges as NativeEdges
        except ImportError:
            pass
        else:
            main_thread = threading.main_thread().ident or 0
            return NativeEdges(tracker, on_step, poll, open_operations, guard, main_thread, _OPTIMIZER)
    return OptimizerEdges(tracker, on_step, poll, open_operations, guard)
