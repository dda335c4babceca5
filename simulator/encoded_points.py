"""Encoding of what a node's collectors measure, once as long as nothing changes but the time of a look.

The bytes are those of ``telemetry.otlp_metrics.encode_points``: times stand in them as eight bytes each, which are put
in place of those of the look before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from ..telemetry.otlp_metrics import encode_points
from ..telemetry.records import Identity, Point

_Content = list[tuple[str, float, int, Mapping[str, Any]]]


class RepeatedPoints:
    """Of one node. Points of one time are one look, and a request of their own."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[_Content, int, list[bytes]]] = {}
        #: Looks that were encoded, and those of which only the time was.
        self.encoded = self.repeated = 0

    def __call__(self, identity: Identity, points: Iterable[Point], *, limit_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        for time_ns, look in groupby(points, lambda point: point.time_ns):
            found += self._encode(identity, list(look), time_ns, limit_bytes)
        return found

    def _encode(self, identity: Identity, points: list[Point], time_ns: int, limit_bytes: int) -> list[bytes]:
        content = [(point.name, point.value, point.start_ns, point.attributes) for point in points]
        key = (points[0].name, len(points))
        last = self._last.get(key)
        now = time_ns.to_bytes(8, "little")
        if last is not None and last[0] == content:
            self.repeated += 1
            before = last[1].to_bytes(8, "little")
            return [value.replace(before, now) for value in last[2]]
        self.encoded += 1
        values = encode_points(identity, points, limit_bytes=limit_bytes)
        if sum(value.count(now) for value in values) == len(points):  # each time once, and nothing else like it
            self._last[key] = content, time_ns, values
        return values
