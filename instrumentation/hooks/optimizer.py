"""Optimizer steps: phase and step count, through torch's own global hooks."""

from __future__ import annotations

from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...telemetry.vocabulary import Phase
from .context import HookContext

_OPTIMIZER = int(Phase.OPTIMIZER)
#: Optimizers inside optimizers (ZeRO, wrappers); deeper means that ends were not seen because steps raised.
MAX_NESTED = 8


def install(context: HookContext) -> None:
    """Register the two global hooks. Optimizers outside the main thread have no phase and end no step."""
    tracker, steps, poll_completions = context.tracker, context.steps, context.poll_completions
    entered: list[tuple[int, int]] = []  # optimizer, phase entry
    guard = context.guard("optimizer")

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or not (guard.enabled and tracker.enabled and tracker.in_main_thread()):
            return
        try:
            poll_completions()
            for index, (identity, entry) in enumerate(entered):
                if identity == id(optimizer):  # its last step raised
                    tracker.leave(entry)
                    del entered[index:]
                    break
            if len(entered) >= MAX_NESTED:
                entered.clear()
            entered.append((id(optimizer), tracker.enter(_OPTIMIZER, left_open=True)))
        except Exception as error:  # edge: hook
            guard.fail(error)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or not (guard.enabled and tracker.in_main_thread()):
            return
        try:
            for index, (identity, entry) in enumerate(entered):
                if identity == id(optimizer):
                    del entered[index:]
                    # The step ends before the phase does, so that what follows belongs to the next step.
                    steps.on_optimizer_step(optimizer)
                    tracker.leave(entry)
                    break
        except Exception as error:  # edge: hook
            guard.fail(error)

    context.undo.append(register_optimizer_step_pre_hook(before).remove)
    context.undo.append(register_optimizer_step_post_hook(after).remove)
