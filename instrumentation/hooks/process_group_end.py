"""The end of communication: ``destroy_process_group`` of the whole world begins the exit phase."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ...telemetry.vocabulary import Phase
from ..support.patch import Patch
from .context import HookContext

_EXIT = int(Phase.EXIT)


def install(context: HookContext) -> None:
    """Patches ``destroy_process_group``: that of the whole world begins the exit phase.

    What runs after it (a last save) is shown as what it is.
    """
    tracker = context.tracker

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            group = args[0] if args else kwargs.get("group")
            if group is None or group is dist.group.WORLD:
                tracker.set_base(_EXIT)
            return original(*args, **kwargs)

        return destroy_process_group

    places = [(c10d, "destroy_process_group"), (dist, "destroy_process_group")]
    context.patches.install(Patch("process_group_end", places, make))
