"""Checkpoints written and read: ``torch.save``/``load`` and torch.distributed.checkpoint."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.serialization
from torch.compiler import is_dynamo_compiling

from ...telemetry.checkpoint_states import SaveWay
from ...telemetry.ring_layout import CHECKPOINT_READ
from ...telemetry.vocabulary import EventKind, Phase
from ..support.patch import Patch
from ..trackers.checkpoint_identity import checkpoint_number
from .context import HookContext, phase_wrapper
from .saving import argument, by_futures, saving

DISTRIBUTED_CHECKPOINT = "torch.distributed.checkpoint"


def install(context: HookContext) -> None:
    """Patch the plain functions now and the distributed ones once they are imported."""
    read = _Reads(context)
    torch_save = functools.partial(
        saving, context, way=SaveWay.TORCH_SAVE, place_of=argument(1, "f"), state_at=0, only_with_place=True
    )
    context.patches.install(Patch("save", [(torch.serialization, "save"), (torch, "save")], torch_save))
    torch_load = functools.partial(read.noted, place_of=argument(0, "f"))
    context.patches.install(Patch("load", [(torch.serialization, "load"), (torch, "load")], torch_load))

    def patch_distributed(module: ModuleType) -> None:
        dcp_save = functools.partial(saving, context, way=SaveWay.DCP_SAVE, place_of=_place_of_dcp, state_at=0)
        dcp_async_save = functools.partial(
            saving, context, way=SaveWay.DCP_ASYNC_SAVE, place_of=_place_of_dcp, state_at=0
        )
        if context.saves is not None:
            dcp_async_save.keywords["completes"] = by_futures(context)
        for name, submodule, wrap in (
            ("save", "state_dict_saver", dcp_save),
            ("async_save", "state_dict_saver", dcp_async_save),
            ("load", "state_dict_loader", functools.partial(read.noted, place_of=_place_of_dcp)),
        ):
            places = [(module, name)]
            if hasattr(module, submodule):
                places.insert(0, (getattr(module, submodule), name))
            context.patches.install(Patch(f"dcp_{name}", places, wrap))

    context.imports.when_imported(DISTRIBUTED_CHECKPOINT, patch_distributed)


def _place_of_dcp(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``checkpoint_id``, which only its name gives; else the path of the storage's writer or reader."""
    if kwargs.get("checkpoint_id") is not None:
        return kwargs["checkpoint_id"]
    for name in ("storage_writer", "storage_reader"):
        if (path := getattr(kwargs.get(name), "path", None)) is not None:
            return path
    return None


class _Reads:
    """Notes which checkpoint was read, once the call has returned: the outermost one of a thread."""

    def __init__(self, context: HookContext) -> None:
        self._append = context.append_event
        self._context = context
        self._guard = context.guard("checkpoint_place")
        self._thread = threading.local()

    def noted(
        self, original: Callable[..., Any], place_of: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
    ) -> Callable[..., Any]:
        in_phase = phase_wrapper(original, self._context.tracker, int(Phase.RESTORE))
        thread, guard = self._thread, self._guard

        @functools.wraps(original)
        def with_place(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not guard.enabled or getattr(thread, "is_inside", False):
                return in_phase(*args, **kwargs)
            thread.is_inside = True
            try:
                result = in_phase(*args, **kwargs)
            finally:
                thread.is_inside = False
            try:
                if number := checkpoint_number(place_of(args, kwargs)):
                    self._append(EventKind.CHECKPOINT, value=number, extra=CHECKPOINT_READ)
            except Exception as error:  # edge: hook
                guard.fail(error)
            return result

        return with_place
