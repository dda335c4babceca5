"""Steps that are longer because another rank is late in each of them: told, and told from all that looks alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.rotating_straggler import find_sudden_wandering, find_wandering
from whichrank.processors.job.detectors.slow.step_times import StepTimes

STEPS, RANKS, CHANGE = 110, 16, 60
SECOND = 1_000_000_000


def given(
    spread: float = 0.0, *, slow: dict[int, float] | None = None, all_slower: float = 0.0, seed: int = 3
) -> StepTimes:
    """Work of 1.5 s with 1 % jitter; from CHANGE on spread over ranks, more on ``slow`` ones, or more on all."""
    random = np.random.default_rng(seed)
    work = 1.5 * (1.0 + 0.01 * random.standard_normal((STEPS, RANKS)))
    work[CHANGE:] *= 1.0 + all_slower + spread * random.standard_normal((STEPS - CHANGE, RANKS))
    for rank, more in (slow or {}).items():
        work[CHANGE:, rank] *= 1.0 + more
    self_ns = (work * SECOND).astype(np.int64)
    duration_ns = self_ns.max(axis=1) + SECOND // 4
    return StepTimes(
        ranks=np.arange(RANKS),
        steps=np.arange(STEPS),
        begin_ns=np.concatenate([[0], np.cumsum(duration_ns)[:-1]]),
        duration_ns=duration_ns,
        self_ns=self_ns,
        starved_ns=np.zeros_like(self_ns),
        phase_self_ns=np.zeros((0, RANKS, 1), np.int64),
    )


def change_of(times: StepTimes) -> int | None:
    without_slowest = times.duration_ns - times.self_ns.max(axis=1) + np.median(times.self_ns, axis=1).astype(np.int64)
    found = find_wandering(times, times.steps, times.begin_ns, without_slowest, times.duration_ns)
    return found.step if found is not None else None


def test_work_that_has_become_uneven_is_told_from_the_step_on() -> None:
    assert change_of(given(0.15)) == CHANGE


@pytest.mark.parametrize(
    "times",
    [
        given(),
        given(slow={3: 0.3}),  # a rank
        given(slow=dict.fromkeys(range(4), 0.3)),  # a node, or a stage
        given(all_slower=0.3),
    ],
)
def test_what_is_one_ranks_or_all_ranks_is_not_uneven(times: StepTimes) -> None:
    assert change_of(times) is None


def told_at_once(times: StepTimes) -> int | None:
    """After how many steps of those since the change."""
    names = ("steps", "begin_ns", "duration_ns", "self_ns", "starved_ns")
    for end in range(CHANGE - 5, CHANGE + 20):
        part = replace(times, **{name: getattr(times, name)[:end] for name in names})
        if find_sudden_wandering(part, part.steps, part.begin_ns, part.duration_ns) is not None:
            return end - CHANGE
    return None


def test_work_that_has_become_uneven_is_told_within_some_steps() -> None:
    told = [told_at_once(given(0.15, seed=seed)) for seed in range(20)]
    assert sum(steps is not None and 3 <= steps <= 10 for steps in told) >= 19


@pytest.mark.parametrize("seed", range(20))
def test_what_is_one_ranks_or_all_ranks_is_not_told_as_uneven_at_once(seed: int) -> None:
    for times in (
        given(seed=seed),
        given(slow={3: 0.3}, seed=seed),
        given(slow=dict.fromkeys(range(4), 0.3), seed=seed),
        given(slow=dict.fromkeys(range(8), 0.3), seed=seed),  # half of a job's ranks
        given(all_slower=0.3, seed=seed),
    ):
        assert told_at_once(times) is None


def test_since_keeps_the_newest_phases_beside_their_steps() -> None:
    times = given()
    assert times.since(100).steps.tolist() == list(range(100, 110))
    assert times.since(100).phase_self_ns.shape == (0, RANKS, 1)
