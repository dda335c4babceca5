"""The cheapest interval against a search by brute force over the cost of renewals; what is said of real intervals."""

from __future__ import annotations

import math

import pytest

from whichrank.diagnosis.goodput.checkpoint_interval import best_interval_s, checkpoint_interval, lost_share
from whichrank.diagnosis.goodput.interval import Interval, Part
from whichrank.diagnosis.goodput.mean_time_to_failure import time_to_failure
from whichrank.telemetry.vocabulary import TimeBucket

SECOND = 1_000_000_000


def expected_share(blocked_s: float, interval_s: float, mttf_s: float) -> float:
    """Of failures that come at random (exponential), without a cost of restarts: time for a unit of work, over it."""
    return 1.0 - interval_s / (mttf_s * math.expm1((interval_s + blocked_s) / mttf_s))


@pytest.mark.parametrize(("blocked_s", "mttf_s"), [(1.0, 3600.0), (30.0, 3600.0), (300.0, 3600.0), (60.0, 86400.0)])
def test_the_best_interval_is_that_of_a_search(blocked_s: float, mttf_s: float) -> None:
    searched = min(
        (mttf_s * step / 2000 for step in range(1, 8000)), key=lambda s: expected_share(blocked_s, s, mttf_s)
    )
    best = expected_share(blocked_s, best_interval_s(blocked_s, mttf_s), mttf_s)
    assert best == pytest.approx(expected_share(blocked_s, searched, mttf_s), abs=2e-4)


def test_what_costs_more_than_a_failure_is_done_once_between_them() -> None:
    assert best_interval_s(1000.0, 400.0) == 400.0
    assert lost_share(1.0, 10_000.0, 100.0) == 1.0


def interval(number: int, *, steps: int = 10, save_s: float = 2.0, work_s: float = 20.0) -> Interval:
    parts = (
        Part(TimeBucket.CHECKPOINT_SAVE, int(save_s * SECOND)),
        Part(TimeBucket.PRODUCTIVE, int(work_s * SECOND)),
    )
    begin = int(number * (save_s + work_s) * SECOND)
    end = begin + sum(part.ns for part in parts)
    return Interval(
        run="r",
        job="j",
        world=0,
        attempt="a",
        number=number,
        begin_ns=begin,
        end_ns=end,
        gpus=4,
        parts=tuple(part for part in parts if part.ns),
        steps=steps,
        first_step=number * steps,
        last_step=number * steps + steps - 1,
    )


def test_a_run_that_saves_too_often_is_told_by_how_much() -> None:
    intervals = [interval(number) for number in range(20)]
    found = checkpoint_interval(intervals, time_to_failure(2, 20_000.0))
    assert found is not None
    assert (found.saves, found.blocked_s, found.interval_s, found.interval_steps) == (20, 2.0, 20.0, 10.0)
    assert found.mttf_s == 10_000.0
    assert not found.is_bound
    assert found.best_interval_s == pytest.approx(198.7, abs=0.5)
    assert found.best_interval_steps == 99
    assert found.saved_share == pytest.approx(2 / 22 + 20 / 20_000 - 2 / 200.7 - 198.7 / 20_000, abs=1e-3)


def test_without_a_failure_the_lower_bound_stands_for_it() -> None:
    found = checkpoint_interval([interval(number) for number in range(20)], time_to_failure(0, 440.0))
    assert found is not None
    assert found.is_bound
    assert found.mttf_s == pytest.approx(440.0 / -math.log(0.025), rel=1e-6)


def test_one_save_or_none_says_nothing() -> None:
    assert checkpoint_interval([interval(0)], time_to_failure(1, 100.0)) is None
    assert checkpoint_interval([interval(n, save_s=0.0) for n in range(9)], time_to_failure(1, 100.0)) is None
