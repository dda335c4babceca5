"""Mixed precision: updates that a GradScaler skips, and the loss before it is scaled.

A skipped update fires no optimizer hook at all, and the backward pass gets the scaled loss, which is not the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ..support.patch import Patch
from .context import KNOWN, HookContext


def install(context: HookContext) -> None:
    """Patches ``GradScaler.step``, to see skipped updates, and ``GradScaler.scale``, to see the unscaled loss."""
    tracker, steps, losses = context.tracker, context.steps, context.losses

    def make_step(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            calls = steps.optimizer_calls
            result = original(self, optimizer, *args, **kwargs)
            if (
                steps.optimizer_calls == calls
                and not context.inside_step
                and isinstance(optimizer, torch.optim.Optimizer)
                and tracker.in_main_thread()
                and not is_dynamo_compiling()
            ):
                steps.on_optimizer_step(optimizer, skipped=True)
            return result

        return step

    def make_scale(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(self: Any, outputs: Any) -> Any:
            scaled = original(self, outputs)
            if (
                context.scaled_loss != KNOWN
                and tracker.enabled
                and tracker.in_main_thread()
                and not is_dynamo_compiling()
            ):
                losses.read(outputs)
                context.scaled_loss = id(scaled)
            return scaled

        return scale

    scaler = torch.amp.GradScaler
    context.patches.install(Patch("grad_scaler_step", [(scaler, "step")], make_step))
    context.patches.install(Patch("grad_scaler_scale", [(scaler, "scale")], make_scale))
