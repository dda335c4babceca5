"""Optimizer steps: phase and step count, through torch's own global hooks."""

from __future__ import annotations

from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..trackers.optimizer_edges import make_optimizer_edges
from .context import HookContext


def install(context: HookContext) -> None:
    """Registers torch's two global optimizer hooks: phase and count of the steps of every optimizer."""
    edges = make_optimizer_edges(
        context.tracker,
        context.steps.on_optimizer_step,
        context.poll_completions,
        context.open_operations,
        context.guard("optimizer"),
    )
    begin, end = edges.begin, edges.end
    inside_step = context.inside_step
    guard, see = context.guard("copied_states"), None if context.saves is None else context.saves.copied.see

    # Functions in Python, since Dynamo traces them: what it cannot see into would break the graph of the optimizer.
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling() and not inside_step:
            begin(optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling() and not inside_step:
            end(optimizer)
            if see is not None and guard.enabled:
                try:
                    see(optimizer)
                except Exception as error:  # edge: hook
                    guard.fail(error)

    context.undo.append(register_optimizer_step_pre_hook(before).remove)
    context.undo.append(register_optimizer_step_post_hook(after).remove)
