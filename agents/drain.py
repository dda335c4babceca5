"""Draining: all new events of all rings of the node in one array, what was lost or torn counted.

Runs in the polling thread. Live rings are read up to their head; a ring whose writer is gone also past it, because a
writer can die between slot and head. Never waits for a writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.ring_layout import EVENT_BYTES
from .health import AgentHealth
from .ring_events import EVENT, decode_slots, overwritten, salvage_events, valid_events
from .settings import AgentSettings
from .watched_rank import WatchedRank

#: A slot taken but not yet written (its thread was interrupted) is waited for this many drains, then skipped.
_PATIENCE_DRAINS = 4
#: Slots probed past the head of a dead writer: one per thread that can have held a number.
_PROBE_SLOTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Events of one drain, per ring contiguous and in their order; ``ring`` is the slot of each event's ring."""

    events: NDArray[np.void]
    ring: NDArray[np.uint16]


def drain_rings(ranks: Sequence[WatchedRank], now_ns: int, settings: AgentSettings, health: AgentHealth) -> Drained:
    """Read what is new in each ring since its last drain (by the hot words of its last look)."""
    parts: list[bytes] = []
    slots: list[int] = []
    counts: list[int] = []
    for rank in ranks:
        final = not rank.alive
        if rank.hot.event_head == rank.tail and not final:
            continue
        first, raw = _read_ring(rank, health, final)
        if raw:
            parts.append(raw)
            slots.append(rank.slot)
            counts.append(len(raw) // EVENT_BYTES)
            rank.remember(now_ns, first, raw, int(settings.history_s * 1e9), settings.history_bytes_per_ring)
    events = decode_slots(b"".join(parts)) if parts else np.zeros(0, EVENT)
    health.events_read += len(events)
    return Drained(events=events, ring=np.repeat(np.array(slots, np.uint16), counts))


def _read_ring(rank: WatchedRank, health: AgentHealth, final: bool) -> tuple[int, bytes]:
    """(index of the first event, raw complete events) of one ring; moves its tail."""
    ring, slots, head = rank.ring, rank.ring.header.event_slots, rank.hot.event_head
    if rank.head_damaged or head < rank.tail or head >= 1 << 62:
        return _salvage(rank, health, f"event head is {head}, {rank.tail} were already read")
    behind = head - rank.tail
    lapped = max(behind - slots, 0)
    behind -= lapped
    first = rank.tail + lapped
    raw = ring.read_events(first, behind) if behind else b""
    if len(raw) < behind * EVENT_BYTES:
        health.report(
            f"ring {ring.path}: file ends inside the events; {len(raw) // EVENT_BYTES} of {behind} could be read"
        )
        raw = raw[: len(raw) // EVENT_BYTES * EVENT_BYTES]
    events = decode_slots(raw)
    ok = valid_events(events, first)
    if behind == slots and not ok.any():
        return _salvage(rank, health, f"no event of the last lap before head {head} is in its slot")
    health.events_lost += lapped
    rank.tail = first + behind
    if not ok.all():
        first, raw = _skip_broken(rank, health, events, ok, first, final)
    if final:
        raw += _probe_past_head(rank)
    return first, raw


def _skip_broken(
    rank: WatchedRank,
    health: AgentHealth,
    events: NDArray[np.void],
    ok: NDArray[np.bool_],
    first: int,
    final: bool,
) -> tuple[int, bytes]:
    """Leave out what was overwritten meanwhile; stop before an event that its writer may yet finish."""
    lost = ~ok & overwritten(events, first)
    unfinished = np.flatnonzero(~ok & ~lost)
    end = len(events)
    if len(unfinished) and not final:
        stop = first + int(unfinished[0])
        rank.stuck_looks = rank.stuck_looks + 1 if rank.stuck_index == stop else 1
        rank.stuck_index = stop
        if rank.stuck_looks < _PATIENCE_DRAINS:
            end = int(unfinished[0])
            rank.tail = stop
    health.events_lost += int(lost[:end].sum())
    health.events_torn += int((unfinished < end).sum())
    good = np.flatnonzero(ok[:end])
    return (first + int(good[0]) if len(good) else first), events[:end][ok[:end]].tobytes()


def _probe_past_head(rank: WatchedRank) -> bytes:
    """Complete events past the head of a writer that is gone."""
    raw = rank.ring.read_events(rank.tail, min(_PROBE_SLOTS, rank.ring.header.event_slots))
    ok = valid_events(decode_slots(raw), rank.tail)
    count = len(ok) if ok.all() else int(np.argmin(ok))
    rank.tail += count
    return raw[: count * EVENT_BYTES]


def _salvage(rank: WatchedRank, health: AgentHealth, problem: str) -> tuple[int, bytes]:
    """The head cannot be believed: take every event that carries its own number in its own slot."""
    slots = rank.ring.header.event_slots
    if not rank.head_damaged:
        health.report(f"ring {rank.ring.path}: {problem}; reading events by their own numbers")
        rank.head_damaged = True
    raw = rank.ring.read(slots * EVENT_BYTES, rank.ring.header.events_offset)
    events, after = salvage_events(raw, slots, rank.tail)
    if not len(events):
        return rank.tail, b""
    first = int(events["begin"][0]) - 1
    health.events_lost += max(first - rank.tail, 0)
    rank.tail = after
    return first, events.tobytes()
