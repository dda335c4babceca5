"""Which signals of a node are seen at all: that no fault was told means something only where somebody looks."""

from __future__ import annotations

from ...telemetry.point_columns import value_at
from ...telemetry.records import Samples
from .conditions import EntityState
from .series import Asked

#: Agents tell it every ten seconds; after so long nobody looks any more.
STALE_S = 35.0
#: Told anew at least so often, for those who have lost their state.
AGAIN_S = 300.0
MAX_COLLECTORS = 64


def take_watching(state: EntityState, samples: Samples, asked: Asked, now_s: float) -> None:
    """Remembers which collectors the node's agent says see their source. now_s: Unix seconds by the
    bus, as all here.
    """
    for collector, place in asked.watching:
        if collector in state.watching or len(state.watching) < MAX_COLLECTORS:
            state.watching[collector] = value_at(samples.points, place) > 0
        state.watched_at = now_s


def news_of_watching(state: EntityState, now_s: float) -> dict[str, list[str]] | None:
    """Names of collectors that see and that do not (``sees``, ``blind``); None unless that has changed or is due again.

    What is returned counts as told. None of them sees once the agent is silent for STALE_S.
    """
    if not state.watching:
        return None
    is_stale = now_s >= state.watched_at + STALE_S
    sees = [] if is_stale else sorted(name for name, does in state.watching.items() if does)
    said = {"sees": sees, "blind": sorted(set(state.watching) - set(sees))}
    if said == state.watch_told and (is_stale or now_s < state.watch_told_at + AGAIN_S):
        return None
    state.watch_told, state.watch_told_at = said, now_s
    return said


def next_look_s(state: EntityState) -> float | None:
    """When the silence of the node's agent would be news (Unix seconds of the bus); None where nothing
    was seen last.
    """
    if not state.watch_told.get("sees"):
        return None
    return state.watched_at + STALE_S
