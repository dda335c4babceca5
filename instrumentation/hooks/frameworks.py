"""Lightning, Hugging Face, DeepSpeed, Megatron and torchtitan: what they do past torch, or around it.

Most of what a framework does is seen where it calls torch. Here is the rest: phases that it enters itself (a checkpoint
is more than the write), and through ``deepspeed`` and ``megatron`` steps of optimizers that are not torch's. Patched
when the job has imported the module; names that a release lacks are left out.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from . import deepspeed, framework_saves, megatron
from .context import HookContext, phase_wrapper
from .own_step import unscaled_loss

_RESTORE, _EVAL, _FORWARD = Phase.RESTORE, Phase.EVAL, Phase.FORWARD
_OTHER = int(Phase.OTHER)

#: module, class ("" = the module's own function), name, phase; saves are in ``framework_saves``
PHASES = (
    *(
        entry
        for package in ("lightning.pytorch", "pytorch_lightning")
        for entry in (
            (f"{package}.trainer.connectors.checkpoint_connector", "_CheckpointConnector", "restore", _RESTORE),
            (f"{package}.loops.evaluation_loop", "_EvaluationLoop", "run", _EVAL),
            (f"{package}.strategies.strategy", "Strategy", "training_step", _FORWARD),
        )
    ),
    ("lightning.fabric.fabric", "Fabric", "load", _RESTORE),
    ("transformers.trainer", "Trainer", "_load_from_checkpoint", _RESTORE),
    ("transformers.trainer", "Trainer", "evaluate", _EVAL),
    ("accelerate.accelerator", "Accelerator", "load_state", _RESTORE),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "load_checkpoint", _RESTORE),
    ("megatron.core.dist_checkpointing.serialization", "", "load", _RESTORE),
    ("torchtitan.components.checkpointer.dcp", "CheckpointManager", "dcp_load", _RESTORE),
    ("torchtitan.components.validate", "Validator", "validate", _EVAL),
)


def install(context: HookContext) -> None:
    """Lets each framework be patched as soon as it is imported; nothing is imported here."""
    for module_name in dict.fromkeys(entry[0] for entry in PHASES):
        context.imports.when_imported(module_name, functools.partial(_patch_phases, context))
    context.imports.when_imported("accelerate.accelerator", functools.partial(_patch_accelerate, context))
    context.imports.when_imported("torchtitan.distributed.utils", functools.partial(_patch_titan_clipping, context))
    deepspeed.install(context)
    megatron.install(context)
    framework_saves.install(context)


def _patch_phases(context: HookContext, module: ModuleType) -> None:
    for module_name, class_name, name, phase in PHASES:
        owner = getattr(module, class_name, None) if class_name else module
        if module_name != module.__name__ or name not in vars(owner or object):
            continue
        places = [(owner, name)]
        package = sys.modules.get(framework_saves.HANDED_ON.get(module_name, ""))
        if package is not None:
            places.append((package, name))
        wrap: Callable[..., Any] = functools.partial(phase_wrapper, tracker=context.tracker, phase=int(phase))
        if phase is _EVAL:
            wrap = functools.partial(_evaluation, context)
        context.patches.install(Patch(f"{module_name}.{name}", places, wrap))


def _evaluation(context: HookContext, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function is the whole evaluation: the model's ``eval()`` in it says no more once it has returned.

    Frameworks leave the model in that mode, or put it back without a call, and fetch the next batch meanwhile.
    """
    tracker = context.tracker
    in_phase = phase_wrapper(original, tracker, int(_EVAL))

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        before = tracker.base
        result = in_phase(*args, **kwargs)
        if before != _EVAL and tracker.base == _EVAL:
            tracker.set_base(_OTHER)
        return result

    return evaluate


def _patch_accelerate(context: HookContext, module: ModuleType) -> None:
    accelerator = getattr(module, "Accelerator", None)
    if accelerator is not None and "backward" in vars(accelerator):
        wrap = functools.partial(unscaled_loss, context=context)
        context.patches.install(Patch("accelerate.backward", [(accelerator, "backward")], wrap))


def _patch_titan_clipping(context: HookContext, module: ModuleType) -> None:
    """torchtitan adds up the norm over its own meshes, past ``torch.nn.utils.clip_grad_norm_``."""
    if "clip_grad_norm_" not in vars(module):
        return
    grad_norms, tracker = context.grad_norms, context.tracker

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            if tracker.enabled and not is_dynamo_compiling():
                grad_norms.read(norm)
            return norm

        return clip_grad_norm_

    context.patches.install(Patch("torchtitan.clip_grad", [(module, "clip_grad_norm_")], make))
