"""Evaluation: from ``model.eval()`` until ``model.train()``, of the job's own model only.

Submodules in eval mode (frozen batch norms) and other models (teachers) do not count: only the job's model, which DDP,
FSDP or a forward pass with gradients made known. A backward pass ends the phase as well, and so does the model's
``training`` when a framework sets it without a call.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from .context import HookContext

_EVAL, _INIT, _OTHER = int(Phase.EVAL), int(Phase.INIT), int(Phase.OTHER)


def install(context: HookContext) -> None:
    """Patches ``nn.Module.train``, which ``eval`` calls: the mode of a root model begins and ends the evaluation phase.

    It runs once per submodule, so it only looks up an id.
    """
    tracker, roots, candidates = context.tracker, context.roots, context.candidates
    nested = [0]

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return original(self, *args, **kwargs)
            if id(self) in roots:
                mode = bool(args[0] if args else kwargs.get("mode", True))
                if mode and tracker.base == _EVAL:
                    tracker.set_base(_OTHER)
                elif not mode and tracker.base in (_INIT, _OTHER):
                    context.evaluated = weakref.ref(self)
                    tracker.set_base(_EVAL)
            if nested[0]:
                return original(self, *args, **kwargs)
            if candidates is not None:
                candidates.add(self)
            nested[0] = 1
            try:
                return original(self, *args, **kwargs)
            finally:
                nested[0] = 0

        return train

    context.patches.install(Patch("evaluation", [(torch.nn.Module, "train")], make))
