"""All series of a look at once, in columns, or one after the other: the same conditions, and the same is remembered."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.processors.entity.column_plan import IN_COLUMNS, MIN_PEERS, medians_of_the_others
from whichrank.processors.entity.condition_rules import MetricRule
from whichrank.processors.entity.condition_rules import Test as Asks
from whichrank.processors.entity.conditions import EntityState
from whichrank.processors.entity.metrics import take_samples
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.entity.series import AskedOf
from whichrank.processors.entity.series_table import MAX_SERIES
from whichrank.telemetry.point_columns import PointColumns
from whichrank.telemetry.records import Identity, Samples
from whichrank.telemetry.speaker_series import SeriesShape, SpeakerSeries


def _in_columns(rules: Mapping[str, tuple[MetricRule, ...]]) -> dict[str, tuple[MetricRule, ...]]:
    """Without what is asked of a series' own past, which is asked one by one."""
    kept = {name: tuple(rule for rule in each if rule.test in IN_COLUMNS) for name, each in rules.items()}
    return {name: each for name, each in kept.items() if each}


_ALL = load_rules().of_entity("node")
RULES = replace(_ALL, metrics=_in_columns(_ALL.metrics), limits=_in_columns(_ALL.limits))
GPUS = 8


def _series() -> Iterator[tuple[str, dict[str, str]]]:
    """Every metric that a rule asks about or compares with, of each of eight devices where it has some."""
    for name in sorted({*RULES.limits, *RULES.metrics}):
        rules = [*RULES.limits.get(name, ()), *RULES.metrics.get(name, ())]
        devices = {attribute for rule in rules for attribute in rule.device}
        for number, where in enumerate({tuple(rule.where.items()): None for rule in rules}):
            for gpu in range(GPUS if all(rule.device for rule in rules) else 1):
                yield name, {attribute: f"g{gpu}.{number}" for attribute in devices} | dict(where)


SERIES = list(_series())
SHAPE = SeriesShape(tuple(name for name, _ in SERIES), tuple(each for _, each in SERIES), ((),) * len(SERIES))
#: Near each threshold, on it, and far away.
looks = st.lists(
    st.tuples(st.integers(1, 120), st.lists(st.sampled_from([0.0, 0.4, 0.99, 1.0, 1.01, 3.0, 1e4]), min_size=6)),
    min_size=1,
    max_size=6,
)


def told(order: object | None, time_s: int, factors: list[float]) -> Samples:
    thresholds = [RULES.metrics.get(name, RULES.limits.get(name, ()))[0].threshold or 1.0 for name, _ in SERIES]
    values = np.array([t * factors[place % len(factors)] for place, t in enumerate(thresholds)])
    times = np.full(len(SERIES), time_s * 1_000_000_000, np.uint64)
    columns = PointColumns(SERIES, values, times, np.full(len(SERIES), 7, np.uint64))
    return Samples(identity=Identity(node="n"), points=columns if order else tuple(columns), order=order)


@settings(max_examples=60, deadline=None)
@given(looks=looks, watched=st.booleans())
def test_at_once_and_one_by_one_say_the_same(looks: list[tuple[int, list[float]]], watched: bool) -> None:
    asked_of, order = AskedOf(RULES), SpeakerSeries(SHAPE)
    assert asked_of(told(order, 1, [1.0])).plans.is_plain
    guards = {rule.unless_watched for rules in RULES.metrics.values() for rule in rules} - {""}
    at_once, one_by_one = EntityState(), EntityState()
    for state in (at_once, one_by_one):
        state.watching = dict.fromkeys(guards, watched)
    now_s = 0
    for passed_s, factors in looks:
        now_s += passed_s
        found = [
            take_samples(state, samples, asked_of(samples))
            for state, samples in ((at_once, told(order, now_s, factors)), (one_by_one, told(None, now_s, factors)))
        ]
        assert sorted(map(repr, found[0])) == sorted(map(repr, found[1]))
    assert at_once.conditions == one_by_one.conditions
    assert sorted(at_once.limits) == sorted(one_by_one.limits)
    assert _rows_of(at_once) == _rows_of(one_by_one)


def _rows_of(state: EntityState) -> dict[str, list[float]]:
    return dict(zip(state.series, state.series.numbers.tolist(), strict=True))


def test_every_question_is_among_those_that_are_compared() -> None:
    asked = {rule.test for name, _ in SERIES for rule in RULES.metrics.get(name, ())}
    assert asked == {rule.test for rules in RULES.metrics.values() for rule in rules} >= {Asks.GROWS, Asks.BELOW_PEERS}


def test_where_there_is_no_room_for_all_series_each_is_taken_as_far_as_there_is() -> None:
    state, order = EntityState(), SpeakerSeries(SHAPE)
    for number in range(MAX_SERIES - 3):
        state.series.add(f"another {number}")
    samples = told(order, 1, [1.0])
    take_samples(state, samples, AskedOf(RULES)(samples))
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
