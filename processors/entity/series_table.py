"""What is remembered of each series that a rule asks about: one row of numbers per series, found by its name.

In one table, so that what an entity tells at a look is compared in columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

#: Value, time and start of the last point; since when the test holds, and does not; when it last did not. Unix seconds.
VALUE, TIME, START, HOLDS_SINCE, CLEAR_SINCE, CLEAR_AT = range(6)
WIDTH = 6
#: Of one entity.
MAX_SERIES = 2048


class SeriesTable:
    """Rows are only ever added, at most MAX_SERIES."""

    __slots__ = ("_numbers", "_rows")

    def __init__(self, names: Sequence[str] = (), numbers: NDArray[np.float64] | None = None) -> None:
        """numbers: (len(names), WIDTH), of the series with these names; default: all 0."""
        self._rows = {name: row for row, name in enumerate(names)}
        self._numbers = np.zeros((len(names), WIDTH)) if numbers is None else np.array(numbers, np.float64)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of the rows."""
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeriesTable):
            return NotImplemented
        return list(self) == list(other) and np.array_equal(self.numbers, other.numbers, equal_nan=True)

    __hash__ = None  # type: ignore[assignment]

    @property
    def numbers(self) -> NDArray[np.float64]:
        """All rows (n, WIDTH), as a view that is good until a series is added; what is written there stays."""
        return self._numbers[: len(self._rows)]

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The row of a series, as ``numbers``; None where it is not known."""
        row = self._rows.get(name)
        return None if row is None else self._numbers[row]

    def add(self, name: str) -> int | None:
        """The place of the series' row; a new one has a value that was never measured (its time is inf).

        None: there is no room.
        """
        row = self._rows.get(name)
        if row is None:
            row = len(self._rows)
            if row >= MAX_SERIES:
                return None
            if row >= len(self._numbers):
                self._numbers = np.concatenate((self._numbers, np.zeros((max(16, row), WIDTH))))
            self._rows[name] = row
            self._numbers[row] = 0.0
            self._numbers[row, TIME] = np.inf
        return row
