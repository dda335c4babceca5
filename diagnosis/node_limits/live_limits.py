"""Whether a value may be beyond a limit that holds while jobs run (``live`` in the table), and is told at each look.

Coarser than the rules of ``processors/entity``, which alone say what a condition is: "may" is said too often, never too
seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...telemetry.records import Point
from .table import rows_of

_ABOVE, _BELOW = ("above", "rises_above"), ("below", "drops_below")
_BELOW_PEERS, _ABOVE_PEERS = "below_peers", "above_peers"
_GROWING = ("grows", "rate_above")
#: All others ask for more than a look says.
_OF_ONE_LOOK = (*_ABOVE, *_BELOW, _BELOW_PEERS, _ABOVE_PEERS)
#: Wholes of one node that are remembered: of its GPUs, file systems and groups of processes.
MAX_WHOLES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """of: the share of this other metric of the same device is asked; "": the value is."""

    where: Mapping[str, str]
    of: str
    device: tuple[str, ...]
    test: str
    threshold: float


@cache
def _limits() -> Mapping[str, tuple[_Limit, ...]]:
    found: dict[str, tuple[_Limit, ...]] = {}
    for row in rows_of("live"):
        limit = _Limit(
            where=dict(row["where"]),
            of=row.get("of", ""),
            device=tuple(row.get("device", ())),
            test=row["test"],
            threshold=float(row["threshold"]),
        )
        found[row["metric"]] = (*found.get(row["metric"], ()), limit)
    return found


@cache
def longest_s() -> float:
    """After so long any rule of the table has seen that what it asks holds, or is over."""
    return max(max(float(row.get("hold_s", 0.0)), float(row.get("clear_s", 30.0))) for row in rows_of("live"))


def is_limited(metric: str) -> bool:
    """Whether a rule asks about the metric while jobs run."""
    return metric in _limits()


def asks_growth(metric: str) -> bool:
    """Whether a rule asks how it grows: then each change of it may be what the rule looks for."""
    return any(limit.test in _GROWING for limit in _limits().get(metric, ()))


def compares_peers(metric: str) -> bool:
    """Whether a rule compares devices of a node by it, and so has to be told of all of them at once."""
    return any(limit.test in (_BELOW_PEERS, _ABOVE_PEERS) for limit in _limits().get(metric, ()))


class LiveLimits:
    """Of one node, whose wholes it remembers. Not for several threads."""

    def __init__(self) -> None:
        self._wholes: dict[tuple[str, tuple[Any, ...]], float] = {}

    def hear(self, points: Iterable[Point]) -> None:
        """Remembers what others are a share of (a file system's size)."""
        for point in points:
            for device in _devices_of_wholes().get(point.name, ()):
                key = (point.name, _device(point, device))
                if key in self._wholes or len(self._wholes) < MAX_WHOLES:
                    self._wholes[key] = point.value

    def may_be_beyond(self, metric: str, points: Sequence[Point]) -> bool:
        """Whether a rule may hold of any of these points, all of that metric; growth is not asked."""
        return any(self._holds(limit, _where(limit, points)) for limit in _limits().get(metric, ()))

    def _holds(self, limit: _Limit, points: Sequence[Point]) -> bool:
        if not points or limit.test in _GROWING:
            return False
        if limit.test not in _OF_ONE_LOOK:
            return True
        values = [point.value for point in points]
        lowest, highest = min(values), max(values)
        # The median of the others lies between the lowest and the highest of all.
        if limit.test == _BELOW_PEERS:
            return lowest < highest * (1 - limit.threshold)
        if limit.test == _ABOVE_PEERS:
            return highest > lowest * (1 + limit.threshold)
        if limit.of:
            shares = [self._share(limit, point) for point in points]
            if None in shares:
                return True
            lowest, highest = (pick(share for share in shares if share is not None) for pick in (min, max))
        return lowest < limit.threshold if limit.test in _BELOW else highest > limit.threshold

    def _share(self, limit: _Limit, point: Point) -> float | None:
        whole = self._wholes.get((limit.of, _device(point, limit.device)), 0.0)
        return point.value / whole if whole > 0 else None


@cache
def _devices_of_wholes() -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """By metric that others are a share of, which attributes name its device."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for limits in _limits().values():
        for limit in limits:
            if limit.of and limit.device not in found.get(limit.of, ()):
                found[limit.of] = (*found.get(limit.of, ()), limit.device)
    return found


def _device(point: Point, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(point.attributes.get(name, "") for name in names)


def _where(limit: _Limit, points: Sequence[Point]) -> Sequence[Point]:
    if not limit.where:
        return points
    return [
        point
        for point in points
        if all(str(point.attributes.get(name)) == value for name, value in limit.where.items())
    ]
