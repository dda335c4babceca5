"""Calls the owner's save function, and tells the ring: a save with its states, and what became of the request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import Any

from ...telemetry.checkpoint_states import SaveWay
from ...telemetry.emergency_words import EmergencyState, MissedWhy
from ...telemetry.ring_layout import DEFINITION_EMERGENCY, cut_text, format_ranks
from ...telemetry.vocabulary import Phase
from ..trackers.phases import Phases
from ..trackers.saves import RankSaves
from .agreement import Agreement

#: Requests that a ring takes: its definitions have other guests.
MOST_TOLD = 32
_LONGEST_ERROR = 300


class EmergencySaving:
    """save: of (reason, seconds_left, whole), or fewer of them. define: the ring writer's."""

    def __init__(
        self,
        save: Callable[..., Any],
        saves: RankSaves,
        tracker: Phases,
        define: Callable[[int, int, dict[str, Any]], bool],
    ) -> None:
        self._call, self._takes = save, _count_arguments(save)
        self._saves, self._tracker, self._define = saves, tracker, define
        self._told = 0

    def save(self, agreed: Agreement, step: int, *, whole: bool) -> bool:
        """Saves and tells; whether the save function returned. An exception of it is told and goes no further.

        For the main thread. step: steps of the attempt that the state holds. whole: whether all ranks save this step.
        """
        begin_s = monotonic()
        left_s = max(0.0, agreed.deadline_s - begin_s)
        save = self._saves.enter(SaveWay.EMERGENCY)
        entered = self._tracker.enter(int(Phase.CHECKPOINT), by_hand=True)
        error: Exception | None = None
        try:
            self._call(*(agreed.request.reason, left_s, whole)[: self._takes])
        except Exception as failure:  # edge: the owner's function must not end the training that it is to rescue
            error = failure
        if entered:
            self._tracker.leave(entered)
        self._saves.leave(save, error)
        if error is None:
            self.tell(agreed, EmergencyState.SAVED, step=step, seconds=monotonic() - begin_s)
        else:
            text = cut_text(f"{type(error).__name__}: {error}", _LONGEST_ERROR)
            self.tell(agreed, EmergencyState.FAILED, why=MissedWhy.RAISED, step=step, error=text)
        return error is None

    def tell(
        self,
        agreed: Agreement,
        state: EmergencyState,
        *,
        why: MissedWhy | None = None,
        step: int = 0,
        seconds: float = 0.0,
        error: str = "",
    ) -> None:
        """Tells what became of the request on this rank. Any thread."""
        if self._told >= MOST_TOLD:
            return
        self._told += 1
        said: dict[str, Any] = {
            "request": agreed.number,
            "state": state.value,
            "reason": agreed.request.reason,
            "time_ns": monotonic_ns(),
        }
        if state is EmergencyState.ASKED:
            said["seconds_left"] = round(agreed.request.seconds, 3)
        if why is not None:
            said["why"] = why.value
        if step:
            said["step"] = step
        if seconds:
            said["seconds"] = round(seconds, 6)
        if agreed.missing:
            said["missing"] = format_ranks(list(agreed.missing))
        if error:
            said["error"] = error
        self._define(DEFINITION_EMERGENCY, agreed.number & 0xFFFF, said)


def _count_arguments(save: Callable[..., Any]) -> int:
    """How many of the three the function takes by position."""
    try:
        parameters = inspect.signature(save).parameters.values()
    except (TypeError, ValueError):  # of C, without a signature
        return 0
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 3
    return min(3, sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters))
