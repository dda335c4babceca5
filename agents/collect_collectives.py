"""COLLECTIVES rows: ENQUEUE events joined with their COMPLETE and STARTED, for all rings of the node at once.

Runs in the polling thread, twice a second, on whole columns: at 3200 events a second a Python loop over events would
cost several times the agent's whole budget. Rows are chosen with ``compress`` and ``take``, which move whole rows; an
index in brackets copies them column by column, ten times slower. A row is sent when its operation is done, and once
before that if it is still open at a flush; the key (rank, group, p2p, seq) makes the second an update of the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.tables import COLLECTIVES, NO_GROUP
from ..telemetry.vocabulary import EventFlag, EventKind
from .health import AgentHealth

#: Join key: ring 12 bits | group row 10 | point-to-point 1 | sequence 41.
_RING_SHIFT, _GROUP_SHIFT, _P2P_SHIFT = np.uint64(52), np.uint64(42), np.uint64(41)
_SEQ_MASK = np.uint64((1 << 41) - 1)
_P2P = np.uint8(EventFlag.P2P)
_END_FLAGS = np.uint8(EventFlag.POLLED | EventFlag.FAILED)
#: A group's writer forgets an open operation this many later (ring_collectives.MAX_OPEN); its end will never come.
_FORGOTTEN_AFTER = 1024


_NO_ROWS, _NO_KEYS = np.zeros(0, COLLECTIVES), np.zeros(0, np.uint64)
_NO_RING, _NO_FLAGS = np.zeros(0, np.uint16), np.zeros(0, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRows:
    """Rows of one flush. ``ring`` is the ring slot of each, ``first`` whether the row is sent for the first time.

    ``rows["group"]`` holds agent-wide group numbers.
    """

    rows: NDArray[np.void]
    ring: NDArray[np.uint16]
    first: NDArray[np.bool_]


def _keys(events: NDArray[np.void], ring: NDArray[np.uint16]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = (
        (ring.astype(np.uint64) << _RING_SHIFT)
        | (events["group"].astype(np.uint64) << _GROUP_SHIFT)
        | ((events["flags"] & _P2P).astype(np.uint64) << _P2P_SHIFT)
        | (events["seq"].astype(np.uint64) & _SEQ_MASK)
    )
    return keys


class CollectiveJoiner:
    """Holds the operations that have been enqueued and not completed."""

    def __init__(self, health: AgentHealth, max_open_rows: int) -> None:
        self._health = health
        self._max_open_rows = max_open_rows
        self._rows, self._keys = _NO_ROWS, _NO_KEYS
        self._ring, self._sent = _NO_RING, _NO_FLAGS

    @property
    def open_rows(self) -> int:
        return len(self._rows)

    def collect(
        self,
        events: NDArray[np.void],
        ring: NDArray[np.uint16],
        rank_of: NDArray[np.uint32],
        group_of: NDArray[np.uint16],
        completion_seen: NDArray[np.bool_],
    ) -> CollectedRows:
        """Join one flush's events (per ring in their order).

        ring: slot of each event's ring. rank_of, completion_seen: by slot. group_of[slot, group row]: agent-wide
        group number, NO_GROUP where undefined. ``completion_seen`` False: the ends of that rank's operations are not
        recorded, so its rows are sent once and forgotten.
        """
        kind = events["kind"]
        self._admit(events, ring, kind == int(EventKind.ENQUEUE), rank_of, group_of)
        order: NDArray[np.intp] | None = None
        for end_kind, column in ((EventKind.STARTED, "started_ns"), (EventKind.COMPLETE, "done_ns")):
            chosen = kind == int(end_kind)
            if chosen.any():
                order = np.argsort(self._keys, kind="stable") if order is None else order
                self._apply_ends(events.compress(chosen), ring[chosen], order, column)
        return self._release(completion_seen)

    def forget(self, slot: int) -> None:
        """Drop what is open of a ring that is closed; it was sent as open."""
        if len(self._ring):
            self._keep(self._ring != slot)

    def _admit(
        self,
        events: NDArray[np.void],
        ring: NDArray[np.uint16],
        chosen: NDArray[np.bool_],
        rank_of: NDArray[np.uint32],
        group_of: NDArray[np.uint16],
    ) -> None:
        events, ring = events.compress(chosen), ring[chosen]
        if not len(events):
            return
        row = np.minimum(events["group"], group_of.shape[1] - 1)
        group = group_of[ring, row]
        defined = (group != NO_GROUP) & (events["group"] == row)
        if not defined.all():
            self._health.drop("rows_without_group", int((~defined).sum()))
            events, ring, group = events.compress(defined), ring[defined], group[defined]
        rows: NDArray[np.void] = np.zeros(len(events), COLLECTIVES)
        rows["rank"] = rank_of[ring]
        rows["group"] = group
        for column in ("op", "flags", "dtype", "phase", "seq", "step"):
            rows[column] = events[column]
        rows["peer"] = events["extra"].astype(np.int64) - 1
        rows["bytes"] = events["value"].astype(np.int64)
        rows["enqueued_ns"] = events["time_ns"]
        keys, sent = _keys(events, ring), np.zeros(len(rows), bool)
        if len(self._rows):
            rows, keys = np.concatenate((self._rows, rows)), np.concatenate((self._keys, keys))
            ring, sent = np.concatenate((self._ring, ring)), np.concatenate((self._sent, sent))
        self._rows, self._keys, self._ring, self._sent = rows, keys, ring, sent

    def _apply_ends(
        self, ends: NDArray[np.void], ring: NDArray[np.uint16], order: NDArray[np.intp], column: str
    ) -> None:
        if not len(order):
            self._health.drop("ends_without_begin", len(ends))
            return
        keys = _keys(ends, ring)
        place = np.minimum(np.searchsorted(self._keys, keys, sorter=order), len(order) - 1)
        index = order[place]
        matched = self._keys[index] == keys
        if not matched.all():
            self._health.drop("ends_without_begin", int((~matched).sum()))
            index, ends = index[matched], ends.compress(matched)
        self._rows[column][index] = np.maximum(ends["time_ns"], 1)
        waited = ends["extra"] > 0  # of COMPLETE: since when its host stood in wait()
        if waited.any():
            self._rows["started_ns"][index[waited]] = ends["extra"][waited].astype(np.int64)
        self._rows["flags"][index] |= ends["flags"] & _END_FLAGS

    def _release(self, completion_seen: NDArray[np.bool_]) -> CollectedRows:
        done = self._rows["done_ns"] != 0
        if done.all():  # the usual case where calls are short: nothing stays open
            out = CollectedRows(rows=self._rows, ring=self._ring, first=~self._sent)
            self._rows, self._keys = _NO_ROWS, _NO_KEYS
            self._ring, self._sent = _NO_RING, _NO_FLAGS
            return out
        sending = done | ~self._sent
        out = CollectedRows(rows=self._rows.compress(sending), ring=self._ring[sending], first=~self._sent[sending])
        self._sent |= sending
        keeping = ~done & completion_seen[self._ring]
        if keeping.any():
            keeping &= ~self._forgotten(keeping)
        self._keep(keeping)
        excess = len(self._rows) - self._max_open_rows
        if excess > 0:
            self._health.drop("open_rows", excess)
            newest = np.zeros(len(self._rows), bool)
            newest[np.argsort(self._rows["enqueued_ns"], kind="stable")[excess:]] = True
            self._keep(newest)
        return out

    def _forgotten(self, keeping: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Open rows more than _FORGOTTEN_AFTER behind the newest of their group; rare, so only looked at in bulk."""
        if int(keeping.sum()) <= _FORGOTTEN_AFTER:
            return np.zeros(len(keeping), bool)
        stream = self._keys >> _P2P_SHIFT
        _, inverse = np.unique(stream, return_inverse=True)
        newest = np.zeros(int(inverse.max()) + 1, np.int64)
        np.maximum.at(newest, inverse, self._rows["seq"])
        return np.asarray(self._rows["seq"] < newest[inverse] - _FORGOTTEN_AFTER)

    def _keep(self, keeping: NDArray[np.bool_]) -> None:
        self._rows, self._keys = self._rows.compress(keeping), self._keys[keeping]
        self._ring, self._sent = self._ring[keeping], self._sent[keeping]
