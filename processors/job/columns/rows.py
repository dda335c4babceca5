"""Moving rows of structured arrays as bytes: numpy else copies them field by field, ten times slower (measured)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class _Items(dict[int, "np.dtype[np.void]"]):
    def __missing__(self, size: int) -> np.dtype[np.void]:
        found = self[size] = np.dtype((np.void, size))
        return found


_items = _Items()


def pick(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """``rows[chosen]``, (k,), as a copy, for chosen: (k,) indices or an (n,) mask; rows: (n,)."""
    items = _as_items(rows)
    return (items.compress(chosen) if chosen.dtype == bool else items.take(chosen)).view(rows.dtype)


def put(target: np.ndarray, places: np.ndarray, rows: np.ndarray) -> None:
    """Sets ``target[places] = rows``, in place. rows: of the target's dtype; places: indices or a mask."""
    _as_items(target)[places] = _as_items(rows)


def _as_items(rows: np.ndarray) -> np.ndarray:
    """The same memory, without what numpy would do for each field."""
    return rows.view(_items[rows.dtype.itemsize]) if rows.dtype.names else rows


def in_dtype(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The rows with exactly this dtype's columns: themselves, or a copy in which missing columns are zero.

    rows: (n,).
    """
    if rows.dtype == dtype:
        return rows
    out = np.zeros(rows.size, dtype)
    for column in set(dtype.names or ()) & set(rows.dtype.names or ()):
        out[column] = rows[column]
    return out


def copy_of(rows: np.ndarray) -> np.ndarray:
    """A copy that may be changed. rows: (n,) of a structured dtype."""
    out = np.empty(rows.size, rows.dtype)
    copy_into(out, 0, rows)
    return out


def copy_into(target: np.ndarray, place: int, rows: np.ndarray) -> int:
    """Copies rows of the same dtype to ``target[place:]``; returns the place after them. rows: (n,)."""
    item, end = target.itemsize, place + rows.size
    target.view(np.uint8)[place * item : end * item] = np.ascontiguousarray(rows).view(np.uint8)
    return end


def concatenate(chunks: Iterable[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """All chunks in one array of ``dtype``; a single one is returned as it is, not copied. chunks: rows (n,) each."""
    parts = list(chunks)
    return parts[0] if len(parts) == 1 else joined(parts, dtype)


def joined(parts: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """A copy of the rows of all parts, one after the other: one call, where each part would be several."""
    buffers: list[Any] = [part if part.flags.c_contiguous else part.tobytes() for part in parts]
    return np.frombuffer(bytearray().join(buffers), dtype)


class Growing:
    """An array to which rows are added at the end one after the other; ``filled`` is all of them, a view."""

    __slots__ = ("_room", "filled")

    def __init__(self, dtype: np.dtype | type) -> None:
        self._room = np.zeros(0, dtype)
        self.filled = self._room

    def grow(self, count: int) -> np.ndarray:
        """``filled`` with ``count`` more rows of zeros at its end. Views given out before may no longer show what is
        written.
        """
        size = self.filled.size + count
        if size > self._room.size:
            room = np.zeros(max(size, 2 * self._room.size), self._room.dtype)
            copy_into(room, 0, self.filled)
            self._room = room
        self.filled = self._room[:size]
        return self.filled
