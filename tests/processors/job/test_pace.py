"""A job that is slower of a sudden: told after three steps where nothing leaves it in doubt, and not otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.step_time_changepoint import (
    PLAIN_STEPS_AFTER,
    SUDDEN_NS_AFTER,
    PaceChange,
    find_sudden_change,
)

STEP_NS = 2_000_000_000


def looked_at(pace_ns: np.ndarray) -> PaceChange | None:
    begins = np.cumsum(pace_ns) - pace_ns
    return find_sudden_change(np.arange(pace_ns.size), begins.astype(np.int64), pace_ns.astype(np.int64))


def sound(random: np.random.Generator, steps: int, step_ns: int = STEP_NS) -> np.ndarray:
    """Noise of 3 %, and a pause of up to a fifth of a step in one step of twenty."""
    pauses = (random.random(steps) < 0.05) * random.random(steps) * 0.2
    return np.asarray(step_ns * (1.0 + 0.03 * random.standard_normal(steps) + pauses))


@pytest.mark.parametrize("ratio", [1.12, 1.3, 2.0])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("paused", [False, True])
def test_a_rise_is_told_after_three_steps_and_from_its_first_one(ratio: float, seed: int, paused: bool) -> None:
    """After four where a single step before was as long."""
    random = np.random.default_rng(seed)
    before, after = 2e9 * (1 + 0.01 * random.standard_normal((2, 60)))
    before[30] *= 3.0 if paused else 1.0
    pace = np.concatenate([before, ratio * after[: 4 if paused else 3]])
    change = looked_at(pace)
    assert change is not None
    assert change.step == 60
    assert change.ratio == pytest.approx(ratio, rel=0.02)
    assert looked_at(pace[:-1]) is None


def test_a_rise_that_is_over_in_one_of_the_steps_is_none() -> None:
    pace = np.full(65, 2e9)
    pace[60:] *= 1.3
    assert looked_at(pace) is not None
    pace[62] = 2e9
    assert looked_at(pace) is None


def test_a_ramp_is_planned_work() -> None:
    assert looked_at(2e9 * 1.01 ** np.arange(80)) is None


def test_a_job_that_has_just_begun_has_no_usual_pace() -> None:
    assert looked_at(np.concatenate([np.full(40, 2e9), np.full(5, 3e9)])) is None


def test_short_steps_have_to_last_some_seconds() -> None:
    """By the time that takes, the usual search knows as many steps as it needs."""
    for late in range(1, 200):
        assert looked_at(np.concatenate([np.full(300, 1e8), np.full(late, 1.3e8)])) is None
    assert PLAIN_STEPS_AFTER * 1.3e8 < SUDDEN_NS_AFTER


def test_sound_jobs_are_never_slower_of_a_sudden() -> None:
    """50,000 looks at noise with pauses; and each of twenty rises of a quarter in the same noise is found."""
    found = 0
    for seed in range(20):
        pace = sound(np.random.default_rng(seed), 2600)
        assert not any(looked_at(pace[max(0, end - 512) : end]) for end in range(100, 2600))
        pace[1000:] *= 1.25
        found += any(looked_at(pace[end - 512 : end]) is not None for end in range(1004, 1009))
    assert found == 20
