"""Steps and backward passes that a framework makes its own way: optimizers that are not torch's, scaled losses.

What torch's optimizers do inside a framework's step (one call per parameter group, per bucket) is no step of the job,
so the optimizer hooks stay silent while ``context.inside_step`` has an entry; the framework's step counts once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from .context import KNOWN, HookContext

_OPTIMIZER = int(Phase.OPTIMIZER)
Function = Callable[..., Any]
#: (object, what ``before`` said, result) -> (whether the update was skipped, gradient norm or None)
Outcome = Callable[[Any, Any, Any], tuple[bool, Any]]


def own_step(original: Function, context: HookContext, before: Callable[[Any], Any], outcome: Outcome) -> Function:
    """The method, so wrapped that each call counts as one optimizer step of the job, in its phase.

    before: called with the object; outcome: then called with object, its result and the call's, says whether the update
    was skipped, and the gradient norm or None.
    """
    tracker, steps, inside_step = context.tracker, context.steps, context.inside_step
    guard = context.guard(f"own_step {original.__qualname__}")

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if inside_step or not (tracker.enabled and guard.enabled and tracker.in_main_thread()) or is_dynamo_compiling():
            return original(self, *args, **kwargs)
        state = None
        try:
            if context.open_operations:
                context.poll_completions()
            state = before(self)
        except Exception as error:  # edge: hook
            guard.fail(error)
        entered = tracker.enter(_OPTIMIZER)
        inside_step.append(1)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            tracker.leave_by_exception(entered, error)
            raise
        finally:
            inside_step.clear()
        if guard.enabled:
            try:
                skipped, grad_norm = outcome(self, state, result)
                if grad_norm is not None:
                    context.grad_norms.read(grad_norm)
                steps.on_optimizer_step(self, skipped=skipped)
            except Exception as error:  # edge: hook
                guard.fail(error)
        tracker.leave(entered)
        return result

    return step


def unscaled_loss(original: Function, context: HookContext) -> Function:
    """The method ``original(self, loss, ...)``, so wrapped that its argument is read as the loss."""
    tracker, losses = context.tracker, context.losses

    @functools.wraps(original)
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = context.scaled_loss
        if before == KNOWN or not (tracker.enabled and tracker.in_main_thread()) or is_dynamo_compiling():
            return original(self, *args, **kwargs)
        losses.read(args[0] if args else kwargs.get("loss"))
        context.scaled_loss = KNOWN
        try:
            return original(self, *args, **kwargs)
        finally:
            context.scaled_loss = 0

    return backward
