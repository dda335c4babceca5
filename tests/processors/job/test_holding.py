"""Ranks that run ahead of one another: a collective that is waited for a step later holds nobody up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.processors.job.synthetic_device_job import DeviceJob
from tests.processors.job.synthetic_job import MemoryContext, SyntheticJob, drive
from tests.processors.job.test_device import from_step
from tests.processors.job.test_late_waits import called_early
from whichrank.processors.job.detectors.desync.matching import join_instances
from whichrank.processors.job.detectors.slow.drift import find_drift, makes_steps_longer, no_blocks
from whichrank.processors.job.detectors.slow.lag_coupling import (
    begun_on_device,
    first_calls,
    is_waited_for,
    no_starts,
    with_starts,
)
from whichrank.processors.job.detectors.slow.step_time_changepoint import STEPS_AFTER, find_pace_change, is_of_all
from whichrank.telemetry.tables import COLLECTIVES

SECOND = 1_000_000_000


def verdicts(context: MemoryContext) -> list[tuple[str, list[int]]]:
    return [(found.body["kind"], [who["rank"] for who in found.body["suspects"]]) for found in context.final().values()]


def lagging(lag: float, **rest: Any) -> DeviceJob:
    """A job whose rank 2 came later than the others to its first collective, by this share of a step, and goes on."""
    return DeviceJob(ranks=3, waits_later=True, kernel=lambda rank, step: 1.0 + lag * ((rank, step) == (2, 0)), **rest)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize(("step_s", "jitter", "lag"), [(0.385, 0.05, 0.6), (0.7, 0.05, 0.5), (1.3, 0.03, 0.4)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lag_that_is_carried_on_is_nobodys_slowness(
    step_s: float, jitter: float, lag: float, ahead: int, seed: int
) -> None:
    job = lagging(lag, step_s=step_s, jitter=jitter, seed=seed, ahead=ahead, steps=60, after_s=0.5)
    assert verdicts(drive(job.records(), batches=[5])) == []


@pytest.mark.parametrize("excess", [0.5, 1.0])
@pytest.mark.parametrize(("step_s", "jitter"), [(0.5, 0.05), (1.3, 0.03)])
def test_a_device_that_always_was_slow_is_named_where_the_others_wait_for_it(
    excess: float, step_s: float, jitter: float
) -> None:
    kernel = from_step(0, 2, 1.0 + excess, 1.0)
    job = DeviceJob(ranks=3, step_s=step_s, jitter=jitter, kernel=kernel, steps=44, after_s=0.5)
    assert verdicts(drive(job.records(), batches=[5])) == [("rank_slow", [2])]


def test_steps_that_grow_for_all_make_no_lag_of_a_rank() -> None:
    """The lag wanders, and all steps become longer: where both go up, that is nobody's slowness."""
    for seed in range(1, 5):
        job = DeviceJob(
            ranks=3, waits_later=True, step_s=0.6, jitter=0.05, seed=seed, steps=120, after_s=0.5,
            kernel=lambda rank, step: 1.3 if step >= 60 else 1.0,
        )  # fmt: skip
        assert all(not who for _, who in verdicts(drive(job.records(), batches=[5])))


def test_state_and_batches_change_nothing() -> None:
    records = lagging(0.6, step_s=0.7, jitter=0.05, steps=50, after_s=0.5).records()
    assert verdicts(drive(records, fresh_each_time=True)) == verdicts(drive(records, batches=[9])) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("lag", "jitter"), [(0.25, 0.005), (0.3, 0.01), (0.3, 0.02)])
def test_on_hosts_a_lag_shorter_than_the_rest_of_the_step_is_nobodys_slowness(
    lag: float, jitter: float, seed: int
) -> None:
    """Calls in mid-step are over before they are waited for, a step later, so that nothing is recorded of a wait."""
    job = SyntheticJob(
        ranks=3, steps=80, jitter=jitter, seed=seed, program=called_early, transfer_s=lambda _: 0.01,
        slow=lambda rank, step: 1.0 + lag * ((rank, step) == (2, 0)),
    )  # fmt: skip
    assert verdicts(drive(job.records(), batches=[6])) == []


@pytest.mark.parametrize("bursts", [False, True])
def test_on_hosts_a_rank_that_always_was_slow_is_named_where_the_others_wait(bursts: bool) -> None:
    """Also where it is slow for three steps, and then for three not: its lag is carried on, but makes steps longer."""
    job = SyntheticJob(
        ranks=3, steps=45, step_s=0.5, jitter=0.02,
        slow=lambda rank, step: 1.4 if rank == 1 and not (bursts and step % 12 > 8) else 1.0,
    )  # fmt: skip
    assert verdicts(drive(job.records(), batches=[6])) == [("rank_slow", [1])]


def test_the_first_beginning_of_each_step_is_kept() -> None:
    rows = np.zeros(5, COLLECTIVES)
    rows["rank"], rows["step"] = [0, 0, 1, 1, 1], [4, 4, 4, 4, 5]
    rows["started_ns"], rows["done_ns"] = [30, 10, 0, 50, 70], [40, 20, 45, 60, 80]
    starts = with_starts(no_starts(2), rows, begun_on_device(rows), np.array([0, 1]), np.array([4, 5]))
    assert starts.tolist() == [[4, 10, 45], [5, 0, 70]]
    nothing = with_starts(starts, rows[:0], begun_on_device(rows[:0]), np.array([0, 1]), np.array([6]))
    assert nothing.tolist()[2:] == [[6, 0, 0]]


def test_on_hosts_the_first_call_of_each_group_in_each_step_counts() -> None:
    rows = np.zeros(9, COLLECTIVES)
    rows["rank"], rows["step"] = [0, 1, 0, 1, 0, 1, 0, 1, 0], [1, 1, 1, 1, 2, 2, 1, 1, 2]
    rows["group"], rows["seq"] = [0] * 6 + [1] * 3, [1, 1, 2, 2, 3, 3, 1, 1, 2]
    rows["enqueued_ns"] = np.arange(9) + 10
    assert first_calls(join_instances(rows))["enqueued_ns"].tolist() == [10, 11, 14, 15, 16, 17, 18]


def begun(lag_s: np.ndarray, step_s: float = 1.0) -> np.ndarray:
    """Steps 0, 1, ... of two ranks, the second one late by so much; seen by looks that come ten times a second."""
    at = 100.0 + step_s * np.arange(lag_s.size)
    seen = np.ceil(np.stack([at + 0.037, at + lag_s], axis=1) * 10.0) / 10.0
    return np.column_stack([np.arange(lag_s.size), (seen * SECOND).astype(np.int64)])


def test_only_a_clear_case_speaks_against_a_rank_whose_steps_became_longer() -> None:
    draw, ranks = np.random.default_rng(5), np.array([0, 1])
    wanders = 0.3 + np.cumsum(draw.normal(0.0, 0.05, 70))
    comes_and_goes = draw.normal(0.0, 0.1, 70) + np.where(np.arange(70) < 50, 0.2, 0.5)
    creeps = 0.2 + 0.001 * np.arange(70)  # as of looks that keep time with the steps
    for lag_s, waited_for in ((wanders, False), (comes_and_goes, True), (creeps, True), (wanders[:7], True)):
        assert is_waited_for(begun(lag_s), ranks, 1, 50, SECOND) is waited_for


def test_a_drift_on_devices_makes_the_steps_longer() -> None:
    ranks, blocks = np.array([0, 1]), no_blocks(2)
    for place, rise in enumerate(np.linspace(0.0, 0.3, 12)):
        blocks = np.vstack([blocks, [64 * place + 63, place, rise, -rise, SECOND * (1.0 + rise), SECOND]])
    crept = find_drift(blocks, ranks)
    assert crept is not None
    assert makes_steps_longer(blocks, ranks, crept)
    blocks[:, 4:] = np.stack([1.0 - 0.3 + blocks[:, 2], 1.0 - blocks[:, 2]], axis=1) * SECOND
    outrun = find_drift(blocks, ranks)
    assert outrun is not None
    assert not makes_steps_longer(blocks, ranks, outrun)


def test_steps_that_only_one_rank_makes_longer_are_not_those_of_all_unless_nobody_is_told_for_long() -> None:
    steps = np.arange(100 + STEPS_AFTER)
    length = (np.where(steps < 100, 0.6, 1.0) * SECOND).astype(np.int64)
    for after, without_excess, of_all in ((32, length, True), (32, length * 0 + SECOND, False), (40, length * 0, True)):
        seen = slice(0, 100 + after)
        change = find_pace_change(steps[seen], steps[seen] * SECOND, length[seen])
        assert change is not None
        assert is_of_all(change, steps[seen], without_excess[seen]) is of_all
