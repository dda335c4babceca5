"""The wait for the other ranks: ``init_process_group`` returns when all of them have come.

A rank in there is waiting, one that never called it is waited for; from the phase alone, ``init`` for both, nobody
could tell. Written to the definitions, twice in the life of most jobs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from time import monotonic_ns
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ...telemetry import ring_layout as layout
from ..support.patch import Patch
from .context import HookContext

Define = Callable[[int, int, dict[str, Any]], bool]


def install(context: HookContext, define: Define) -> None:
    """Patches ``init_process_group`` under every name that it goes by: a definition is written before and after it.

    define: the writer's.
    """
    guard = context.guard("joining")

    def note(args: tuple[Any, ...], kwargs: dict[str, Any], joined: bool) -> None:
        if guard.enabled:
            try:
                entry = {"timeout_s": _timeout_s(args, kwargs), "joined": joined, "time_ns": monotonic_ns()}
                define(layout.DEFINITION_JOINING, 0, entry)
            except Exception as error:  # edge: hook
                guard.fail(error)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            note(args, kwargs, False)
            result = original(*args, **kwargs)
            note(args, kwargs, True)
            return result

        return init_process_group

    modules = [c10d, dist, sys.modules.get("torch.distributed.device_mesh")]
    places = [(module, "init_process_group") for module in modules if hasattr(module, "init_process_group")]
    context.patches.install(Patch("joining", places, make))


def _timeout_s(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """What the call names (its third parameter), else torch's own for the backend."""
    timeout = kwargs.get("timeout", args[2] if len(args) > 2 else None)
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    backend = kwargs.get("backend", args[0] if args else None)
    default = getattr(c10d, "default_pg_nccl_timeout", None) if backend == "nccl" else None
    return float((default or c10d.default_pg_timeout).total_seconds())
