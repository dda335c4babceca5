"""What rules ask of one order of series, as columns: which point, which test, which threshold, of all series at once.

Columns are made once for all speakers of a shape, their names once per order (``series.Asked``); ``metrics`` asks both
at each look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .asked_series import AskedRules, Series
from .condition_rules import MetricRule, Test
from .past import BY_OWN_PAST

#: Fewer devices than this have no majority.
MIN_PEERS = 4

#: Tests that hold below their threshold.
_LESS = (Test.BELOW, Test.DROPS_BELOW)
#: Whose growth is asked for; of the last two, by the second.
_GROWING = (Test.GROWS, Test.RATE_ABOVE, Test.RATE_TIMES_USUAL)
#: What is known of a look from that look, the one before it, and what is usual of the series.
IN_COLUMNS = (
    Test.ABOVE, Test.BELOW, Test.DROPS_BELOW, Test.RISES_ABOVE, Test.GROWS, Test.RATE_ABOVE, Test.BELOW_PEERS,
    Test.ABOVE_PEERS, *BY_OWN_PAST,
)  # fmt: skip
_AMONG_PEERS = (Test.BELOW_PEERS, Test.ABOVE_PEERS)
_Peers = tuple[NDArray[np.intp], NDArray[np.float64]]
#: Rules, each with the places of the points that it asks about.
_Asked = Sequence[tuple[MetricRule, Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Columns are (n,), one element per series that a rule asks about.

    rules: of each. place: of its point. sign, limit: the test holds where sign * what is asked > limit. grows: places
    of those whose growth is asked; per_second: by these, whether it is asked by the second. peers: of rules with
    equally many devices, (rules, devices): places of the series that are compared with each other, and whether those
    above (1) or below (-1) are looked for. shares: places of those asked for their share. remembered: places of those
    that are asked whether it was well once. past: of those that are compared with what is usual of them. guarded: of
    those that are asked only while another metric of the device is not 0.
    """

    rules: tuple[MetricRule, ...]
    place: NDArray[np.intp]
    sign: NDArray[np.float64]
    limit: NDArray[np.float64]
    grows: NDArray[np.intp]
    per_second: NDArray[np.bool_]
    peers: tuple[tuple[NDArray[np.intp], NDArray[np.float64]], ...]
    shares: tuple[int, ...]
    remembered: tuple[int, ...]
    past: tuple[int, ...]
    guarded: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnPlan:
    """series: what one speaker calls what is in the columns. guards: by place of those that are guarded, the key of
    what guards it. rest: what is asked one by one.
    """

    columns: Columns
    series: tuple[Series, ...]
    guards: tuple[tuple[int, str], ...]
    rest: AskedRules


class RuleColumns:
    """Of rules, each with the places of the points that it asks about; kept for each set of rules that are left out, as
    a collector that sees knows better.
    """

    __slots__ = ("_asked", "_made", "guards")

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._made: dict[tuple[frozenset[str], frozenset[int]], Columns] = {}
        #: Collectors that know better than some rule.
        self.guards = tuple(dict.fromkeys(rule.unless_watched for rule, _ in asked if rule.unless_watched))

    def of(self, left_out: frozenset[str], apart: frozenset[int]) -> Columns:
        """left_out: of the guards, those that see. apart: places of rules that are asked one by one."""
        found = self._made.get((left_out, apart))
        if found is None:
            asked = [each for place, each in enumerate(self._asked) if place not in apart and _is_in(each[0], left_out)]
            found = self._made[left_out, apart] = _made(asked)
        return found


class Plans:
    """Of one order of series. columns: of its rules."""

    __slots__ = ("_apart", "_asked", "_columns", "_plans")

    def __init__(self, asked: AskedRules, columns: RuleColumns) -> None:
        self._asked, self._columns = asked, columns
        self._plans: dict[frozenset[str], ColumnPlan] = {}
        self._apart = frozenset(_apart(asked))

    def plan(self, watching: dict[str, bool]) -> ColumnPlan:
        """watching: by collector, whether it sees its source."""
        left_out = frozenset([name for name in self._columns.guards if watching.get(name)])
        found = self._plans.get(left_out)
        if found is None:
            found = self._plans[left_out] = self._plan(left_out)
        return found

    def _plan(self, left_out: frozenset[str]) -> ColumnPlan:
        asked = [(place in self._apart, each) for place, each in enumerate(self._asked) if _is_in(each[0], left_out)]
        columns = self._columns.of(left_out, self._apart)
        series = tuple(series for is_apart, (_, each) in asked if not is_apart for series in each)
        return ColumnPlan(
            columns=columns,
            series=series,
            guards=tuple(
                (place, f"{columns.rules[place].only_while}/{series[place].device}") for place in columns.guarded
            ),
            rest=tuple(each for is_apart, each in asked if is_apart),
        )


def _apart(asked: AskedRules) -> set[int]:
    """Places of rules that are asked one by one: with a series that is asked about twice, or by others than itself, and
    all that open the same conditions. There one answer follows from another.
    """
    times = Counter(series.key for _, each in asked for series in each)
    found = {
        place
        for place, (rule, each) in enumerate(asked)
        if rule.test not in IN_COLUMNS or any(times[series.key] > 1 for series in each)
    }
    opened: set[str] = set()
    while True:
        opened.update(series.condition for place in found for series in asked[place][1])
        more = {
            place
            for place, (_, each) in enumerate(asked)
            if place not in found and any(series.condition in opened for series in each)
        }
        if not more:
            return found
        found |= more


def _is_in(rule: MetricRule, left_out: Collection[str]) -> bool:
    return rule.unless_watched not in left_out


def _made(asked: _Asked) -> Columns:
    flat = [(rule, place) for rule, places in asked for place in places]
    tests = [rule.test for rule, _ in flat]
    sign = np.array([-1.0 if test in _LESS else 1.0 for test in tests])
    grows = [place for place, test in enumerate(tests) if test in _GROWING]
    return Columns(
        rules=tuple(rule for rule, _ in flat),
        place=np.array([place for _, place in flat], np.intp),
        sign=sign,
        limit=sign * np.array([rule.threshold for rule, _ in flat]),
        grows=np.array(grows, np.intp),
        per_second=np.array([tests[place] is not Test.GROWS for place in grows], bool),
        peers=tuple(_peers_of(asked)),
        shares=tuple(place for place, (rule, _) in enumerate(flat) if rule.of),
        remembered=tuple(place for place, test in enumerate(tests) if test in (Test.DROPS_BELOW, Test.RISES_ABOVE)),
        past=tuple(place for place, test in enumerate(tests) if test in BY_OWN_PAST),
        guarded=tuple(
            place
            for place, (rule, _) in enumerate(flat)
            if rule.only_while and rule.test not in (Test.GROWS, Test.RATE_ABOVE, *_AMONG_PEERS)
        ),
    )


def _peers_of(rules: _Asked) -> Iterator[_Peers]:
    by_size: dict[int, list[tuple[range, float]]] = {}
    begin = 0
    for rule, each in rules:
        if rule.test in _AMONG_PEERS:
            direction = -1.0 if rule.test is Test.BELOW_PEERS else 1.0
            by_size.setdefault(len(each), []).append((range(begin, begin + len(each)), direction))
        begin += len(each)
    for alike in by_size.values():
        places = np.array([places for places, _ in alike], np.intp)
        yield places, np.array([[direction] for _, direction in alike])


def medians_of_the_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """By row and device, the median of the row's other devices; 0 where a row has fewer than MIN_PEERS.

    values: (rows, devices), of any unit. Sorted once: of the others it is known who stands in the middle, whichever is
    left out.
    """
    rows, devices = values.shape
    if devices < MIN_PEERS:
        return np.zeros((rows, devices))
    order = values.argsort(axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=1)
    place = np.arange(devices)
    upper = (devices - 1) // 2
    middle = ascending[:, upper + (place <= upper)]
    if devices % 2:  # of an even number of others two stand in the middle
        middle = (ascending[:, upper - 1 + (place <= upper - 1)] + middle) / 2
    medians = np.empty_like(middle)
    np.put_along_axis(medians, order, middle, axis=1)
    return medians
