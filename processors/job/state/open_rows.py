"""Rows of steps that are not closed yet, one table of them: kept as they came, put into the job's terms when read.

A message adds a reference and nothing else, so what it costs hardly depends on its rows. Clock offsets and group
numbers are applied once, to the rows of many messages at a time, in a buffer that grows and is used again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..columns.packing import pack
from ..columns.rows import copy_into, copy_of, joined

_FIRST_CAPACITY = 1024


@dataclass(slots=True, kw_only=True, eq=False)
class Arrived:
    """Rows of one message. offset_ns: turns the node's clock into the job's; groups: the job's number of each group
    of the message, and last of all what stands for none (None: the table has no groups, or they are the job's)."""

    rows: np.ndarray
    offset_ns: int = 0
    groups: np.ndarray | None = None

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        """By row, the job's number of its group. rows: (n,), some or all of ``self.rows``."""
        groups = rows["group"]
        return groups if self.groups is None else self.groups[np.minimum(groups, self.groups.size - 1)]


class OpenChunk:
    """Rows of some messages (each with the name of its table) until they are written as one row of the state."""

    __slots__ = ("is_written", "parts")

    def __init__(self) -> None:
        self.parts: list[tuple[str, Arrived]] = []
        self.is_written = False

    def write(self) -> bytes:
        """The parts so far as a row of state; drops them and marks the chunk as written, so that new rows go into
        another one.
        """
        arrays: dict[str, np.ndarray] = {}
        for number, (name, part) in enumerate(self.parts):
            arrays[f"{name}/{number}"] = part.rows
            if part.groups is not None:
                arrays[f"lookup/{number}"] = part.groups
        offsets = np.array([part.offset_ns for _, part in self.parts], np.int64)
        self.parts, self.is_written = [], True
        return pack({}, {**arrays, "offsets": offsets})


class OpenRows:
    """Rows of one table for steps that are not closed. Owned by the job's state.

    times: columns that hold times of the node, 0 meaning none.
    """

    __slots__ = ("_arrived", "_buffer", "_settled", "_times", "_unsaved", "replaced", "size")

    def __init__(self, dtype: np.dtype, times: tuple[str, ...]) -> None:
        self._times = times
        self._buffer = np.empty(0, dtype)
        self._settled = 0
        self._arrived: list[Arrived] = []
        self._unsaved: list[Arrived] = []
        #: Rows held.
        self.size = 0
        #: How often what is held was replaced: in between, rows are only added behind the others.
        self.replaced = 0

    @property
    def dtype(self) -> np.dtype:
        """The dtype of a row."""
        dtype: np.dtype = self._buffer.dtype
        return dtype

    def add(self, arrived: Arrived, *, saved: bool = False) -> None:
        """Adds the rows of a message, which must not change any more. saved: they are in the state already."""
        if self._arrived and (self._arrived[0].groups is None) != (arrived.groups is None):
            self._settle()
        self._arrived.append(arrived)
        self.size += arrived.rows.size
        if not saved:
            self._unsaved.append(arrived)

    def all(self) -> np.ndarray:
        """Every row in order of arrival, as a view that is good until the next call of any method."""
        if self._arrived:
            self._settle()
        return self._buffer[: self._settled]

    def keep(self, rows: np.ndarray) -> None:
        """Replaces everything by a copy of ``rows``, which are rows of ``all()``."""
        if rows.size:
            copy_into(self._buffer, 0, rows)
        self._settled = self.size = rows.size
        self._arrived = []
        self.replaced += 1

    def take_unsaved(self) -> list[Arrived]:
        """Messages added since the last call, or since ``take_everything``; they count as saved then."""
        unsaved, self._unsaved = self._unsaved, []
        return unsaved

    def take_everything(self) -> list[Arrived]:
        """A copy of all rows held, as one message ([] for none), to write the whole state anew. The rows stay, and
        ``take_unsaved`` does not give them again.
        """
        self._unsaved = []
        rows = self.all()
        return [Arrived(rows=copy_of(rows))] if rows.size else []

    def _settle(self) -> None:
        if self.size > self._buffer.size:
            grown = np.empty(max(2 * self._buffer.size, self.size, _FIRST_CAPACITY), self._buffer.dtype)
            copy_into(grown, 0, self._buffer[: self._settled])
            self._buffer = grown
        begin, only = self._settled, self._arrived[0]
        if len(self._arrived) == 1:  # each of a small job's messages
            place = copy_into(self._buffer, begin, only.rows)
        else:
            together = joined([part.rows for part in self._arrived], self._buffer.dtype)
            place = copy_into(self._buffer, begin, together)
        new = self._buffer[begin:place]
        if len(self._arrived) == 1:
            self._move_times(new, only.offset_ns)
            if only.groups is not None:
                new["group"] = only.group_of(new)
        else:
            sizes = np.array([part.rows.size for part in self._arrived])
            self._move_times(new, np.array([part.offset_ns for part in self._arrived], np.int64).repeat(sizes))
            if only.groups is not None:
                _renumber(new, self._arrived, sizes)
        self._settled, self._arrived = place, []

    def _move_times(self, rows: np.ndarray, offsets_ns: int | np.ndarray) -> None:
        for column in self._times:
            times = rows[column]
            np.add(times, offsets_ns, out=times, where=times > 0)


def _renumber(rows: np.ndarray, parts: list[Arrived], sizes: np.ndarray) -> None:
    """Puts the job's group numbers in place of each message's own, for all messages at once."""
    tables: list[np.ndarray] = []
    places: dict[int, tuple[int, int]] = {}
    total = 0
    bounds = []
    for part in parts:
        assert part.groups is not None
        if id(part.groups) not in places:  # the messages of a node share one
            places[id(part.groups)] = (total, total + part.groups.size - 1)
            tables.append(part.groups)
            total += part.groups.size
        bounds.append(places[id(part.groups)])
    first, last = np.array(bounds, np.int64).T
    place = rows["group"] + np.repeat(first, sizes)
    rows["group"] = np.concatenate(tables)[np.minimum(place, np.repeat(last, sizes), out=place)]
