"""Rank by step in bounded memory: what each rank worked and waited in each step, older steps put together.

Where there are more steps than columns, two neighbours become one. A mean would hide the one rank in one step that
matters, so a cell keeps the step in which its rank was least like the others. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

#: A column for each pixel of a wide screen.
MOST_COLUMNS = 720
FEWEST_COLUMNS = 96
#: Of one of the three tables, at 4 bytes each: fewer columns where there are very many ranks.
MOST_CELLS = 12_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Steps that are shown as one. begin_s: Unix time of the first; unfinished: the step in which the attempt ended."""

    attempt: int
    first_step: int
    last_step: int
    begin_s: float
    steps: int = 1
    unfinished: bool = False


class Grid:
    """Seconds by rank and column, NaN where nothing is known, infinite where the rank had ended before the others.

    own_s: not waiting for others; waited_s; apart_s: own time less the median of all ranks in the same step.
    """

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self._stride = 1
        self._own_s = self._waited_s = self._apart_s = np.zeros((0, 0), np.float32)

    @property
    def ranks(self) -> int:
        """How many ranks, which are the rows of the tables."""
        return len(self._own_s)

    @property
    def own_s(self) -> np.ndarray:
        """(ranks, columns), seconds: a rank's own time in each column, NaN where it is not known."""
        return self._own_s[:, : len(self.columns)]

    @property
    def waited_s(self) -> np.ndarray:
        """(ranks, columns), seconds: what a rank has waited for others, NaN where it is not known."""
        return self._waited_s[:, : len(self.columns)]

    @property
    def apart_s(self) -> np.ndarray:
        """(ranks, columns), seconds: own time against the median of all ranks, NaN where it is not known."""
        return self._apart_s[:, : len(self.columns)]

    def add(self, column: Column, ranks: np.ndarray, own_s: np.ndarray, waited_s: np.ndarray) -> None:
        """Adds one step as a column, or joins it with the last one.

        ranks: (n,), ascending; own_s, waited_s: (n,), seconds of each.
        """
        if not ranks.size:
            return
        self._make_room(int(ranks[-1]) + 1)
        fresh = [np.full(self.ranks, np.nan, np.float32) for _ in range(3)]
        fresh[0][ranks], fresh[1][ranks], fresh[2][ranks] = own_s, waited_s, apart(own_s)
        last = self.columns[-1] if self.columns else None
        if last is not None and last.steps < self._stride and _may_join(last, column):
            place = len(self.columns) - 1
            self._write(place, _joined(self._column(place), tuple(fresh)))
            self.columns[-1] = _together(last, column)
            return
        self.columns.append(column)
        self._write(len(self.columns) - 1, tuple(fresh))

    def _make_room(self, ranks: int) -> None:
        ranks = max(ranks, self.ranks)
        most = min(MOST_COLUMNS, max(FEWEST_COLUMNS, MOST_CELLS // ranks))
        while len(self.columns) >= most:
            self._halve()
        if ranks > self.ranks or self._own_s.shape[1] < most:
            wide = max(most, self._own_s.shape[1])
            for name in ("_own_s", "_waited_s", "_apart_s"):
                old = getattr(self, name)
                new = np.full((ranks, wide), np.nan, np.float32)
                new[: old.shape[0], : old.shape[1]] = old
                setattr(self, name, new)

    def _halve(self) -> None:
        """Puts neighbours together; those that must stay apart (two attempts) stay."""
        self._stride *= 2
        columns: list[Column] = []
        for place, column in enumerate(self.columns):
            if columns and columns[-1].steps + column.steps <= self._stride and _may_join(columns[-1], column):
                at = len(columns) - 1
                self._write(at, _joined(self._column(at), self._column(place)))
                columns[-1] = _together(columns[-1], column)
            else:
                self._write(len(columns), self._column(place))
                columns.append(column)
        self.columns = columns

    def _column(self, place: int) -> tuple[np.ndarray, ...]:
        return tuple(table[:, place].copy() for table in (self._own_s, self._waited_s, self._apart_s))

    def _write(self, place: int, values: tuple[np.ndarray, ...]) -> None:
        for table, column in zip((self._own_s, self._waited_s, self._apart_s), values, strict=True):
            table[:, place] = column


def apart(values: np.ndarray) -> np.ndarray:
    """By how much each value is more than the median of all.

    Values: (n,), seconds of each rank, NaN where not known.
    """
    known = np.isfinite(values)
    return values - np.median(values[known]) if known.any() else values


def most_apart(values: np.ndarray) -> np.ndarray:
    """Along the last axis the index of what is least like the median of the rest of it; what had ended, first.

    values: (rows, ranks), seconds, apart from the median already. What is not known is never chosen where something is.
    """
    strength = np.where(np.isnan(values), -1.0, np.abs(values))
    return np.asarray(strength.argmax(axis=-1))


def _joined(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    own, waited, apart_ = (np.stack(pair, axis=-1) for pair in zip(one, other, strict=True))
    chosen = most_apart(apart_)[:, None]
    longer = most_apart(apart(waited))[:, None]
    return (
        np.take_along_axis(own, chosen, axis=-1)[:, 0],
        np.take_along_axis(waited, longer, axis=-1)[:, 0],
        np.take_along_axis(apart_, chosen, axis=-1)[:, 0],
    )


def _may_join(left: Column, right: Column) -> bool:
    return left.attempt == right.attempt and not left.unfinished and not right.unfinished


def _together(left: Column, right: Column) -> Column:
    return replace(left, last_step=max(left.last_step, right.last_step), steps=left.steps + right.steps)
