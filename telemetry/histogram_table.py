"""Exponential histograms of many series at once: values recorded by columns, points written on request.

One row of bucket counts per series, so that a flush of thousands of operations is a few calls of numpy. Scale and range
are fixed: 9 % between bounds from a microsecond to a day and a half; what lies outside is in the outermost bucket.
Mutable, no thread of its own; bounded by ``max_series``.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from .metric_encode import histogram_point
from .otlp_wire import varint

#: Buckets per doubling: 2^3.
SCALE = 3
_PER_DOUBLING = 1 << SCALE
#: Index of the first bucket (values above 2^-20 s) and their number (up to 2^17 s).
_FIRST, _BUCKETS = -20 * _PER_DOUBLING, 37 * _PER_DOUBLING
_FIRST_SERIES = 64


class HistogramTable:
    """``series`` names a row, ``record`` adds values, ``points`` writes all rows."""

    def __init__(self, max_series: int) -> None:
        self._max_series = max_series
        self._slots: dict[Hashable, int] = {}
        self._attributes: dict[int, bytes] = {}
        self._ended: set[Hashable] = set()
        self._free: list[int] = []
        self._counts = np.zeros((_FIRST_SERIES, _BUCKETS), np.int64)
        self._sums = np.zeros(_FIRST_SERIES)
        self._zeros = np.zeros(_FIRST_SERIES, np.int64)
        self._start_ns = np.zeros(_FIRST_SERIES, np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    def series(self, key: Hashable, attributes: bytes, now_ns: int) -> int:
        """The row of a series, a new one if need be; -1 where there are too many.

        attributes: encoded, for its points. now_ns: Unix time at which a new one begins to count.
        """
        slot = self._slots.get(key)
        if slot is not None:
            self._ended.discard(key)
            return slot
        if len(self._slots) >= self._max_series:
            return -1
        slot = self._free.pop() if self._free else len(self._slots)
        if slot >= len(self._sums):
            self._grow()
        self._slots[key], self._attributes[slot] = slot, attributes
        self._counts[slot], self._sums[slot], self._zeros[slot], self._start_ns[slot] = 0, 0.0, 0, now_ns
        return slot

    def known(self, key: Hashable) -> int | None:
        """The row of a series; None if it has none or has ended."""
        return self._slots.get(key) if key not in self._ended else None

    def record(self, rows: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        """Adds values (n,) to the rows (n,) of these numbers; a row of -1 is passed over."""
        if len(rows) and rows.min() < 0:
            rows, values = rows[rows >= 0], values[rows >= 0]
        if not len(rows):
            return
        np.add.at(self._sums, rows, values)
        positive = values > 0
        if not positive.all():
            np.add.at(self._zeros, rows[~positive], 1)
            rows, values = rows[positive], values[positive]
        # Bucket i holds values above 2^(i/8) and up to 2^((i+1)/8).
        index = np.ceil(np.log2(values) * _PER_DOUBLING).astype(np.int64) - 1 - _FIRST
        np.add.at(self._counts, (rows, np.clip(index, 0, _BUCKETS - 1)), 1)

    def end(self, key: Hashable) -> None:
        """Ends a series, if it is there: it is written once more by ``points``, and then forgotten."""
        if key in self._slots:
            self._ended.add(key)

    def points(self, time_ns: int) -> list[bytes]:
        """An encoded point for each series, counting since its begin; those that ended are then forgotten.

        time_ns: Unix.
        """
        slots = np.fromiter(self._slots.values(), np.intp, len(self._slots))
        counts = self._counts[slots]
        used = counts > 0
        columns = zip(
            slots.tolist(),
            (counts.sum(axis=1) + self._zeros[slots]).tolist(),
            self._sums[slots].tolist(),
            self._zeros[slots].tolist(),
            self._start_ns[slots].tolist(),
            used.argmax(axis=1).tolist() if len(slots) else (),
            (_BUCKETS - used[:, ::-1].argmax(axis=1)).tolist() if len(slots) else (),
            counts,
            strict=True,
        )
        written = [
            histogram_point(
                self._attributes[slot],
                start_ns=start_ns,
                time_ns=time_ns,
                count=count,
                total=total,
                scale=SCALE,
                zero_count=zeros,
                offset=_FIRST + first,
                buckets=b"".join([varint(each) for each in row[first:last].tolist()]) if count > zeros else b"",
            )
            for slot, count, total, zeros, start_ns, first, last, row in columns
        ]
        for key in self._ended:
            slot = self._slots.pop(key)
            del self._attributes[slot]
            self._free.append(slot)
        self._ended.clear()
        return written

    def _grow(self) -> None:
        self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._sums = np.concatenate((self._sums, np.zeros_like(self._sums)))
        self._zeros = np.concatenate((self._zeros, np.zeros_like(self._zeros)))
        self._start_ns = np.concatenate((self._start_ns, np.zeros_like(self._start_ns)))
