"""What need not be told again: most of what a node measures stands still, and was told.

What stands still is told once in ``FULL_NS`` all the same, everything of a node in the same look, so that who lost it,
or listens since then, knows it within a minute. Told at each look is what moves, what may be beyond a limit or was
lately (``live_limits``: rules ask how long it lasts), and metrics of which the look itself is the news. When a series
that was not told moves on, its last standing value goes before it, at the time when it was still that: so it is known
between which two looks it moved, and a rate over them is true.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from zlib import crc32

from ....diagnosis.node_limits.live_limits import (
    LiveLimits,
    asks_growth,
    compares_peers,
    is_limited,
    longest_s,
)
from ....telemetry.node_metrics import NodeMetricInstrument, node_metrics
from ....telemetry.records import Point
from .counter_series import STILL_LOOKS

#: With looks of ten seconds no more than a minute lies between two points of a series.
FULL_NS = 45_000_000_000
#: After it was beyond a limit, or grew where growth is asked, it is told at each look for the time that rules take, and
#: some looks more.
_LIVELY_NS = int((longest_s() + 30.0) * 1e9)
#: Attributes that name one device of several: all devices' points of a metric are told together, or none.
_OF_DEVICES = frozenset({"hw.id", "hw.name"})
#: Of one node: some hundred are usual. Beyond it all are forgotten, and told anew.
MAX_UNITS = 8192


@dataclass(slots=True)
class _Unit:
    """Points that are told together. full: in which ``FULL_NS`` it was told last. is_held: the last look was not told.

    lively_until_ns, lively_looks: it is told at each look until then, and in so many more.
    """

    points: Sequence[Point]
    full: int = -1
    is_held: bool = False
    lively_until_ns: int = 0
    lively_looks: int = 0


class StillPoints:
    """Called with what a collector saw in one look, gives what is to be told of it. Of one node, not for several
    threads.
    """

    def __init__(self, node: str) -> None:
        """node: its name; by it nodes differ in when they tell everything."""
        self._units: dict[Hashable, _Unit] = {}
        self._limits = LiveLimits()
        self._phase_ns = crc32(node.encode()) * 1_000_000 % FULL_NS

    def __call__(self, collector: str, points: Sequence[Point]) -> list[Point]:
        """The points to tell, what stood until the last look first."""
        self._limits.hear(points)
        if len(self._units) > MAX_UNITS:
            self._units.clear()
        by_unit: dict[Hashable, list[Point]] = {}
        for point in points:
            by_unit.setdefault((collector, point.name, _apart(point)), []).append(point)
        standing: list[Point] = []
        told: list[Point] = []
        for key, of_unit in by_unit.items():
            unit = self._units.get(key)
            if unit is None:
                unit = self._units[key] = _Unit(of_unit)
                is_told = self._is_due(unit, of_unit, moved=False)
            else:
                moved = not _stands(unit.points, of_unit)
                is_told = self._is_due(unit, of_unit, moved=moved)
                if moved and unit.is_held and _needs_last_standing_value(of_unit[0].name):
                    standing += unit.points
            unit.points, unit.is_held = of_unit, not is_told
            if is_told:
                told += of_unit
        return [*standing, *told]

    def _is_due(self, unit: _Unit, points: Sequence[Point], *, moved: bool) -> bool:
        name, now_ns = points[0].name, points[-1].time_ns
        if self._limits.may_be_beyond(name, points) or (moved and asks_growth(name)):
            unit.lively_until_ns = now_ns + _LIVELY_NS
        elif unit.lively_until_ns > now_ns + _LIVELY_NS:  # the clock was set back
            unit.lively_until_ns = now_ns
        if moved and node_metrics()[name].instrument is NodeMetricInstrument.COUNTER:
            unit.lively_looks = STILL_LOOKS + 1  # so that its rate is seen to end
        unit.lively_looks = max(0, unit.lively_looks - 1)
        full = (now_ns + self._phase_ns) // FULL_NS
        is_told = (
            moved
            or full != unit.full
            or now_ns <= unit.lively_until_ns
            or unit.lively_looks > 0
            or node_metrics()[name].each_look
        )
        unit.full = full if is_told else unit.full
        return is_told


def _apart(point: Point) -> Hashable:
    """What is told apart within a metric."""
    if compares_peers(point.name):
        return None
    return tuple(item for item in point.attributes.items() if item[0] not in _OF_DEVICES)


def _stands(before: Sequence[Point], now: Sequence[Point]) -> bool:
    return len(before) == len(now) and all(
        was.value == point.value and was.start_ns == point.start_ns and was.attributes == point.attributes
        for was, point in zip(before, now, strict=True)
    )


def _needs_last_standing_value(name: str) -> bool:
    return is_limited(name) or node_metrics()[name].instrument is NodeMetricInstrument.COUNTER
