"""Optimizer steps: phase and step count, through torch's own global hooks."""

from __future__ import annotations

import threading
from threading import get_ident
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
    tracker, steps = context.tracker, context.steps
    enter, leave, on_step = tracker.enter, tracker.leave, steps.on_optimizer_step
    poll_completions, open_operations = context.poll_completions, context.open_operations
    entered: list[tuple[int, int]] = []  # optimizer, phase entry
    guard = context.guard("optimizer")
    main_thread = threading.main_thread().ident

    def drop_raised(identity: int) -> None:
        """Steps of optimizers that raised have no end of their own."""
        for index, (known, entry) in enumerate(entered):
            if known == identity:
                leave(entry)
                del entered[index:]
                break
        if len(entered) >= MAX_NESTED:
            entered.clear()

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or not (guard.enabled and tracker.enabled) or get_ident() != main_thread:
            return
        try:
            if open_operations:
                poll_completions()
            if entered:
                drop_raised(id(optimizer))
            entered.append((id(optimizer), enter(_OPTIMIZER, left_open=True)))
        except Exception as error:  # edge: hook
            guard.fail(error)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or not (entered and guard.enabled) or get_ident() != main_thread:
            return
        try:
            identity = id(optimizer)
            for index in range(len(entered) - 1, -1, -1):
                if entered[index][0] == identity:
                    entry = entered[index][1]
                    del entered[index:]
                    # The step ends before the phase does, so that what follows belongs to the next step.
                    on_step(optimizer)
                    leave(entry)
                    break
        except Exception as error:  # edge: hook
            guard.fail(error)

    context.undo.append(register_optimizer_step_pre_hook(before).remove)
    context.undo.append(register_optimizer_step_post_hook(after).remove)
