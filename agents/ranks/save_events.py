"""What the ranks of a node tell of their saves, as events: one for all ranks that came to a state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...telemetry.checkpoint_states import SaveState, SaveWay, Tier, unpack_save_extra, unpack_save_head, word
from ...telemetry.printable import printable
from ...telemetry.ring_layout import format_ranks
from ...telemetry.vocabulary import EventKind
from .drain import Drained
from .watched_rank import WatchedRank

#: Events of one drain that are looked at, the newest: of a save that writes many files one is told for each.
_MOST_EVENTS = 1024
#: Places of one event.
_MOST_PLACES = 16
#: Ranks of one event: those of a node.
_MOST_RANKS = 256


@dataclass(slots=True)
class _Told:
    """What is told of one state of one save: time_ns is the last rank's (of a begin the first one's)."""

    rank: WatchedRank
    time_ns: int
    ranks: set[int] = field(default_factory=set)
    size_bytes: int = 0
    seconds: float = 0.0
    places: dict[str, None] = field(default_factory=dict)
    error: str = ""


def saves_told(
    drained: Drained, rank_of_slot: Mapping[int, WatchedRank]
) -> Iterator[tuple[WatchedRank, int, dict[str, Any]]]:
    """(one of the ranks, monotonic ns, attributes of a CHECKPOINT_STATE) for each state that saves came to.

    Ranks that save the same step in the same way are told together, in the order in which each came to its states.
    """
    told: dict[tuple[str, int, int, int, int, int], _Told] = {}
    #: Of one rank a step may be saved several times, in turn or at once: each time is told.
    times: Counter[tuple[int, int, int, int]] = Counter()
    events, rings = drained.events, drained.ring
    for place in np.flatnonzero(events["kind"] == int(EventKind.SAVE))[-_MOST_EVENTS:]:
        event, rank = events[place], rank_of_slot[int(rings[place])]
        head = unpack_save_head(int(event["group"]))
        step, size_bytes = unpack_save_extra(int(event["extra"]))
        time = (rank.slot, step, head.state, head.way)
        key = (rank.identity.attempt, step, head.state, head.tier, head.way, times[time])
        times[time] += 1
        each = told.get(key)
        if each is None:
            each = told[key] = _Told(rank, int(event["time_ns"]))
        _add(each, event, rank, head.state, size_bytes)
    for (_, step, state, tier, way, _), each in told.items():
        if state in _STATES:
            yield each.rank, each.time_ns, _attributes(each, step, state, tier, way)


_STATES = frozenset(int(state) for state in SaveState)
_WITH_PLACE = frozenset({int(SaveState.BEGUN), int(SaveState.PART)})


def _add(told: _Told, event: np.void, rank: WatchedRank, state: int, size_bytes: int) -> None:
    time_ns, value = int(event["time_ns"]), int(event["value"])
    told.time_ns = min(told.time_ns, time_ns) if state == SaveState.BEGUN else max(told.time_ns, time_ns)
    if len(told.ranks) < _MOST_RANKS:
        told.ranks.add(rank.rank)
    told.size_bytes += size_bytes
    if state in _WITH_PLACE:
        # Where all write parts, all name one place: of a node local rank 0 speaks.
        if value and len(told.places) < _MOST_PLACES and rank.ring.header.local_rank == 0:
            told.places[f"{value & 0xFFFF_FFFF_FFFF_FFFF:016x}"] = None
    elif 0 < value <= time_ns:
        told.seconds = max(told.seconds, (time_ns - value) * 1e-9)
    if state == SaveState.FAILED and not told.error:
        told.error, told.rank = rank.reading.save_errors.get(int(event["seq"]) & 0xFFFF, ""), rank


def _attributes(told: _Told, step: int, state: int, tier: int, way: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "state": word(SaveState(state)),
        "step": step,
        "ranks": format_ranks(list(told.ranks)),
        "tier": word(Tier(tier)) if tier in set(Tier) else word(Tier.UNKNOWN),
        "way": word(SaveWay(way)) if way in set(SaveWay) else word(SaveWay.OTHER),
    }
    if told.size_bytes:
        attributes["bytes"] = told.size_bytes
    if told.seconds:
        attributes["seconds"] = round(told.seconds, 6)
    if told.places:
        attributes["checkpoints"] = tuple(told.places)
    if told.error:
        attributes["error"] = printable(told.error)
    return attributes
