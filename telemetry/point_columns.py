"""Points of metrics as columns: a node tells hundreds at a look, and an object for each would be most of its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .records import Point


class PointColumns(Sequence[Point]):
    """Points whose numbers are columns: one is made where somebody asks for it. Not to be changed.

    series: name and attributes of each. values: (n,) float64; times_ns, starts_ns: (n,) uint64, as in ``Point``.
    """

    __slots__ = ("_series", "starts_ns", "times_ns", "values")

    def __init__(
        self,
        series: Sequence[tuple[str, Mapping[str, Any]]],
        values: NDArray[np.float64],
        times_ns: NDArray[np.uint64],
        starts_ns: NDArray[np.uint64],
    ) -> None:
        self._series, self.values, self.times_ns, self.starts_ns = series, values, times_ns, starts_ns

    def in_seconds(self) -> NDArray[np.float64]:
        """(n, 3): value, time and start of each, times in seconds."""
        found = np.empty((len(self._series), 3))
        found[:, 0] = self.values
        np.divide(self.times_ns, 1e9, out=found[:, 1])
        np.divide(self.starts_ns, 1e9, out=found[:, 2])
        return found

    def __len__(self) -> int:
        return len(self._series)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Point, ...]: ...
    def __getitem__(self, place: int | slice) -> Point | tuple[Point, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(*place.indices(len(self))))
        name, attributes = self._series[place]
        return Point(
            name=name,
            value=float(self.values[place]),
            attributes=attributes,
            time_ns=int(self.times_ns[place]),
            start_ns=int(self.starts_ns[place]),
        )

    def __iter__(self) -> Iterator[Point]:
        numbers = zip(self.values.tolist(), self.times_ns.tolist(), self.starts_ns.tolist(), strict=True)
        for (name, attributes), (value, time_ns, start_ns) in zip(self._series, numbers, strict=True):
            yield Point(name=name, value=value, attributes=attributes, time_ns=time_ns, start_ns=start_ns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def value_at(points: Sequence[Point], place: int) -> float:
    """The value of one point, which is not made for it."""
    return float(points.values[place]) if isinstance(points, PointColumns) else points[place].value
