"""Wrappers around functions that write checkpoints: the phase, and what becomes of the save (``trackers.saves``)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...telemetry.checkpoint_states import SaveWay, Tier
from ...telemetry.vocabulary import Phase
from ..support.guard import Guard
from ..trackers.checkpoint_identity import checkpoint_number, checkpoint_tier
from ..trackers.saves import Save
from .context import HookContext, phase_wrapper

#: The place that a call writes to, from its arguments: a path, a URL, an open file; None where it says none.
PlaceOf = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
#: What a save is handed over to: called with the save and the call's result; False: it was written when it returned.
Completes = Callable[[Save, Any], bool]
#: Of a state so many values are looked at.
_MOST_VALUES = 200_000


def argument(position: int, *names: str) -> PlaceOf:
    """The place is this argument, by position or by one of its names."""

    def place_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        for name in names:
            if kwargs.get(name) is not None:
                return kwargs[name]
        return args[position] if len(args) > position else None

    return place_of


def saving(
    context: HookContext,
    original: Callable[..., Any],
    way: SaveWay,
    place_of: PlaceOf,
    *,
    state_at: int = -1,
    only_with_place: bool = False,
    completes: Completes | None = None,
) -> Callable[..., Any]:
    """The function, so wrapped that its call is a save, or part of the one around it. Same result and exceptions.

    state_at: which positional argument holds the state, to count its bytes; -1 none. only_with_place: a call without a
    place is no save (``torch.save`` into memory). completes: see ``Completes``; then it is handed over first.
    """
    saves, guard = context.saves, Guard(f"save_{way.name.lower()}", context.health)
    in_phase = phase_wrapper(original, context.tracker, int(Phase.CHECKPOINT))
    main_thread = threading.main_thread().ident
    if saves is None:
        return in_phase

    def begin(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, Save | None]:
        named = place_of(args, kwargs)
        place = checkpoint_number(named)
        if not place and only_with_place:
            return 0, None
        tier = checkpoint_tier(named) if place else Tier.UNKNOWN
        state = args[state_at] if 0 <= state_at < len(args) else kwargs.get("state_dict")
        step = None if threading.get_ident() == main_thread else saves.copied.step_of(state)
        entered = saves.enter(way, place, tier, state_bytes(state), step)
        if completes is not None and entered is not None:
            saves.hand_over(place=place)
        return place, entered

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not guard.enabled:
            return in_phase(*args, **kwargs)
        place, entered = 0, None
        try:
            place, entered = begin(args, kwargs)
        except Exception as error:  # edge: hook
            guard.fail(error)
        try:
            result = in_phase(*args, **kwargs)
        except BaseException as error:
            if entered is not None and entered.is_pending:
                saves.failed(entered, error)
            saves.leave(entered, error, place=place)
            raise
        if entered is not None:
            try:
                if completes is not None and entered.is_pending and not completes(entered, result):
                    saves.durable(entered)
            except Exception as error:  # edge: hook
                guard.fail(error)
            saves.leave(entered, place=place)
        return result

    return save


def state_bytes(state: Any) -> int:
    """Bytes of this rank's tensors in a state: nested mappings and sequences; of a sharded one the local part."""
    total, left, seen = 0, [state], 0
    while left and seen < _MOST_VALUES:
        value = left.pop()
        seen += 1
        if isinstance(value, torch.Tensor):
            local = getattr(value, "_local_tensor", value)
            total += local.numel() * local.element_size()
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            left.extend(value)
    return total


def by_futures(context: HookContext) -> Completes:
    """For calls that return a future of the upload, or an answer with one of staging and one of the upload."""
    saves = context.saves
    assert saves is not None

    def completes(save: Save, result: Any) -> bool:
        upload = getattr(result, "upload_completion", result)
        if not hasattr(upload, "add_done_callback"):
            return False

        def over(future: Any) -> None:
            try:
                error = future.exception() if not future.cancelled() else RuntimeError("cancelled")
            except Exception as unknown:  # edge: somebody's future
                error = unknown
            if error is None:
                saves.durable(save)
            else:
                saves.failed(save, error)

        upload.add_done_callback(over)
        staging: Any = getattr(result, "staging_completion", None)
        if hasattr(staging, "add_done_callback"):
            staging.add_done_callback(lambda _: saves.staged(save))
        return True

    return completes
