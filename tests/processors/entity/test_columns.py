"""All series of a look at once, in columns, or one after the other: the same conditions, and the same is remembered."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.processors.entity.column_plan import IN_COLUMNS, MIN_PEERS, medians_of_the_others
from whichrank.processors.entity.condition_rules import Test as Asks
from whichrank.processors.entity.conditions import MAX_CONDITIONS, EntityState
from whichrank.processors.entity.metrics import take_samples
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.entity.series import AskedOf
from whichrank.processors.entity.series_table import MAX_SERIES
from whichrank.telemetry.point_columns import PointColumns
from whichrank.telemetry.records import Identity, Samples
from whichrank.telemetry.speaker_series import SeriesShape, SpeakerSeries

#: So few that all conditions are remembered: of more than that the order decides which one is forgotten.
GPUS = 5


class Fleet:
    """Every metric that a rule for a kind of entity asks about or compares with, of each of eight devices where it has
    some.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.rules = kind, load_rules().of_entity(kind)
        self.series = list(self._series())
        names, attributes = tuple(name for name, _ in self.series), tuple(each for _, each in self.series)
        self.shape = SeriesShape(names, attributes, ((),) * len(self.series))

    def _series(self) -> Iterator[tuple[str, dict[str, str]]]:
        tables = (self.rules.limits, self.rules.metrics, self.rules.counts)
        for name in sorted({name for table in tables for name in table}):
            rules = [rule for table in tables for rule in table.get(name, ())]
            devices = {attribute for rule in rules for attribute in rule.device}
            for number, where in enumerate({tuple(rule.where.items()): None for rule in rules}):
                for gpu in range(GPUS if all(rule.device for rule in rules) else 1):
                    yield name, {attribute: f"g{gpu}.{number}" for attribute in devices} | dict(where)

    def told(self, order: object | None, time_s: int, factors: list[float]) -> Samples:
        """At a time, every threshold times one of the factors."""
        rules = [self.rules.metrics.get(name) or self.rules.limits.get(name) or () for name, _ in self.series]
        thresholds = [(each[0].threshold if each else 0.0) or 1.0 for each in rules]
        values = np.array([t * factors[place % len(factors)] for place, t in enumerate(thresholds)])
        times = np.full(len(self.series), time_s * 1_000_000_000, np.uint64)
        columns = PointColumns(self.series, values, times, np.full(len(self.series), 7, np.uint64))
        points = columns if order else tuple(columns)
        return Samples(identity=Identity(node="n"), entity=self.kind, points=points, order=order)


FLEETS = {kind: Fleet(kind) for kind in ("node", "switch", "storage")}
#: Near each threshold, on it, and far away; of more looks than it takes to know what is usual.
looks = st.lists(
    st.tuples(st.integers(1, 120), st.lists(st.sampled_from([0.0, 0.4, 0.99, 1.0, 1.01, 3.0, 1e4]), min_size=6)),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("kind", FLEETS)
@settings(max_examples=15, deadline=None)
@given(looks=looks, watched=st.booleans())
def test_at_once_and_one_by_one_say_the_same(kind: str, looks: list[tuple[int, list[float]]], watched: bool) -> None:
    fleet = FLEETS[kind]
    asked_of, order = AskedOf(load_rules()), SpeakerSeries(fleet.shape)
    guards = {rule.unless_watched for rules in fleet.rules.metrics.values() for rule in rules} - {""}
    at_once, one_by_one = EntityState(), EntityState()
    for state in (at_once, one_by_one):
        state.watching = dict.fromkeys(guards, watched)
    assert len(asked_of(fleet.told(order, 1, [1.0])).plans.plan(at_once.watching).series) > GPUS
    now_s = 0
    for passed_s, factors in looks:
        now_s += passed_s
        found = [
            take_samples(state, samples, asked_of(samples))
            for state, samples in (
                (at_once, fleet.told(order, now_s, factors)),
                (one_by_one, fleet.told(None, now_s, factors)),
            )
        ]
        assert sorted(map(repr, found[0])) == sorted(map(repr, found[1]))
    assert at_once.conditions == one_by_one.conditions
    assert len(at_once.conditions) < MAX_CONDITIONS
    assert sorted(at_once.limits) == sorted(one_by_one.limits)
    assert at_once.usual == one_by_one.usual
    assert _rows_of(at_once) == _rows_of(one_by_one)


def _rows_of(state: EntityState) -> dict[str, list[float]]:
    return dict(zip(state.series, state.series.numbers.tolist(), strict=True))


def test_every_question_is_among_those_that_are_compared() -> None:
    for fleet in FLEETS.values():
        asked = {rule.test for name, _ in fleet.series for rule in fleet.rules.metrics.get(name, ())}
        assert asked == {rule.test for rules in fleet.rules.metrics.values() for rule in rules} > {Asks.GROWS}
    asked = {rule.test for fleet in FLEETS.values() for rules in fleet.rules.metrics.values() for rule in rules}
    assert asked >= (set(IN_COLUMNS) - {Asks.ABOVE_PEERS}) | {Asks.MEAN_TIMES_USUAL}


def test_where_there_is_no_room_for_all_series_each_is_taken_as_far_as_there_is() -> None:
    fleet = FLEETS["node"]
    state, order = EntityState(), SpeakerSeries(fleet.shape)
    for number in range(MAX_SERIES - 3):
        state.series.add(f"another {number}")
    samples = fleet.told(order, 1, [1.0])
    take_samples(state, samples, AskedOf(load_rules())(samples))
    assert len(state.series) == MAX_SERIES


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.floats(-1e6, 1e6), min_size=n, max_size=n), min_size=1))
)
def test_the_median_of_the_others_of_each_row(rows: list[list[float]]) -> None:
    found = medians_of_the_others(np.array(rows))
    for values, medians in zip(rows, found.tolist(), strict=True):
        others = [[*values[:place], *values[place + 1 :]] for place in range(len(values))]
        expected = [statistics.median(each) if len(values) >= MIN_PEERS else 0.0 for each in others]
        assert medians == pytest.approx(expected)
