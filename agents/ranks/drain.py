"""Draining: all new events of all rings of the node in one array, what was lost or torn counted.

Runs in the polling thread. Live rings are read up to their head; a ring whose writer is gone also past it, because a
writer can die between slot and head. Never waits for a writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...telemetry.ring_layout import EVENT_BYTES
from ..base.health import AgentHealth
from ..rings.ring_events import EVENT, decode_slots, overwritten, salvage_events, valid_events
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


_NOTHING = Drained(events=np.zeros(0, EVENT), ring=np.zeros(0, np.uint16))


def drain_rings(ranks: Sequence[WatchedRank], health: AgentHealth) -> Drained:
    """Reads what is new in each ring since its last drain, up to the event head of its last look.

    Moves each ring's tail; what was overwritten or torn is counted in ``health``.
    """
    reads = [_read_slots(rank, health) for rank in ranks if rank.hot.event_head != rank.reading.tail or not rank.alive]
    if not reads:
        return _NOTHING
    slots = decode_slots(b"".join([read.raw for read in reads]))
    counts = [len(read.raw) // EVENT_BYTES for read in reads]
    ring = np.repeat(np.array([read.rank.slot for read in reads], np.uint16), counts)
    ends = list(accumulate(counts))
    # Slot k of the whole array must hold event (first index of its ring) + (k - where its ring begins), plus one.
    begins = [read.first - (end - count) + 1 for read, end, count in zip(reads, ends, counts, strict=True)]
    expected = np.arange(len(slots), dtype=np.uint64) + np.repeat(np.array(begins, np.int64).astype(np.uint64), counts)
    ok = (slots["begin"] == expected) & (slots["end"] == expected)
    if bool(ok.all()) and all(read.rank.alive and read.behind >= 0 for read in reads):
        for read, count in zip(reads, counts, strict=True):
            read.rank.reading.tail = read.first + count
            read.rank.reading.remember_last(read.raw)
            health.events_lost += read.lapped
        health.events_read += len(slots)
        return Drained(events=slots, ring=ring)
    raws: list[bytes] = []
    for read, end, count in zip(reads, ends, counts, strict=True):
        raw = _settle(read, ok[end - count : end], health)
        read.rank.reading.remember_last(raw)
        raws.append(raw)
    events = decode_slots(b"".join(raws))
    health.events_read += len(events)
    counts = [len(raw) // EVENT_BYTES for raw in raws]
    return Drained(events=events, ring=np.repeat(np.array([read.rank.slot for read in reads], np.uint16), counts))


@dataclass(frozen=True, slots=True)
class _Read:
    """Slots of one ring as they were found. ``first`` is the index that the first of them should hold."""

    rank: WatchedRank
    first: int
    raw: bytes
    behind: int  # slots asked for
    lapped: int  # events already overwritten when we came


def _read_slots(rank: WatchedRank, health: AgentHealth) -> _Read:
    ring, slots, head = rank.ring, rank.ring.header.event_slots, rank.hot.event_head
    if rank.reading.head_damaged or head < rank.reading.tail or head >= 1 << 62:
        return _Read(rank, rank.reading.tail, b"", -1, 0)
    behind = head - rank.reading.tail
    lapped = max(behind - slots, 0)
    behind -= lapped
    first = rank.reading.tail + lapped
    raw = ring.read_events(first, behind) if behind else b""
    if len(raw) < behind * EVENT_BYTES:
        whole = len(raw) // EVENT_BYTES
        health.report(f"ring {ring.path}: file ends inside the events; {whole} of {behind} could be read")
        raw = raw[: whole * EVENT_BYTES]
    return _Read(rank, first, raw, behind, lapped)


def _settle(read: _Read, ok: NDArray[np.bool_], health: AgentHealth) -> bytes:
    """Raw complete events of a ring where not all is well; moves its tail."""
    rank, first, raw = read.rank, read.first, read.raw
    if read.behind < 0:
        return _salvage(rank, health, f"event head is {rank.hot.event_head}, {rank.reading.tail} were already read")
    if read.behind == rank.ring.header.event_slots and not ok.any():
        return _salvage(rank, health, f"no event of the last lap before head {rank.hot.event_head} is in its slot")
    health.events_lost += read.lapped
    rank.reading.tail = first + read.behind
    if not ok.all():
        raw = _skip_broken(rank, health, decode_slots(raw), ok, first, not rank.alive)
    if not rank.alive:
        raw += _probe_past_head(rank)
    return raw


def _skip_broken(
    rank: WatchedRank,
    health: AgentHealth,
    events: NDArray[np.void],
    ok: NDArray[np.bool_],
    first: int,
    final: bool,
) -> bytes:
    """Leave out what was overwritten meanwhile; stop before an event that its writer may yet finish."""
    lost = ~ok & overwritten(events, first)
    unfinished = np.flatnonzero(~ok & ~lost)
    end = len(events)
    if len(unfinished) and not final:
        stop = first + int(unfinished[0])
        rank.reading.stuck_looks = rank.reading.stuck_looks + 1 if rank.reading.stuck_index == stop else 1
        rank.reading.stuck_index = stop
        if rank.reading.stuck_looks < _PATIENCE_DRAINS:
            end = int(unfinished[0])
            rank.reading.tail = stop
    health.events_lost += int(lost[:end].sum())
    health.events_torn += int((unfinished < end).sum())
    return events[:end][ok[:end]].tobytes()


def _probe_past_head(rank: WatchedRank) -> bytes:
    """Complete events past the head of a writer that is gone."""
    raw = rank.ring.read_events(rank.reading.tail, min(_PROBE_SLOTS, rank.ring.header.event_slots))
    ok = valid_events(decode_slots(raw), rank.reading.tail)
    count = len(ok) if ok.all() else int(np.argmin(ok))
    rank.reading.tail += count
    return raw[: count * EVENT_BYTES]


def _salvage(rank: WatchedRank, health: AgentHealth, problem: str) -> bytes:
    """The head cannot be believed: take every event that carries its own number in its own slot."""
    slots = rank.ring.header.event_slots
    if not rank.reading.head_damaged:
        health.report(f"ring {rank.ring.path}: {problem}; reading events by their own numbers")
        rank.reading.head_damaged = True
    raw = rank.ring.read(slots * EVENT_BYTES, rank.ring.header.events_offset)
    events, after = salvage_events(raw, slots, rank.reading.tail)
    if not len(events):
        return b""
    health.events_lost += max(int(events["begin"][0]) - 1 - rank.reading.tail, 0)
    rank.reading.tail = after
    return events.tobytes()
