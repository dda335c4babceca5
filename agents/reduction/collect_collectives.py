"""COLLECTIVES rows: ENQUEUE events joined with their COMPLETE and STARTED, for all rings of the node at once.

Runs in the polling thread, twice a second, on whole columns: at 3200 events a second a Python loop over events would
cost several times the agent's whole budget. Rows are chosen with ``compress`` and ``take``, which move whole rows; an
index in brackets copies them column by column, ten times slower. A row comes out when its operation is done, and once
before that if it is still open at a flush; the key (rank, group, p2p, seq) makes the second an update of the first.
Hosts run ahead of their devices, so in large jobs nearly every call is open at some flush: where steps are not shipped
whole, an open call is shipped once it is overdue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...telemetry.tables import COLLECTIVES, NO_GROUP
from ...telemetry.vocabulary import EventFlag, EventKind
from ..base.health import AgentHealth
from .old_calls import OldCalls

#: Join key: ring 12 bits | group row 10 | point-to-point 1 | sequence 41.
_RING_SHIFT, _GROUP_SHIFT, _P2P_SHIFT = np.uint64(52), np.uint64(42), np.uint64(41)
_GROUP_MASK = np.uint64((1 << 10) - 1)
_SEQ_MASK = np.uint64((1 << 41) - 1)
_P2P = np.uint8(EventFlag.P2P)
_END_FLAGS = np.uint8(EventFlag.POLLED | EventFlag.FAILED)
#: A group's writer forgets an open operation this many later (ring_collectives.MAX_OPEN); its end will never come.
_FORGOTTEN_AFTER = 1024


_NO_ROWS, _NO_KEYS = np.zeros(0, COLLECTIVES), np.zeros(0, np.uint64)
_NO_RING, _NO_FLAGS, _NO_PLACES = np.zeros(0, np.uint16), np.zeros(0, bool), np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRows:
    """Rows of one flush. ``ring`` is the ring slot of each, ``first`` whether the row comes for the first time,
    ``ships`` whether it is for the judge: of a step that is shipped whole, or the end of a call that was shipped open.

    ``rows["group"]`` holds agent-wide group numbers.
    """

    rows: NDArray[np.void]
    ring: NDArray[np.uint16]
    first: NDArray[np.bool_]
    ships: NDArray[np.bool_]


def _keys(events: NDArray[np.void], ring: NDArray[np.uint16]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = (
        (ring.astype(np.uint64) << _RING_SHIFT)
        | (events["group"].astype(np.uint64) << _GROUP_SHIFT)
        | ((events["flags"] & _P2P).astype(np.uint64) << _P2P_SHIFT)
        | (events["seq"].astype(np.uint64) & _SEQ_MASK)
    )
    return keys


def joined_rows(parts: Sequence[CollectedRows]) -> CollectedRows:
    """Rows of several flushes, in their order."""
    return CollectedRows(
        rows=np.concatenate([part.rows for part in parts]),
        ring=np.concatenate([part.ring for part in parts]),
        first=np.concatenate([part.first for part in parts]),
        ships=np.concatenate([part.ships for part in parts]),
    )


class CollectiveJoiner:
    """Holds the operations that have been enqueued and not completed.

    Most end soon, and are looked for among those that came lately (``_rows``). What stays open, as calls do whose ends
    nobody tells, lies in ``_old``, in an order in which it is found, and is only moved when much has come to it.
    """

    def __init__(self, health: AgentHealth, max_open_rows: int) -> None:
        self._health = health
        self._max_open_rows = max_open_rows
        self._rows, self._keys = _NO_ROWS, _NO_KEYS
        self._ring, self._sent, self._shipped = _NO_RING, _NO_FLAGS, _NO_FLAGS
        self._old = OldCalls()
        #: By slot, group row and whether point-to-point: the sequence number of the newest call.
        self._newest = np.full((0, 0, 2), -1, np.int64)

    @property
    def open_rows(self) -> int:
        """How many calls are held here whose end has not been seen."""
        return len(self._rows) + len(self._old)

    def collect(
        self,
        events: NDArray[np.void],
        ring: NDArray[np.uint16],
        rank_of: NDArray[np.uint32],
        group_of: NDArray[np.uint16],
        completion_seen: NDArray[np.bool_],
        ship_every: NDArray[np.int64],
    ) -> CollectedRows:
        """Join one flush's events (per ring in their order).

        ring: slot of each event's ring. rank_of, completion_seen, ship_every: by slot. group_of[slot, group row]:
        agent-wide group number, NO_GROUP where undefined. ``completion_seen`` False: the ends of that rank's operations
        are not recorded, so its rows are sent once and forgotten. ship_every: every how manieth step is shipped whole.
        """
        kind = events["kind"]
        self._admit(events, ring, kind == int(EventKind.ENQUEUE), rank_of, group_of)
        order: NDArray[np.intp] | None = None
        ended: list[NDArray[np.intp]] = []
        for end_kind, column in ((EventKind.STARTED, "started_ns"), (EventKind.COMPLETE, "done_ns")):
            chosen = kind == int(end_kind)
            if chosen.any():
                order = np.argsort(self._keys, kind="stable") if order is None else order
                ended.append(self._apply_ends(events.compress(chosen), ring[chosen], order, column))
        return self._release(completion_seen, ship_every, np.concatenate(ended) if ended else _NO_PLACES)

    def take_overdue(
        self, now_ns: NDArray[np.int64], patience_ns: NDArray[np.int64]
    ) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
        """Rows, and the slot of each, of open calls that were not shipped yet and are overdue; they count as shipped.

        now_ns: monotonic, by slot. patience_ns: by agent-wide group number, calls open for longer are overdue.
        """
        rows, ring = self._old.take_overdue(now_ns, patience_ns)
        since_ns = now_ns[self._ring] - patience_ns[self._rows["group"]]
        overdue = ~self._shipped & (self._rows["enqueued_ns"] < since_ns)
        if overdue.any():
            self._shipped |= overdue
            rows = np.concatenate((rows, self._rows.compress(overdue)))
            ring = np.concatenate((ring, self._ring[overdue]))
        return rows, ring

    def forget(self, slot: int) -> None:
        """Drops open calls of a slot whose ring is closed; they have been sent as open."""
        if len(self._ring):
            self._keep(self._ring != slot)
        self._old.forget(slot)
        self._newest[slot : slot + 1] = -1

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
            row = row[defined]
        rows: NDArray[np.void] = np.zeros(len(events), COLLECTIVES)
        rows["rank"] = rank_of[ring]
        rows["group"] = group
        for column in ("op", "flags", "dtype", "phase", "seq", "step"):
            rows[column] = events[column]
        rows["peer"] = events["extra"].astype(np.int64) - 1
        rows["bytes"] = events["value"].astype(np.int64)
        rows["enqueued_ns"] = events["time_ns"]
        self._note_newest(ring, row, rows, group_of.shape)
        keys, new = _keys(events, ring), np.zeros(len(rows), bool)
        if len(self._rows):
            rows, keys = np.concatenate((self._rows, rows)), np.concatenate((self._keys, keys))
            ring = np.concatenate((self._ring, ring))
        self._rows, self._keys, self._ring = rows, keys, ring
        self._sent, self._shipped = np.concatenate((self._sent, new)), np.concatenate((self._shipped, new))

    def _note_newest(
        self, ring: NDArray[np.uint16], row: NDArray[np.uint16], rows: NDArray[np.void], shape: tuple[int, ...]
    ) -> None:
        slots, group_rows = shape
        if self._newest.shape[:2] != (slots, group_rows):
            grown = np.full((slots, group_rows, 2), -1, np.int64)
            known = self._newest.shape
            grown[: known[0], : known[1]] = self._newest
            self._newest = grown
        # Calls of a ring come in the order in which they were made, so the last one written is the newest.
        self._newest[ring, row, (rows["flags"] & _P2P != 0).astype(np.intp)] = rows["seq"]

    def _apply_ends(
        self, ends: NDArray[np.void], ring: NDArray[np.uint16], order: NDArray[np.intp], column: str
    ) -> NDArray[np.intp]:
        """Returns the places of the old calls that have ended."""
        keys = _keys(ends, ring)
        index, old = self._old.find(keys)
        _write_ends(self._old.rows, index, ends.compress(old) if index.size else ends[:0], column)
        if index.size:
            keys, ends = keys[~old], ends.compress(~old)
        ended = index if column == "done_ns" else index[:0]
        if not len(ends):
            return ended
        if not len(order):
            self._health.drop("ends_without_begin", len(ends))
            return ended
        place = order[np.minimum(np.searchsorted(self._keys, keys, sorter=order), len(order) - 1)]
        matched = self._keys[place] == keys
        if not matched.all():
            self._health.drop("ends_without_begin", int((~matched).sum()))
            place, ends = place[matched], ends.compress(matched)
        _write_ends(self._rows, place, ends, column)
        return ended

    def _release(
        self, completion_seen: NDArray[np.bool_], ship_every: NDArray[np.int64], old: NDArray[np.intp]
    ) -> CollectedRows:
        """old: places of old calls that have ended."""
        # The same steps on every rank, whatever will not be told to end, and the ends of what was shipped open.
        ships = self._shipped | (self._rows["step"] % ship_every[self._ring] == 0) | ~completion_seen[self._ring]
        done = self._rows["done_ns"] != 0
        if done.all():  # the usual case where calls are short: nothing stays open
            out = CollectedRows(rows=self._rows, ring=self._ring, first=~self._sent, ships=ships)
            self._rows, self._keys = _NO_ROWS, _NO_KEYS
            self._ring, self._sent, self._shipped = _NO_RING, _NO_FLAGS, _NO_FLAGS
            return self._with_old(old, out)
        sending = done | ~self._sent
        out = CollectedRows(
            rows=self._rows.compress(sending),
            ring=self._ring[sending],
            first=~self._sent[sending],
            ships=ships[sending],
        )
        self._sent, self._shipped = self._sent | sending, ships
        out = self._with_old(old, out)
        self._keep(~done & completion_seen[self._ring])
        if len(self._rows) > _FORGOTTEN_AFTER + len(self._old) // 2 or self.open_rows > self._max_open_rows:
            self._grow_old()
        return out

    def _with_old(self, places: NDArray[np.intp], new: CollectedRows) -> CollectedRows:
        """In the order in which the calls were made."""
        if not places.size:
            return new
        rows, ring, shipped = self._old.take(places)
        return CollectedRows(
            rows=np.concatenate((rows, new.rows)),
            ring=np.concatenate((ring, new.ring)),
            first=np.concatenate((np.zeros(len(rows), bool), new.first)),
            ships=np.concatenate((shipped, new.ships)),
        )

    def _grow_old(self) -> None:
        """All that is open is old now, but what is forgotten, and what there is no room for."""
        self._old.add(self._rows, self._keys, self._ring, self._shipped)
        self._keep(np.zeros(len(self._rows), bool))
        rows = self._old.rows
        newest = self._newest[self._old.ring, _group_rows(self._old.keys), (rows["flags"] & _P2P != 0).astype(np.intp)]
        keeping = rows["seq"] >= newest - _FORGOTTEN_AFTER
        excess = int(keeping.sum()) - self._max_open_rows
        if excess > 0:
            self._health.drop("open_rows", excess)
            kept = np.flatnonzero(keeping)
            keeping[kept[np.argsort(rows["enqueued_ns"][kept], kind="stable")[:excess]]] = False
        self._old.keep(keeping)

    def _keep(self, keeping: NDArray[np.bool_]) -> None:
        self._rows, self._keys = self._rows.compress(keeping), self._keys[keeping]
        self._ring, self._sent = self._ring[keeping], self._sent[keeping]
        self._shipped = self._shipped[keeping]


def _write_ends(rows: NDArray[np.void], index: NDArray[np.intp], ends: NDArray[np.void], column: str) -> None:
    if not index.size:
        return
    rows[column][index] = np.maximum(ends["time_ns"], 1)
    waited = ends["extra"] > 0  # of COMPLETE: since when its host stood in wait()
    if waited.any():
        rows["started_ns"][index[waited]] = ends["extra"][waited].astype(np.int64)
    rows["flags"][index] |= ends["flags"] & _END_FLAGS


def _group_rows(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    rows: NDArray[np.intp] = ((keys >> _GROUP_SHIFT) & _GROUP_MASK).astype(np.intp)
    return rows
