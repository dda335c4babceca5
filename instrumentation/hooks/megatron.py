"""Megatron-core: its own DDP, its optimizers, and the backward pass of its pipeline schedules.

Its optimizers wrap torch's without being one, chain several, skip updates, and return the gradient norm. With
``deallocate_pipeline_outputs`` a schedule calls the autograd engine itself, past ``torch.autograd.backward``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...telemetry.vocabulary import Phase
from ..patch import Patch
from .context import HookContext
from .forward import wrap_forward
from .own_step import own_step

DATA_PARALLEL = "megatron.core.distributed.data_parallel_base"
OPTIMIZERS = "megatron.core.optimizer.optimizer"
SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_BACKWARD = int(Phase.BACKWARD)


def install(context: HookContext) -> None:
    """Arm for the imports."""
    context.imports.when_imported(DATA_PARALLEL, functools.partial(_patch_data_parallel, context))
    context.imports.when_imported(OPTIMIZERS, functools.partial(_patch_optimizers, context))
    context.imports.when_imported(SCHEDULES, functools.partial(_patch_schedules, context))


def _patch_data_parallel(context: HookContext, module: ModuleType) -> None:
    wrap = functools.partial(wrap_forward, context=context)
    context.patches.install(Patch("megatron.forward", [(module._BaseDataParallel, "forward")], wrap))


def _patch_optimizers(context: HookContext, module: ModuleType) -> None:
    wrap = functools.partial(own_step, context=context, before=lambda optimizer: None, outcome=_outcome)
    for name in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer"):
        owner = getattr(module, name, None)
        if owner is not None and "step" in vars(owner):
            context.patches.install(Patch(f"megatron.{name}", [(owner, "step")], wrap))


def _outcome(optimizer: Any, state: Any, result: Any) -> tuple[bool, Any]:
    """``step`` returns (whether parameters were updated, gradient norm, zeros in the gradients)."""
    updated, grad_norm = result[0], result[1]
    return not updated, grad_norm


def _patch_schedules(context: HookContext, module: ModuleType) -> None:
    if "custom_backward" in vars(module):
        wrap = functools.partial(_wrap_custom_backward, context=context)
        context.patches.install(Patch("megatron.backward", [(module, "custom_backward")], wrap))


def _wrap_custom_backward(original: Callable[..., Any], context: HookContext) -> Callable[..., Any]:
    tracker = context.tracker

    @functools.wraps(original)
    def custom_backward(output: Any, grad_output: Any) -> Any:
        entered = tracker.enter(_BACKWARD)
        if entered and grad_output is None:
            context.losses.read(output)
        try:
            result = original(output, grad_output)
        except BaseException as error:
            tracker.leave_by_exception(entered, error)
            raise
        if entered:
            context.steps.on_backward()
        tracker.leave(entered)
        return result

    return custom_backward
