"""The faults that only the rank itself can do: an exception, a call too few or too many, a NaN in a gradient.

Hooks of torch that are installed only in a job that allowed it; on each call they look at one attribute. They work in
the main thread, right before the optimizer's step or at the next collective, and once per request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...telemetry.injection_words import InsideFault
from ..support.patch import Patch, PatchSet
from .request_watch import RequestWatch

#: Calls of torch.distributed of which one can be left out: all of these return nothing where they are not asynchronous.
SKIPPED_CALLS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)


def install_faults(watch: RequestWatch, patches: PatchSet) -> Callable[[], None]:
    """Installs the hooks; returns what takes out those that are no patches."""
    if dist.is_available():
        for name in SKIPPED_CALLS:
            patches.install(Patch(f"inject_{name}", [(c10d, name), (dist, name)], functools.partial(_skipping, watch)))
        patches.install(
            Patch("inject_ddp", [(DistributedDataParallel, "forward")], functools.partial(_without_sync, watch))
        )

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if watch.waiting is None or is_dynamo_compiling():
            return
        if watch.take(InsideFault.RAISE):
            raise RuntimeError("a fault that was asked for: whichrank inject raise")
        gradient = _first_gradient(optimizer)
        if gradient is None:
            return
        if watch.take(InsideFault.NAN):
            gradient.view(-1)[0] = float("nan")
        elif dist.is_available() and dist.is_initialized() and watch.take(InsideFault.ADD_COLLECTIVE):
            dist.all_reduce(torch.zeros(1, device=gradient.device))

    return register_optimizer_step_pre_hook(before).remove  # type: ignore[no-any-return, unused-ignore]


def _skipping(watch: RequestWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    """The collective, of which one call is left out, as by a branch that one rank does not take."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if watch.waiting is None or is_dynamo_compiling():
            return original(*args, **kwargs)
        is_async = kwargs.get("async_op") or any(argument is True for argument in args)
        if is_async or not watch.take(InsideFault.SKIP_COLLECTIVE):
            return original(*args, **kwargs)
        return None

    return call


def _without_sync(watch: RequestWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    """DDP's forward pass, of which one is as under ``no_sync``: its backward pass exchanges no gradients."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.waiting is None or is_dynamo_compiling() or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        if not self.require_backward_grad_sync or not watch.take(InsideFault.SKIP_COLLECTIVE):
            return original(self, *args, **kwargs)
        self.require_backward_grad_sync = False
        try:
            return original(self, *args, **kwargs)
        finally:
            self.require_backward_grad_sync = True

    return forward


def _first_gradient(optimizer: Any) -> torch.Tensor | None:
    """A gradient on this rank with room for a number that is none: of a floating type, and not empty."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None or not gradient.is_floating_point():
                continue
            local: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            if local.numel() and local.is_contiguous():
                return local
    return None
