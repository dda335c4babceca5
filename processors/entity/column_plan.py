"""What rules ask of one order of series, as columns: which point, which test, which threshold, of all series at once.

Columns are made once for all speakers of a shape, their names once per order (``series.Asked``); ``metrics`` asks both
at each look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .asked_series import AskedRules, Series
from .condition_rules import MetricRule, Test

#: Fewer devices than this have no majority.
MIN_PEERS = 4

#: Tests that hold below their threshold.
_LESS = (Test.BELOW, Test.DROPS_BELOW)
#: What is known of a look from that look and the one before it.
IN_COLUMNS = (
    Test.ABOVE, Test.BELOW, Test.DROPS_BELOW, Test.RISES_ABOVE, Test.GROWS, Test.RATE_ABOVE, Test.BELOW_PEERS,
    Test.ABOVE_PEERS,
)  # fmt: skip
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
    that are asked whether it was well once.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnPlan:
    """series: what one speaker calls what is in the columns."""

    columns: Columns
    series: tuple[Series, ...]


class RuleColumns:
    """Of rules, each with the places of the points that it asks about; kept for each set of rules that are left out, as
    a collector that sees knows better.
    """

    __slots__ = ("_asked", "_made", "guards")

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._made: dict[frozenset[str], Columns] = {}
        #: Collectors that know better than some rule.
        self.guards = tuple(dict.fromkeys(rule.unless_watched for rule, _ in asked if rule.unless_watched))

    def of(self, left_out: frozenset[str]) -> Columns:
        """left_out: of the guards, those that see."""
        found = self._made.get(left_out)
        if found is None:
            found = self._made[left_out] = _made([each for each in self._asked if _is_in(each[0], left_out)])
        return found


class Plans:
    """Of one order of series. columns: of its rules."""

    __slots__ = ("_asked", "_columns", "_plans", "is_plain")

    def __init__(self, asked: AskedRules, columns: RuleColumns) -> None:
        self._asked, self._columns = asked, columns
        self._plans: dict[frozenset[str], ColumnPlan] = {}
        keys = [series.key for _, each in asked for series in each]
        #: Whether no series is asked about twice, or about its own past; else one look follows from another, and
        #: columns do not do.
        self.is_plain = len(set(keys)) == len(keys) and all(rule.test in IN_COLUMNS for rule, _ in asked)

    def plan(self, watching: dict[str, bool]) -> ColumnPlan:
        """watching: by collector, whether it sees its source."""
        left_out = frozenset([name for name in self._columns.guards if watching.get(name)])
        found = self._plans.get(left_out)
        if found is None:
            series = [series for rule, each in self._asked if _is_in(rule, left_out) for series in each]
            found = ColumnPlan(columns=self._columns.of(left_out), series=tuple(series))
            self._plans[left_out] = found
        return found


def _is_in(rule: MetricRule, left_out: Collection[str]) -> bool:
    return rule.unless_watched not in left_out


def _made(asked: _Asked) -> Columns:
    flat = [(rule, place) for rule, places in asked for place in places]
    tests = [rule.test for rule, _ in flat]
    sign = np.array([-1.0 if test in _LESS else 1.0 for test in tests])
    grows = [place for place, test in enumerate(tests) if test in (Test.GROWS, Test.RATE_ABOVE)]
    return Columns(
        rules=tuple(rule for rule, _ in flat),
        place=np.array([place for _, place in flat], np.intp),
        sign=sign,
        limit=sign * np.array([rule.threshold for rule, _ in flat]),
        grows=np.array(grows, np.intp),
        per_second=np.array([tests[place] is Test.RATE_ABOVE for place in grows], bool),
        peers=tuple(_peers_of(asked)),
        shares=tuple(place for place, (rule, _) in enumerate(flat) if rule.of),
        remembered=tuple(place for place, test in enumerate(tests) if test in (Test.DROPS_BELOW, Test.RISES_ABOVE)),
    )


def _peers_of(rules: _Asked) -> Iterator[_Peers]:
    by_size: dict[int, list[tuple[range, float]]] = {}
    begin = 0
    for rule, each in rules:
        if rule.test in (Test.BELOW_PEERS, Test.ABOVE_PEERS):
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
