"""Calls that have been open for long, each told as open once: found by their keys, and moved only in bulk.

Where a device does sends and receives nobody tells their ends, so that a thousand of each group stay open at any time,
while all other calls end within a flush or two. Part of ``collect_collectives``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...telemetry.tables import COLLECTIVES


class OldCalls:
    """``rows``, ``keys`` and ``ring`` (the slot of each) are in the order of the calls; some of them have gone."""

    def __init__(self) -> None:
        self.rows: NDArray[np.void] = np.zeros(0, COLLECTIVES)
        self.keys: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.ring: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._shipped: NDArray[np.bool_] = np.zeros(0, bool)
        self._gone: NDArray[np.bool_] = np.zeros(0, bool)
        self._gone_count = 0
        self._order: NDArray[np.intp] = np.zeros(0, np.intp)
        self._sorted: NDArray[np.uint64] = self.keys

    def __len__(self) -> int:
        return len(self.rows) - self._gone_count

    def find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Places (indexes of rows) of those keys that are here, and by key a flag whether it is."""
        if not len(self):
            return self._order[:0], np.zeros(len(keys), bool)
        near = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        matched = self._sorted[near] == keys
        place = self._order[near[matched]]
        if self._gone_count and (gone := self._gone[place]).any():
            matched[np.flatnonzero(matched)[gone]] = False
            place = place[~gone]
        return place, matched

    def take(self, places: NDArray[np.intp]) -> tuple[NDArray[np.void], NDArray[np.uint16], NDArray[np.bool_]]:
        """Rows and slots of the calls at these places (indexes of rows, one per call), and whether each was shipped;
        those calls count as gone.
        """
        places = np.sort(places)
        self._gone[places] = True
        self._gone_count += places.size
        return self.rows.take(places), self.ring[places], self._shipped[places]

    def take_overdue(
        self, now_ns: NDArray[np.int64], patience_ns: NDArray[np.int64]
    ) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
        """Rows and slots of calls that were not shipped and are open for longer than ``patience_ns`` (by agent-wide
        group number); they stay, and count as shipped. now_ns: monotonic, by slot.
        """
        waiting = np.flatnonzero(~self._shipped & ~self._gone)
        rows = self.rows.take(waiting)
        overdue = waiting[rows["enqueued_ns"] < now_ns[self.ring[waiting]] - patience_ns[rows["group"]]]
        self._shipped[overdue] = True
        return self.rows.take(overdue), self.ring[overdue]

    def add(
        self,
        rows: NDArray[np.void],
        keys: NDArray[np.uint64],
        ring: NDArray[np.uint16],
        shipped: NDArray[np.bool_],
    ) -> None:
        """Adds calls: one row, key, slot (``ring``) and flag (whether it was ``shipped``) per call.

        Call ``keep`` before anything is looked for.
        """
        self.rows = np.concatenate((self.rows, rows))
        self.keys, self.ring = np.concatenate((self.keys, keys)), np.concatenate((self.ring, ring))
        self._shipped = np.concatenate((self._shipped, shipped))
        self._gone = np.concatenate((self._gone, np.zeros(len(rows), bool)))

    def keep(self, keeping: NDArray[np.bool_]) -> None:
        """Keeps only rows whose flag is True (one per row) and that have not gone; then all can be found again."""
        keeping = keeping & ~self._gone
        self.rows = self.rows.compress(keeping)
        self.keys, self.ring, self._shipped = self.keys[keeping], self.ring[keeping], self._shipped[keeping]
        self._gone, self._gone_count = np.zeros(len(self.rows), bool), 0
        self._order = np.argsort(self.keys, kind="stable")
        self._sorted = self.keys[self._order]

    def forget(self, slot: int) -> None:
        """Removes all calls of a slot: its ring is gone."""
        if len(self.ring):
            self.keep(self.ring != slot)
