"""Gradient norm: the value that ``clip_grad_norm_`` computes anyway."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ..support.patch import Patch
from .context import HookContext


def install(context: HookContext) -> None:
    """Patch ``torch.nn.utils.clip_grad_norm_``; its result is read, never waited for."""
    grad_norms, tracker = context.grad_norms, context.tracker

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            if not is_dynamo_compiling() and tracker.enabled:
                grad_norms.read(norm)
            return norm

        return clip_grad_norm_

    places = [(torch.nn.utils.clip_grad, "clip_grad_norm_"), (torch.nn.utils, "clip_grad_norm_")]
    context.patches.install(Patch("clip_grad", places, make))
