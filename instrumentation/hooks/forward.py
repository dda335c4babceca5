"""Forward passes of the root model: DDP, FSDP1 and FSDP2. Never hooks on every module.

The wrapped models also tell which module is the job's model, whose train/eval mode means something (see evaluation).
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
from .context import HookContext

_FORWARD, _EVAL = int(Phase.FORWARD), int(Phase.EVAL)
#: Marks a class's forward as seen here, so that nobody looks for its calls elsewhere.
SEEN = "__whichrank_seen__"
FSDP2_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def install(context: HookContext) -> None:
    """Patches the forward passes of DDP now, and those of the FSDPs as soon as they are imported."""
    from torch.nn.parallel import DistributedDataParallel

    def patch_wrapper_class(name: str, owner: Any) -> None:
        context.patches.install(Patch(name, [(owner, "forward")], lambda original: wrap_forward(original, context)))

    patch_wrapper_class("forward_ddp", DistributedDataParallel)
    context.imports.when_imported(
        FSDP1, lambda module: patch_wrapper_class("forward_fsdp1", module.FullyShardedDataParallel)
    )
    context.imports.when_imported(FSDP2_STATE, lambda module: _install_fsdp2(module, context))


def wrap_forward(original: Callable[..., Any], context: HookContext) -> Callable[..., Any]:
    """The forward of a wrapper class, so wrapped that it runs in the forward phase, or in that of evaluation.

    Instances of the class hold the model in ``module``.
    """
    tracker, roots = context.tracker, context.roots
    enter, leave, unwind = tracker.enter, tracker.leave, tracker.leave_by_exception
    guard = context.guard("forward")

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(self, *args, **kwargs)
        phase = _FORWARD
        if guard.enabled:
            try:
                if id(self) not in roots:
                    context.wrapped(self)
                    context.wrapped(self.module)
                if not torch.is_grad_enabled():
                    phase = _EVAL
                elif tracker.base == _EVAL:
                    context.end_stale_evaluation()
            except Exception as error:  # edge: hook
                guard.fail(error)
        entered = enter(phase)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            unwind(entered, error)
            raise
        leave(entered)
        return result

    setattr(forward, SEEN, True)
    return forward


def _install_fsdp2(module: ModuleType, context: HookContext) -> None:
    """FSDP2 has no wrapper module: its root state's pre- and post-forward are the edges.

    The post-forward is bound when ``fully_shard`` runs; if that was before us the end of forward is not seen, and the
    phase ends where the next one begins.
    """
    tracker = context.tracker
    guard = context.guard("forward_fsdp2")
    open_entry = [0]
    seen: set[int] = set()

    def make_before(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _root_pre_forward(self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_dynamo_compiling() and guard.enabled:
                try:
                    if self._state_ctx.iter_forward_root is None:
                        if id(module) not in seen:  # not ``roots``: its first call may have made it one already
                            seen.add(id(module))
                            context.wrapped(module)
                        phase = _FORWARD if torch.is_grad_enabled() else _EVAL
                        if phase == _FORWARD and tracker.base == _EVAL:
                            context.end_stale_evaluation()
                        tracker.leave(open_entry[0])
                        open_entry[0] = tracker.enter(phase, left_open=True)
                except Exception as error:  # edge: hook
                    guard.fail(error)
            return original(self, module, *args, **kwargs)

        return _root_pre_forward

    def make_after(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _post_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not guard.enabled:
                return original(self, *args, **kwargs)
            is_root = False
            try:
                is_root = self._state_ctx.iter_forward_root is self
            except Exception as error:  # edge: hook
                guard.fail(error)
            result = original(self, *args, **kwargs)
            if is_root:
                tracker.leave(open_entry[0])
                open_entry[0] = 0
            return result

        return _post_forward

    context.patches.install(Patch("forward_fsdp2_begin", [(module.FSDPState, "_root_pre_forward")], make_before))
    context.patches.install(Patch("forward_fsdp2_end", [(module.FSDPState, "_post_forward")], make_after))
