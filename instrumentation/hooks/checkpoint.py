"""Checkpoints written and read: ``torch.save``/``load`` and torch.distributed.checkpoint."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.serialization
from torch.compiler import is_dynamo_compiling

from ...telemetry.ring_layout import CHECKPOINT_READ, CHECKPOINT_WRITTEN
from ...telemetry.vocabulary import EventKind, Phase
from ..support.guard import Guard
from ..support.patch import Patch
from ..trackers.checkpoint_identity import checkpoint_number
from .context import HookContext, phase_wrapper

DISTRIBUTED_CHECKPOINT = "torch.distributed.checkpoint"
#: name in torch.distributed.checkpoint, submodule that defines it, phase
_DISTRIBUTED = (
    ("save", "state_dict_saver", Phase.CHECKPOINT),
    ("async_save", "state_dict_saver", Phase.CHECKPOINT),
    ("load", "state_dict_loader", Phase.RESTORE),
)


def install(context: HookContext) -> None:
    """Patch the plain functions now and the distributed ones once they are imported."""
    places_named = _Places(context)

    def patch(name: str, places: list[tuple[Any, str]], phase: Phase) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            return places_named.noted(phase_wrapper(original, context.tracker, int(phase)), phase)

        context.patches.install(Patch(name, places, make))

    patch("save", [(torch.serialization, "save"), (torch, "save")], Phase.CHECKPOINT)
    patch("load", [(torch.serialization, "load"), (torch, "load")], Phase.RESTORE)

    def patch_distributed(module: ModuleType) -> None:
        for name, submodule, phase in _DISTRIBUTED:
            places = [(module, name)]
            if hasattr(module, submodule):
                places.insert(0, (getattr(module, submodule), name))
            patch(f"dcp_{name}", places, phase)

    context.imports.when_imported(DISTRIBUTED_CHECKPOINT, patch_distributed)


class _Places:
    """Notes which checkpoint was written or read, once the call has returned: the outermost one of a thread."""

    def __init__(self, context: HookContext) -> None:
        self._append = context.append_event
        self._guard: Guard = context.guard("checkpoint_place")
        self._thread = threading.local()

    def noted(self, original: Callable[..., Any], phase: Phase) -> Callable[..., Any]:
        what = CHECKPOINT_WRITTEN if phase is Phase.CHECKPOINT else CHECKPOINT_READ
        thread, guard = self._thread, self._guard

        @functools.wraps(original)
        def with_place(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not guard.enabled or getattr(thread, "is_inside", False):
                return original(*args, **kwargs)
            thread.is_inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                thread.is_inside = False
            try:
                if number := checkpoint_number(_place_of(args, kwargs, what)):
                    self._append(EventKind.CHECKPOINT, value=number, extra=what)
            except Exception as error:  # edge: hook
                guard.fail(error)
            return result

        return with_place


def _place_of(args: tuple[Any, ...], kwargs: dict[str, Any], what: int) -> Any:
    """``save(object, place)``, ``load(place)``, or by the names that torch gives to it; None where it is not said."""
    for name in ("checkpoint_id", "f"):
        if kwargs.get(name) is not None:
            return kwargs[name]
    for name in ("storage_writer", "storage_reader"):
        if (path := getattr(kwargs.get(name), "path", None)) is not None:
            return path
    place = 1 if what == CHECKPOINT_WRITTEN else 0
    return args[place] if len(args) > place else None
