"""Which rule asks about which point: found once for an order of series, and for all that is told in it."""

from __future__ import annotations

import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.entity.column_plan import MIN_PEERS
from whichrank.processors.entity.condition_rules import COLLECTOR, WATCHING
from whichrank.processors.entity.loads import load_load_rules
from whichrank.processors.entity.metrics import medians_of_others
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.entity.series import AskedOf, find_asked
from whichrank.telemetry.point_columns import PointColumns
from whichrank.telemetry.records import Identity, Point, Samples
from whichrank.telemetry.speaker_series import SeriesShape, SpeakerSeries

RULES = load_rules().of_entity("node")


class Order:
    """Stands for an order of series of which nothing else is known."""


def samples(order: object | None, *names: str) -> Samples:
    points = tuple(Point(name=name, value=1.0, attributes={"hw.id": "g"}, time_ns=5) for name in names)
    return Samples(identity=Identity(node="n"), points=points, order=order)


def test_it_is_worked_out_once_for_an_order_and_anew_without_one() -> None:
    names = sorted(RULES.metrics)[:20]
    asked_of = AskedOf(RULES)
    told = samples(Order(), *names)
    found = asked_of(told)
    assert found.rules
    assert asked_of(samples(told.order, *names)) is found
    assert asked_of(samples(None, *names)) == found
    assert asked_of(samples(None, *names)) is not found
    assert asked_of(samples(Order(), *reversed(names))) == find_asked(samples(None, *reversed(names)).points, RULES)


@given(st.lists(st.floats(-1e6, 1e6), max_size=9))
def test_the_median_of_the_others(values: list[float]) -> None:
    by_device = {str(place): value for place, value in enumerate(values)}
    expected = {
        device: statistics.median(value for other, value in by_device.items() if other != device)
        for device in by_device
        if len(values) >= MIN_PEERS
    }
    assert medians_of_others(by_device) == expected


#: What a rule asks about, and what not; an attribute that a rule wants to be so, and what it is of others.
_NAMES = (*sorted({*RULES.metrics, *RULES.limits, *load_load_rules()}), WATCHING, "another")
_WHERE = {name: value for rules in RULES.metrics.values() for rule in rules for name, value in rule.where.items()}
_KEYS = (*_WHERE, *sorted({name for r in RULES.metrics.values() for rule in r for name in rule.device}), COLLECTOR)
_TEXTS = st.sampled_from(("g0", "g1", "", *_WHERE.values()))
_ATTRIBUTES = st.dictionaries(st.sampled_from(_KEYS), st.one_of(_TEXTS, st.integers(0, 2)), max_size=4)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[SeriesShape, list[tuple[str, ...]]]:
    """A shape, and the words of a few speakers."""
    told = draw(st.lists(st.tuples(st.sampled_from(_NAMES), _ATTRIBUTES), max_size=12))
    count = draw(st.integers(1, 4))
    numbers = st.integers(0, count - 1)
    words = [tuple((key, draw(numbers)) for key in each if draw(st.booleans())) for _, each in told]
    shape = SeriesShape(tuple(name for name, _ in told), tuple(each for _, each in told), tuple(words))
    return shape, draw(st.lists(st.tuples(*[_TEXTS] * count), min_size=1, max_size=4))


@given(shapes())
def test_what_is_asked_of_a_speaker_follows_from_its_shape_and_its_words(
    drawn: tuple[SeriesShape, list[tuple[str, ...]]],
) -> None:
    shape, speakers = drawn
    asked_of = AskedOf(RULES)
    for words in speakers:
        series = SpeakerSeries(shape, words)
        numbers, times = np.zeros(len(series)), np.zeros(len(series), np.uint64)
        columns = PointColumns(series, numbers, times, times)
        found = asked_of(Samples(identity=Identity(node="n"), points=columns, order=series))
        slowly = find_asked(tuple(columns), RULES)
        assert found == slowly
        for watching in ({}, dict.fromkeys((rule.unless_watched for rule, _ in found.rules), True)):
            plan, other = found.plans.plan(watching), slowly.plans.plan(watching)
            assert plan.series == other.series
            assert plan.columns.rules == other.columns.rules
            assert plan.columns.place.tolist() == [each.place for each in plan.series]
