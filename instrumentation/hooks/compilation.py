"""torch.compile: the compile phase through dynamo's own callbacks, and our own code kept out of its traces."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...telemetry.vocabulary import Phase
from .context import HookContext

_COMPILE = int(Phase.COMPILE)
DYNAMO = "torch._dynamo"


def install(context: HookContext) -> None:
    """Lets compilation be seen as soon as torch._dynamo is imported.

    Importing it here would cost every job a second.
    """
    context.imports.when_imported(DYNAMO, lambda module: _install(module, context))


def _install(dynamo: ModuleType, context: HookContext) -> None:
    from torch._dynamo import callback, trace_rules

    # Frames of our wrappers are skipped as those of torch.nn are, so that what dynamo sees of the model, its graph
    # breaks and its graphs stay the same with and without us (tried with DDP inside and outside of torch.compile).
    trace_rules.add(__name__.rpartition(".hooks.")[0])
    tracker = context.tracker
    entered: list[int] = []

    # 2.6 calls without arguments and nests; later releases pass CallbackArgs and call once per outermost compilation.
    def started(*_: Any) -> None:
        if context.candidates is not None:
            context.candidates.close()
        entered.append(tracker.enter(_COMPILE))

    def ended(*_: Any) -> None:
        if entered:
            tracker.leave(entered.pop())

    callback.on_compile_start(started)
    callback.on_compile_end(ended)

    def undo() -> None:
        callback.callback_handler.remove_start_callback(started)
        callback.callback_handler.remove_end_callback(ended)

    context.undo.append(undo)
