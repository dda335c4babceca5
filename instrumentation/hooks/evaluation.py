"""Evaluation: from ``model.eval()`` until ``model.train()``, of the job's own model only.

Submodules in eval mode (frozen batch norms) and other models (teachers) do not count: only modules that DDP or FSDP
made known as the job's model. A backward pass ends the phase as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..patch import Patch
from .context import HookContext

_EVAL, _INIT, _OTHER = int(Phase.EVAL), int(Phase.INIT), int(Phase.OTHER)


def install(context: HookContext) -> None:
    """Patch ``nn.Module.train``; ``eval`` calls it. It runs once per submodule, so it only looks up an id."""
    tracker, roots = context.tracker, context.roots

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_dynamo_compiling() and id(self) in roots:
                mode = bool(args[0] if args else kwargs.get("mode", True))
                if mode and tracker.base == _EVAL:
                    tracker.set_base(_OTHER)
                elif not mode and tracker.base in (_INIT, _OTHER):
                    tracker.set_base(_EVAL)
            return original(self, *args, **kwargs)

        return train

    context.patches.install(Patch("evaluation", [(torch.nn.Module, "train")], make))
