"""Encoding of what a node's collectors measure, once as long as its series stay the same.

The bytes are those of ``telemetry.otlp_metrics.encode_points``: times and values stand in them as eight bytes each,
which are put in place of those of the look before. Nor is a look read again for secrets whose texts are those of one
that had none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..agents.privacy.redaction_filter import RedactionFilter
from ..telemetry.otlp_metrics import encode_points
from ..telemetry.otlp_redaction import RequestRedactor
from ..telemetry.records import Identity, Point

#: Of a point: name, attributes, whether it is an integer, whether it has a start.
_Series = list[tuple[str, Mapping[str, Any], bool, bool]]
_EIGHT = np.arange(8)


@dataclass(slots=True)
class _Look:
    """A look that was encoded, where the eight bytes of each point's time, value and start (-1: none) stand in it.

    is_clean: the gate let it through as it was.
    """

    series: _Series
    request: NDArray[np.uint8]
    order: NDArray[np.int64]
    times: NDArray[np.int64]
    starts: NDArray[np.int64]
    is_clean: bool = False

    def of(self, points: list[Point], time_ns: int) -> bytes:
        """The same at another time, with other values."""
        request = self.request.copy()
        values = np.array(
            [p.value if type(p.value) is float else np.int64(p.value).view(np.float64) for p in points], "<f8"
        )
        told = values[self.order].view(np.uint8).reshape(-1, 8)
        request[self.times[:, None] + _EIGHT] = np.frombuffer(time_ns.to_bytes(8, "little"), np.uint8)
        request[self.times[:, None] + _VALUE_AFTER + _EIGHT] = told
        begun = np.array([p.start_ns for p in points], "<i8")[self.order].view(np.uint8).reshape(-1, 8)
        has_start = self.starts >= 0
        request[self.starts[has_start, None] + _EIGHT] = begun[has_start]
        return bytes(request.tobytes())


#: From a point's time to its value: eight bytes and a tag; and back to its start.
_VALUE_AFTER, _START_BEFORE = 9, 9


class RepeatedPoints:
    """Encodes the points of one node when called. Points of one time are one look, and a request of their own."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, int], _Look] = {}
        self._given: dict[bytes, _Look] = {}  # since the last call
        #: Looks that were encoded, and those of which only times and values were.
        self.encoded = self.repeated = 0

    def __call__(self, identity: Identity, points: Iterable[Point], *, limit_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        self._given.clear()
        for time_ns, look in groupby(points, lambda point: point.time_ns):
            found += self._encode(identity, list(look), time_ns, limit_bytes)
        return found

    def _encode(self, identity: Identity, points: list[Point], time_ns: int, limit_bytes: int) -> list[bytes]:
        series = [(p.name, p.attributes, isinstance(p.value, int), bool(p.start_ns)) for p in points]
        key = (points[0].name, len(points))
        known = self._looks.get(key)
        if known is not None and known.series == series:
            self.repeated += 1
            value = known.of(points, time_ns)
            self._given[value] = known
            return [value]
        self.encoded += 1
        values = encode_points(identity, points, limit_bytes=limit_bytes)
        if len(values) == 1 and (look := _look(series, points, time_ns, values[0])) is not None:
            self._looks[key] = self._given[values[0]] = look
        return values

    def look_of(self, value: bytes) -> _Look | None:
        """The template from which these bytes of the last call were made, by putting times and values into it; None
        where the last call encoded them in full.
        """
        return self._given.get(value)


def _look(series: _Series, points: list[Point], time_ns: int, request: bytes) -> _Look | None:
    """None where the eight bytes of a time stand elsewhere as well: then nothing is known of places."""
    now = time_ns.to_bytes(8, "little")
    if request.count(now) != len(points):
        return None
    times = np.empty(len(points), np.int64)
    at = -1
    for number in range(len(points)):
        at = request.index(now, at + 1)
        times[number] = at
    by_name = {name: number for number, name in enumerate(dict.fromkeys(point.name for point in points))}
    order = np.argsort([by_name[point.name] for point in points], kind="stable")  # as metrics hold them
    has_start = np.array([starts for *_, starts in series])[order]
    look = _Look(
        series=series,
        request=np.frombuffer(request, np.uint8).copy(),
        order=order,
        times=times,
        starts=np.where(has_start, times - _START_BEFORE, -1),
    )
    return look if look.of(points, time_ns) == request else None


class RepeatedGate(RedactionFilter):
    """The agents' gate, which does not read what differs only in numbers from what it has let through unchanged."""

    def __init__(self, encoded: RepeatedPoints, requests: RequestRedactor) -> None:
        """The gate of one node. encoded: of that node; requests: of all nodes, since most texts are the same on each of
        them.
        """
        super().__init__(requests=requests)
        self._encoded = encoded

    def message(self, topic: str, key: str, value: bytes) -> tuple[str, bytes] | None:
        """Key and value as the gate lets them through, None where it does not; bytes clean before are not searched
        again.
        """
        look = self._encoded.look_of(value)
        if look is not None and look.is_clean:
            return key, value
        found = super().message(topic, key, value)
        if look is not None and found == (key, value):
            look.is_clean = True
        return found
