"""DeepSpeed: its engine's forward pass, the loss before it is scaled, and its step, which ends one of the job's.

ZeRO calls torch's optimizer once per parameter group and sums up its own gradient norm, so only the engine knows when
a step is over, whether it was skipped for an overflow, and the norm.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ..support.patch import Patch
from .context import HookContext
from .forward import wrap_forward
from .own_step import own_step, unscaled_loss

ENGINE = "deepspeed.runtime.engine"


def install(context: HookContext) -> None:
    """Lets DeepSpeed's engine be patched as soon as it is imported."""
    context.imports.when_imported(ENGINE, functools.partial(_patch, context))


def _patch(context: HookContext, module: ModuleType) -> None:
    engine = module.DeepSpeedEngine
    for name, wrap in (
        ("forward", functools.partial(wrap_forward, context=context)),
        ("backward", functools.partial(unscaled_loss, context=context)),
        # ``step`` comes once per microstep, the pipeline engine's schedule calls this one: once per step in both.
        ("_take_model_step", functools.partial(own_step, context=context, before=_before, outcome=_outcome)),
    ):
        if name in vars(engine):
            context.patches.install(Patch(f"deepspeed.{name}", [(engine, name)], wrap))


def _before(engine: Any) -> Any:
    return engine.skipped_steps


def _outcome(engine: Any, skipped_before: Any, result: Any) -> tuple[bool, Any]:
    return engine.skipped_steps != skipped_before, getattr(engine, "_global_grad_norm", None)
