"""The rules about speed on paces of jobs that never ran: a part of ``benchmarks/detectors.py`` that takes seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.detector_paces import HABITS
from benchmarks.detectors import (
    DEVICE_HABITS,
    DEVICE_S,
    DEVICE_TRUTHS,
    STEPS_ASKED,
    delays,
    devices_accused,
    false_alarms,
    late_devices,
    together,
)
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.detectors.slow.straggler import find_straggler
from whichrank.telemetry.vocabulary import Phase

JOBS = 25


@pytest.mark.parametrize(
    ("share", "phase", "at_least"),
    [(0.1, Phase.FORWARD, 17), (0.1, Phase.DATA, 25), (0.3, Phase.FORWARD, 24), (1.0, Phase.FORWARD, 24)],
)
def test_a_rank_that_becomes_slow_is_named_within_ten_steps_and_nobody_else(
    share: float, phase: Phase, at_least: int
) -> None:
    seen = delays(share, JOBS, seed=3, phase=phase)
    assert seen.within(STEPS_ASKED) >= at_least
    assert seen.wrong_rank == seen.early == 0


def test_ten_percent_of_all_together_are_told_at_their_step() -> None:
    told, right = together(0.1, 10, seed=3)
    assert (told, right) == (10, 10)


@pytest.mark.parametrize("habit", HABITS)
def test_healthy_habits_name_nobody(habit: str) -> None:
    assert false_alarms(habit, 4, seed=3, most_steps=250) == 0


@pytest.mark.parametrize(("step_s", "at_least", "onsets"), [(0.05, 8, 6), (0.1, 8, 9), (0.5, 9, 9)])
def test_a_late_device_is_named_by_looks_at_any_step_length_and_no_other(
    step_s: float, at_least: int, onsets: int
) -> None:
    """Of the shortest steps, those kept no longer reach back to the onset when the looks have told: its block is."""
    late_s, right, wrong = late_devices(10, seed=3, step_s=step_s)
    assert sum(seconds <= DEVICE_S for seconds in late_s) >= at_least
    assert (wrong, right >= onsets) == (0, True)


@pytest.mark.parametrize("truth", DEVICE_TRUTHS)
def test_where_no_device_is_late_none_is_named(truth: str) -> None:
    assert [devices_accused(habit, truth, 4, seed=3) for habit in DEVICE_HABITS] == [0] * len(DEVICE_HABITS)


def test_three_pauses_in_a_row_on_one_of_thousands_of_ranks_name_nobody() -> None:
    """Each step some ranks of 2,048 pause for a fifth of it; that one does three times on end is to be expected."""
    random = np.random.default_rng(5)
    work = 1.6 * (1.0 + 0.01 * random.standard_normal((100, 2048)))
    work[:-3] += 0.4 * (random.random((97, 2048)) < 0.008)
    work[-3:, 7] += 0.4
    duration_ns = np.full(100, 2_100_000_000)
    times = StepTimes(
        ranks=np.arange(2048),
        steps=np.arange(100) + 10,
        begin_ns=np.cumsum(duration_ns) - duration_ns,
        duration_ns=duration_ns,
        self_ns=(work * 1e9).astype(np.int64),
        starved_ns=np.zeros(work.shape, np.int64),
        phase_self_ns=np.zeros((0, 2048, len(Phase)), np.int64),
    )
    assert find_straggler(times) is None
    seldom = replace(times, self_ns=np.where(times.self_ns > 1_850_000_000, 1_600_000_000, times.self_ns))
    seldom.self_ns[-3:, 7] = 2_000_000_000
    found = find_straggler(seldom)
    assert found is not None
    assert (found.rank, found.slow_steps) == (7, 3)


@pytest.mark.parametrize("steps_after", [12, 16, 24, 32])
def test_times_that_come_in_tenths_of_a_second_name_nobody_where_a_whole_stage_wanders(steps_after: int) -> None:
    """All became slower, the first stage by a little more: medians of such times jump by a tenth, means by a third of
    it. Without a look at the means somebody is named in each of these jobs."""
    found = [find_straggler(_stage_in_tenths(seed, steps_after), on_device=True) for seed in range(JOBS)]
    assert sum(each is not None for each in found) <= 1


@pytest.mark.parametrize(("steps_after", "at_least"), [(24, 10), (32, 14)])
def test_a_slow_rank_is_named_where_times_come_in_tenths_of_a_second(steps_after: int, at_least: int) -> None:
    found = [find_straggler(_stage_in_tenths(seed, steps_after, slow=3), on_device=True) for seed in range(JOBS)]
    assert sum(each is not None and each.rank == 3 for each in found) >= at_least
    assert all(each is None or each.rank == 3 for each in found)


def _stage_in_tenths(seed: int, steps_after: int, *, slow: int | None = None) -> StepTimes:
    """64 ranks in two stages, a step 1.87 s, 16 % longer since ``steps_after``. slow: it alone is slower, by 10 %."""
    ranks, before, tenth_ns = 64, 76, 1e8
    draws, steps = np.random.default_rng(seed), before + steps_after
    duration_ns = 1.87e9 * (1.0 + 0.01 * draws.standard_normal(steps))
    duration_ns[before:] *= 1.16 if slow is None else 1.1
    is_first = np.arange(ranks) < ranks // 2
    usual, now = (0.5, 0.1, 0.4), (0.3, 0.2, 0.5) if slow is None else (0.5, 0.1, 0.4)
    tenths = np.concatenate([draws.choice(3, (before, ranks), p=usual), draws.choice(3, (steps_after, ranks), p=now)])
    self_ns = duration_ns[:, None] - np.where(is_first, 4.0 - tenths, 5.0) * tenth_ns
    if slow is not None:
        others_ns = 0.1 * 1.87e9  # they wait for it
        self_ns[before:, np.arange(ranks) != slow] -= others_ns
    return StepTimes(
        ranks=np.arange(ranks),
        steps=np.arange(steps),
        begin_ns=np.cumsum(duration_ns).astype(np.int64),
        duration_ns=duration_ns.astype(np.int64),
        self_ns=self_ns.astype(np.int64),
        starved_ns=np.zeros((steps, ranks), dtype=np.int64),
        phase_self_ns=np.zeros((0, ranks, len(Phase)), dtype=np.int64),
    )
