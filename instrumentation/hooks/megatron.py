"""Megatron-core: its own DDP, its optimizers, and the losses and backward passes of its schedules.

Its optimizers wrap torch's without being one, chain several, skip updates, and return the gradient norm. With
``deallocate_pipeline_outputs`` a schedule calls the autograd engine itself, past ``torch.autograd.backward``, with a
loss whose memory it has given up by then: what stands there is anything. So the loss is read where it is calculated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from .context import KNOWN, HookContext
from .forward import wrap_forward
from .own_step import own_step

DATA_PARALLEL = "megatron.core.distributed.data_parallel_base"
OPTIMIZERS = "megatron.core.optimizer.optimizer"
SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_BACKWARD = int(Phase.BACKWARD)


def install(context: HookContext) -> None:
    """Lets Megatron's DDP, optimizers and schedules be patched as soon as they are imported."""
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
    for name, wrap in (
        ("forward_step_calc_loss", _wrap_loss),
        ("backward_step", _wrap_backward_step),
        ("custom_backward", _wrap_custom_backward),
    ):
        if name in vars(module):
            make = functools.partial(wrap, context=context)
            context.patches.install(Patch(f"megatron.{name}", [(module, name)], make))


def _wrap_loss(original: Callable[..., Any], context: HookContext) -> Callable[..., Any]:
    """Returns (loss, number of tokens) on the last stage of a pipeline, on others (activations, 0)."""
    tracker, losses = context.tracker, context.losses

    @functools.wraps(original)
    def forward_step_calc_loss(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not is_dynamo_compiling() and tracker.enabled and tracker.in_main_thread() and torch.is_grad_enabled():
            losses.read(result[0] if type(result) is tuple and result else None)  # no scalar, no loss
        return result

    return forward_step_calc_loss


def _wrap_backward_step(original: Callable[..., Any], context: HookContext) -> Callable[..., Any]:
    """What is passed on to torch is scaled, or given up: the loss has been read."""

    @functools.wraps(original)
    def backward_step(*args: Any, **kwargs: Any) -> Any:
        context.scaled_loss = KNOWN
        try:
            return original(*args, **kwargs)
        finally:
            context.scaled_loss = 0

    return backward_step


def _wrap_custom_backward(original: Callable[..., Any], context: HookContext) -> Callable[..., Any]:
    tracker = context.tracker

    @functools.wraps(original)
    def custom_backward(*args: Any, **kwargs: Any) -> Any:
        entered = tracker.enter(_BACKWARD)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            tracker.leave_by_exception(entered, error)
            raise
        if entered:
            context.steps.on_backward()
        tracker.leave(entered)
        return result

    return custom_backward
