"""Calls that were still open at a flush of their node: a call that does not match never ends, so these are looked at.

Only the node's own rows end them.
"""

from __future__ import annotations

import numpy as np

from ..columns.rows import pick

#: More are not remembered: when so many are open at once, progress rows tell of it.
MOST_OPEN_CALLS = 4096
_RANK, _GROUP, _SEQ, _STAMP = range(4)
_NONE = np.zeros((0, 4), np.int64)


class OpenCalls:
    """Calls seen open at a flush, at most about MOST_OPEN_CALLS: rank, group, sequence, stamp at which
    each was seen.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls = _NONE

    def __len__(self) -> int:
        return len(self._calls)

    def end(self, rows: np.ndarray) -> None:
        """Drops calls up to the last that ended of their rank and group: calls of a group end in order, or nearly.

        rows: (n,) of COLLECTIVES, some of which tell of ends.
        """
        rows = pick(rows, rows["done_ns"] > 0)
        if not rows.size or not len(self._calls):
            return
        keys = _keys(self._calls[:, _RANK], self._calls[:, _GROUP])
        known = np.unique(keys)
        ended = _keys(rows["rank"].astype(np.int64), rows["group"].astype(np.int64))
        place = np.minimum(np.searchsorted(known, ended), known.size - 1)
        theirs = known[place] == ended
        last = np.full(known.size, -1, np.int64)
        np.maximum.at(last, place[theirs], rows["seq"][theirs])
        still = self._calls[:, _SEQ] > last[np.searchsorted(known, keys)]
        if not still.all():
            self._calls = self._calls[still]

    def add(self, rows: np.ndarray, stamps_ns: np.ndarray) -> bool:
        """Adds open calls. False, and adds none, where MOST_OPEN_CALLS are held. stamps_ns: (n,), when each was seen
        open.

        rows: (n,) of COLLECTIVES.
        """
        if len(self._calls) >= MOST_OPEN_CALLS:
            return False
        new = np.empty((rows.size, 4), np.int64)
        new[:, _RANK], new[:, _GROUP], new[:, _SEQ] = rows["rank"], rows["group"], rows["seq"]
        new[:, _STAMP] = stamps_ns
        self.put_back(new)
        return True

    def take_seen_until(self, stamp_ns: int) -> np.ndarray:
        """Removes and returns, one row per call, those that were seen open at that stamp or before."""
        old = self._calls[:, _STAMP] <= stamp_ns
        taken, self._calls = self._calls[old], self._calls[~old]
        return taken

    def put_back(self, calls: np.ndarray) -> None:
        """Adds calls that stay open. calls: one row per call, as ``take_seen_until`` and ``as_array`` give them."""
        self._calls = np.concatenate([self._calls, calls])

    def first_stamp_ns(self) -> int:
        """When the oldest open call was seen, a bus stamp. Raises ValueError where there is none."""
        return int(self._calls[:, _STAMP].min())

    def as_array(self) -> np.ndarray:
        """All open calls for the row of state, one row per call: rank, group, sequence, stamp."""
        return self._calls


def _keys(ranks: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.asarray((groups << 32) | ranks)
