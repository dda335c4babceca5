"""Rows of steps that are not closed yet, one table of them, in the job's times and numbers of groups.

Adding keeps a reference and nothing else; the rows of many turns are put together when somebody reads them, in a buffer
that grows and is used again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..columns.packing import pack
from ..columns.rows import copy_into, copy_of

_FIRST_CAPACITY = 1024


class OpenChunk:
    """Rows of some turns (each with the name of its table) until they are written as one row of the state."""

    __slots__ = ("is_written", "parts")

    def __init__(self) -> None:
        self.parts: list[tuple[str, np.ndarray]] = []
        self.is_written = False

    def write(self) -> bytes:
        """The parts so far as a row of state; drops them and marks the chunk as written, so that new rows go into
        another one.
        """
        arrays = {f"{name}/{number}": rows for number, (name, rows) in enumerate(self.parts)}
        offsets = np.zeros(len(self.parts), np.int64)  # earlier releases add it to the times, and ask for it
        self.parts, self.is_written = [], True
        return pack({}, {**arrays, "offsets": offsets})


class OpenRows:
    """Rows of one table for steps that are not closed. Owned by the job's state."""

    __slots__ = ("_added", "_buffer", "_settled", "_unsaved", "replaced", "size")

    def __init__(self, dtype: np.dtype) -> None:
        self._buffer = np.empty(0, dtype)
        self._settled = 0
        self._added: list[np.ndarray] = []
        self._unsaved: list[np.ndarray] = []
        #: Rows held.
        self.size = 0
        #: How often what is held was replaced: in between, rows are only added behind the others.
        self.replaced = 0

    @property
    def dtype(self) -> np.dtype:
        """The dtype of a row."""
        dtype: np.dtype = self._buffer.dtype
        return dtype

    def add(self, rows: np.ndarray, *, saved: bool = False) -> None:
        """Adds rows (n,), which must not change any more. saved: they are in the state already."""
        self._added.append(rows)
        self.size += rows.size
        if not saved:
            self._unsaved.append(rows)

    def all(self) -> np.ndarray:
        """Every row in order of arrival, as a view that is good until the next call of any method."""
        if self._added:
            self._settle()
        return self._buffer[: self._settled]

    def keep(self, rows: np.ndarray) -> None:
        """Replaces everything by a copy of ``rows``, which are rows of ``all()``."""
        if rows.size:
            copy_into(self._buffer, 0, rows)
        self._settled = self.size = rows.size
        self._added = []
        self.replaced += 1

    def take_unsaved(self) -> Sequence[np.ndarray]:
        """What was added since the last call, or since ``take_everything``; it counts as saved then."""
        unsaved, self._unsaved = self._unsaved, []
        return unsaved

    def take_everything(self) -> Sequence[np.ndarray]:
        """A copy of all rows held, in one part ([] for none), to write the whole state anew. The rows stay, and
        ``take_unsaved`` does not give them again.
        """
        self._unsaved = []
        rows = self.all()
        return [copy_of(rows)] if rows.size else []

    def _settle(self) -> None:
        if self.size > self._buffer.size:
            grown = np.empty(max(2 * self._buffer.size, self.size, _FIRST_CAPACITY), self._buffer.dtype)
            copy_into(grown, 0, self._buffer[: self._settled])
            self._buffer = grown
        for rows in self._added:
            self._settled = copy_into(self._buffer, self._settled, rows)
        self._added = []
