"""Backward passes: phase, loss, micro-steps. Patches ``torch.autograd.backward``, which ``Tensor.backward`` calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from .context import KNOWN, HookContext

_BACKWARD, _EVAL, _OTHER = int(Phase.BACKWARD), int(Phase.EVAL), int(Phase.OTHER)


def install(context: HookContext) -> None:
    """Patch the one function through which eager backward passes go."""
    tracker, steps, losses, grad_norms = context.tracker, context.steps, context.losses, context.grad_norms
    read_loss, on_backward = losses.read, steps.on_backward
    enter, leave, unwind = tracker.enter, tracker.leave, tracker.leave_by_exception
    poll_completions, open_operations = context.poll_completions, context.open_operations

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return original(tensors, *args, **kwargs)
            if tracker.base == _EVAL:
                tracker.base = _OTHER  # a model in eval mode that learns is training (frozen batch norms)
            entered = enter(_BACKWARD)
            # Not ``entered``: losses and steps go on where the phases have switched themselves off.
            counts = entered or (tracker.enabled and tracker.in_main_thread())
            if counts:
                if losses.pending:
                    losses.collect()
                if grad_norms.pending:
                    grad_norms.collect()
                # A gradient of its own means that this is not the loss (pipeline stages, custom graphs).
                if (args[0] if args else kwargs.get("grad_tensors")) is None:
                    scaled_loss = context.scaled_loss
                    if scaled_loss != KNOWN:
                        if scaled_loss != id(tensors):
                            read_loss(tensors)
                        context.scaled_loss = 0
            try:
                result = original(tensors, *args, **kwargs)
            except BaseException as error:
                unwind(entered, error)
                raise
            if counts:
                if open_operations:
                    poll_completions()
                on_backward()
            leave(entered)
            return result

        return backward

    context.patches.install(Patch("backward", [(torch.autograd, "backward")], make))
