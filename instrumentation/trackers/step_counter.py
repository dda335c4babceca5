"""Counts training steps: one per iteration, whatever the script does around its optimizer.

The rule. A step ends when an optimizer steps that has stepped in it already, and at the very first optimizer step after
a backward pass. Optimizers that step in between belong to the same step, with a backward pass of their own or without
(their time is already the next step's). Hence gradient accumulation counts once, LBFGS and scheduler-wrapped optimizers
once, chained optimizers once, and a GAN whose two optimizers take turns once. An optimizer that turns up with a
backward pass of its own when others have been through a whole round is no part of theirs (another training begins, or
each iteration has a new one) and ends a step; in the first round MAX_TURNS may come together. A GradScaler that skips
the update counts the step with SKIPPED.
The first ``whichrank.step()`` ends automatic counting. Optimizers that do not subclass ``torch.optim.Optimizer`` and
wrap none are seen where a framework's own step is hooked (``hooks/``); other such loops call ``whichrank.step()``.

Runs in the main thread, in a training step with cold caches (see phases). Never raises. Standard library only.
``_steps.c`` has the same class in C; ``make_step_counter`` prefers it. Change both together.
"""

from __future__ import annotations

from math import isfinite
from time import thread_time_ns
from typing import Any, Protocol

from ...telemetry.vocabulary import StepFlag
from ..support.guard import Guard
from ..support.native import native_wanted

_SKIPPED, _BY_HAND = int(StepFlag.SKIPPED), int(StepFlag.BY_HAND)
#: Own cost is measured on one step in this many, never the first.
COST_EVERY = 16
#: Optimizers with a backward pass each that may follow the one that ended a step before the next step ends.
MAX_TURNS = 4
#: Optimizers remembered from earlier rounds.
MAX_KNOWN = 64


class StepWriter(Protocol):
    """The part of a ring writer that steps need."""

    def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int:
        """Closes the step, and returns the number of the next one."""

    def add_microstep(self) -> None:
        """Count a backward pass."""

    def set_loss(self, loss: float) -> None:
        """Show a loss before its step ends."""


class Steps(Protocol):
    """What hooks use: StepCounter, or the C one."""

    enabled: bool
    step: int

    @property
    def optimizer_calls(self) -> int:
        """How many times any optimizer has stepped so far."""

    @property
    def cost_ns(self) -> int:
        """Nanoseconds that counting has cost so far."""

    @property
    def calls(self) -> int:
        """How many ends of steps there were, over which ``cost_ns`` is an estimate."""

    def on_backward(self) -> None:
        """A backward pass has ended."""

    def on_loss(self, loss: float, /) -> None:
        """A loss of the present step was read."""

    def on_grad_norm(self, grad_norm: float, /) -> None:
        """The gradient norm of the present step was read."""

    def on_optimizer_step(self, optimizer: Any, /, *, skipped: bool = False) -> None:
        """An optimizer has stepped. skipped: a scaler left the weights alone; that ends the step as well."""

    def end_by_hand(self, loss: float | None, grad_norm: float | None, /) -> None:
        """The script says itself that the step ends; optimizers end none from then on."""


class StepCounter:
    """Decides when a step ends, and keeps its loss and gradient norm until then."""

    __slots__ = (
        "_auto_since_hand",
        "_backward_seen",
        "_grad_norm",
        "_guard",
        "_known",
        "_loss",
        "_rounds",
        "_stepped",
        "_turns",
        "_writer",
        "by_hand",
        "calls",
        "cost_ns",
        "enabled",
        "optimizer_calls",
        "step",
    )

    def __init__(self, writer: StepWriter, guard: Guard) -> None:
        self._writer = writer
        self._guard = guard
        self._backward_seen = False
        #: Identities of the optimizers that have stepped in this round.
        self._stepped: set[int] = set()
        #: Identities of those that have ever stepped, as far as MAX_KNOWN reaches; whether a round has come to its end.
        self._known: set[int] = set()
        self._rounds = False
        self._turns = 0
        self._auto_since_hand = False
        self._loss: float | None = None
        self._grad_norm: float | None = None
        self.by_hand = False
        self.enabled = True
        #: Number of optimizer steps so far; equal before and after ``GradScaler.step`` = it skipped the update.
        self.optimizer_calls = 0
        self.step = 0
        self.cost_ns = 0
        self.calls = 0

    def on_backward(self) -> None:
        """Counts a backward pass of the main thread, which has ended."""
        if not (self.enabled and self._guard.enabled):
            return
        try:
            self._backward_seen = True
            self._writer.add_microstep()
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def on_loss(self, loss: float, /) -> None:
        """Takes the loss of one backward pass.

        Of several in a step a value that is not finite sticks, else the last counts.
        """
        if not (self.enabled and self._guard.enabled):
            return
        try:
            if self._loss is None or isfinite(self._loss):
                self._loss = loss
                self._writer.set_loss(loss)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def on_grad_norm(self, grad_norm: float, /) -> None:
        """Takes the total gradient norm; as with the loss, a value that is not finite sticks until the step ends."""
        if self._grad_norm is None or isfinite(self._grad_norm):
            self._grad_norm = grad_norm

    def on_optimizer_step(self, optimizer: Any, /, *, skipped: bool = False) -> None:
        """Decides whether a step ends, now that an optimizer updated the parameters.

        skipped: a GradScaler kept it from doing so, which counts as well. Nothing ends here once the script ends steps
        by hand.
        """
        if not (self.enabled and self._guard.enabled):
            return
        try:
            if not skipped:
                self.optimizer_calls += 1
            if self.by_hand:
                return
            identity = id(optimizer)
            stepped = self._stepped
            backward_seen = self._backward_seen
            again = identity in stepped
            if again or (backward_seen and (not stepped or self._turns == MAX_TURNS or self._is_new(identity))):
                self._rounds = self._rounds or bool(stepped)
                stepped.clear()
                self._turns = 0
                self._auto_since_hand = True
                self._end(_SKIPPED if skipped else 0)
            elif backward_seen:
                self._turns += 1
                self._backward_seen = False
            stepped.add(identity)
            if not again:
                if len(self._known) == MAX_KNOWN:
                    self._known.clear()
                self._known.add(identity)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def _is_new(self, identity: int) -> bool:
        """Whether an optimizer turns up for the first time, after others' rounds."""
        return self._rounds and identity not in self._known

    def end_by_hand(self, loss: float | None, grad_norm: float | None, /) -> None:
        """Ends the step, as the script says so; None: value not known.

        The first call does not count a step that a hook has just counted.
        """
        if not (self.enabled and self._guard.enabled):
            return
        try:
            if loss is not None:
                self._loss = loss
            if grad_norm is not None:
                self._grad_norm = grad_norm
            first = not self.by_hand
            self.by_hand = True
            if first and self._auto_since_hand and not self._backward_seen:
                if loss is not None:
                    self._writer.set_loss(loss)
                self._loss = self._grad_norm = None
                return
            self._end(_BY_HAND)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def _end(self, flags: int) -> None:
        """``flags`` without those for loss and norm: the writer sets them."""
        self.calls = calls = self.calls + 1
        begin_ns = 0 if calls % COST_EVERY else thread_time_ns()
        loss, grad_norm = self._loss, self._grad_norm
        self._loss = self._grad_norm = None
        self._backward_seen = False
        self.step = self._writer.end_step(loss, grad_norm, flags)
        if begin_ns:
            self.cost_ns += (thread_time_ns() - begin_ns) * COST_EVERY


def make_step_counter(writer: StepWriter, guard: Guard) -> Steps:
    """A counter of steps: the C one where it was built and is wanted, else the one in Python."""
    if native_wanted():
        try:
            from .._steps import StepCounter as NativeStepCounter
        except ImportError:
            pass
        else:
            return NativeStepCounter(writer, guard, _SKIPPED, _BY_HAND)
    return StepCounter(writer, guard)
