"""How much a counter grew, and when a rule over it latches and lets go."""

from __future__ import annotations

import random

import pytest

from whichrank.diagnosis.counters.growth import Latch, LatchEvent, Step, growth, rate_per
from whichrank.diagnosis.counters.rules import CounterRule, RuleKind

DOWNS = CounterRule(name="link_downed", counters=("link_downed",), kind=RuleKind.DELTA, limit=0)
PER_HOUR = CounterRule(name="errors", counters=("errors",), kind=RuleKind.RATE, limit=120, unit_s=3600, quiet_s=7200)
PER_SECOND = CounterRule(name="errors", counters=("errors",), kind=RuleKind.RATE, limit=10, unit_s=1)


@pytest.mark.parametrize(
    ("previous", "current", "may_wrap", "step", "amount"),
    [
        (7, 7, False, Step.SAME, 0),
        (7, 9, False, Step.GREW, 2),
        (9, 2, False, Step.RESET, 2),
        (9, 0, True, Step.RESET, 0),
        (2**32 - 10, 5, True, Step.WRAPPED, 15),
        (2**32 - 10, 5, False, Step.RESET, 5),
        # From the middle of the width: nobody counts half of it between two looks.
        (2**31, 5, True, Step.RESET, 5),
        (2**64 - 1, 0, True, Step.WRAPPED, 1),
        (2**40, 5, True, Step.RESET, 5),
    ],
)
def test_growth(previous: int, current: int, may_wrap: bool, step: Step, amount: int) -> None:
    grown = growth(previous, current, may_wrap=may_wrap)
    assert (grown.step, grown.amount) == (step, amount)


def test_any_wrap_of_either_width_gives_back_what_was_added() -> None:
    draw = random.Random(6)
    for _ in range(500):
        bits = draw.choice((32, 64))
        previous = (1 << bits) - 1 - draw.randrange(1 << (bits - 3))
        added = draw.randrange(1, 1 << (bits - 3))
        assert growth(previous, (previous + added) % (1 << bits), may_wrap=True).amount == added


def events(rule: CounterRule, *polls: tuple[float, int | None]) -> list[LatchEvent | None]:
    latch = Latch()
    return [latch.take(rule, t_s, value) for t_s, value in polls]


def test_a_breach_latches_and_a_reset_recovers() -> None:
    said = events(DOWNS, (0, 3), (10, 4), (20, 4), (30, 5), (40, 0), (50, 0), (60, 1))
    assert said == [None, LatchEvent.BREACH, None, LatchEvent.AGAIN, LatchEvent.RECOVERY, None, LatchEvent.BREACH]


def test_a_reset_without_a_breach_is_silent() -> None:
    assert events(DOWNS, (0, 9), (10, 0), (20, 0)) == [None, None, None]


def test_a_look_that_could_not_read_is_no_look() -> None:
    assert events(DOWNS, (0, 9), (10, None), (20, 9)) == [None, None, None]
    assert events(DOWNS, (0, None), (10, 9)) == [None, None]


def test_a_spike_inside_the_hour_does_not_fire_the_hour_rule_and_the_hour_does() -> None:
    spike = [(0.0, 1000), (1.0, 1100), (60.0, 1100), (3599.0, 1100)]
    assert events(PER_HOUR, *spike) == [None] * 4
    assert events(PER_HOUR, *spike, (3600.0, 1100))[-1] is None, "100 in an hour is below 120"
    assert events(PER_HOUR, *spike, (3600.0, 1121))[-1] is LatchEvent.BREACH


def test_a_limit_is_strict() -> None:
    assert events(PER_SECOND, (0, 0), (2, 20))[-1] is None
    assert events(PER_SECOND, (0, 0), (2, 21))[-1] is LatchEvent.BREACH
    assert events(PER_HOUR, (0, 0), (3600, 120))[-1] is None


def test_looks_out_of_order_are_left_out() -> None:
    assert events(DOWNS, (10, 1), (5, 7), (10, 8), (11, 1)) == [None] * 4


def test_a_packed_latch_goes_on_where_it_was() -> None:
    draw = random.Random(7)
    for _ in range(200):
        plain, packed = Latch(), Latch()
        t_s, value = 0.0, 100
        for _ in range(20):
            t_s += draw.choice((0.5, 1.0, 30.0, 4000.0))
            value = max(0, value + draw.choice((0, 0, 1, 500, -1000)))
            seen = draw.choice((value, value, None))
            rule = PER_HOUR
            packed = Latch.unpack(packed.pack())
            assert plain.take(rule, t_s, seen) == packed.take(rule, t_s, seen)


def test_what_is_no_latch_is_refused() -> None:
    with pytest.raises(ValueError, match="5 fields"):
        Latch.unpack([1.0])


def test_no_time_is_no_rate() -> None:
    assert rate_per(10, 0.0, 1.0) == 0
    assert rate_per(10, 4.0, 60.0) == 150
