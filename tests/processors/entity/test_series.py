"""Which rule asks about which point: found once for an order of series, and for all that is told in it."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.entity.column_plan import MIN_PEERS
from whichrank.processors.entity.metrics import medians_of_others
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.entity.series import AskedOf, find_asked
from whichrank.telemetry.metric_layouts import SeriesOrder
from whichrank.telemetry.records import Identity, Point, Samples


def samples(order: object | None, *names: str) -> Samples:
    points = tuple(Point(name=name, value=1.0, attributes={"hw.id": "g"}, time_ns=5) for name in names)
    return Samples(identity=Identity(node="n"), points=points, order=order)


def test_it_is_worked_out_once_for_an_order_and_anew_without_one() -> None:
    rules = load_rules()
    names = sorted(rules.metrics)[:20]
    asked_of = AskedOf(rules)
    told = samples(SeriesOrder(), *names)
    found = asked_of(told)
    assert found.rules
    assert asked_of(samples(told.order, *names)) is found
    assert asked_of(samples(None, *names)) == found
    assert asked_of(samples(None, *names)) is not found
    assert asked_of(samples(SeriesOrder(), *reversed(names))) == find_asked(
        samples(None, *reversed(names)).points, rules
    )


@given(st.lists(st.floats(-1e6, 1e6), max_size=9))
def test_the_median_of_the_others(values: list[float]) -> None:
    by_device = {str(place): value for place, value in enumerate(values)}
    expected = {
        device: statistics.median(value for other, value in by_device.items() if other != device)
        for device in by_device
        if len(values) >= MIN_PEERS
    }
    assert medians_of_others(by_device) == expected
