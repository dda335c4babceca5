"""Calls that were still open at a flush of their node: a call that does not match never ends, so these are looked at.

Kept by node, since only the node's own rows end them: with thousands of nodes each message would else go over all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .open_rows import Arrived

#: More are not remembered: when so many are open at once, progress rows tell of it.
MOST_OPEN_CALLS = 4096
_RANK, _GROUP, _SEQ, _STAMP = range(4)


class OpenCalls:
    """(n, 4) by node: rank, group, sequence, stamp at which it was seen open, in the order of stamps."""

    __slots__ = ("_by_node", "_size")

    def __init__(self) -> None:
        self._by_node: dict[str, np.ndarray] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def of(self, node: str) -> bool:
        """Whether any of this node are known."""
        return node in self._by_node

    def end(self, node: str, rows: np.ndarray, arrived: Arrived) -> None:
        """Some of the node's rows tell of ends."""
        calls = self._by_node[node]
        left = _still_open(calls, rows, arrived)
        if left is not calls:
            self._put(node, left)

    def add(self, node: str, rows: np.ndarray, arrived: Arrived, stamp_ns: int) -> bool:
        """Some of the node's rows are open. False: there is no room."""
        if self._size >= MOST_OPEN_CALLS:
            return False
        new = np.empty((rows.size, 4), np.int64)
        new[:, _RANK], new[:, _GROUP], new[:, _SEQ] = rows["rank"], arrived.group_of(rows), rows["seq"]
        new[:, _STAMP] = stamp_ns
        before = self._by_node.get(node)
        self._put(node, new if before is None else np.concatenate([before, new]))
        return True

    def take_seen_until(self, stamp_ns: int) -> np.ndarray:
        """Takes out those that were seen open at that stamp or before."""
        taken = [np.zeros((0, 4), np.int64)]
        for node in [node for node, calls in self._by_node.items() if calls[0, _STAMP] <= stamp_ns]:
            calls = self._by_node[node]
            old = calls[:, _STAMP] <= stamp_ns
            taken.append(calls[old])
            self._put(node, calls[~old])
        return np.concatenate(taken)

    def put_back(self, calls: np.ndarray, node_of: Callable[[int], str]) -> None:
        for node, theirs in _by_node(calls, node_of).items():
            before = self._by_node.get(node)
            self._put(node, theirs if before is None else np.concatenate([before, theirs]))

    def first_stamp_ns(self) -> int:
        """When the oldest was seen; there must be one."""
        return min(int(calls[0, _STAMP]) for calls in self._by_node.values())

    def as_array(self) -> np.ndarray:
        return np.concatenate([np.zeros((0, 4), np.int64), *self._by_node.values()])

    def _put(self, node: str, calls: np.ndarray) -> None:
        before = self._by_node.pop(node, None)
        self._size += len(calls) - (0 if before is None else len(before))
        if len(calls):
            self._by_node[node] = calls


def _by_node(calls: np.ndarray, node_of: Callable[[int], str]) -> dict[str, np.ndarray]:
    nodes = [node_of(int(rank)) for rank in calls[:, _RANK]]
    return {node: calls[[each == node for each in nodes]] for node in dict.fromkeys(nodes)}


def _still_open(calls: np.ndarray, rows: np.ndarray, arrived: Arrived) -> np.ndarray:
    """Calls beyond the last of their rank and group that ended (calls of a group end in order, or nearly)."""
    rows = rows[rows["done_ns"] > 0]
    if not rows.size:
        return calls
    ranks, groups = rows["rank"].astype(np.int64), arrived.group_of(rows)
    first, width = int(ranks.min()), int(groups.max()) + 1
    last = np.full((int(ranks.max()) - first + 1, width), -1, np.int64)  # of a node's ranks: few
    np.maximum.at(last, (ranks - first, groups), rows["seq"])
    place, group = calls[:, _RANK] - first, calls[:, _GROUP]
    theirs = ((place >= 0) & (place < last.shape[0]) & (group < width)).nonzero()[0]
    ended = theirs[calls[theirs, _SEQ] <= last[place[theirs], group[theirs]]]
    return calls if not ended.size else np.delete(calls, ended, axis=0)
