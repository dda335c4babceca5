"""Who comes late by the waits of its tensor-parallel peers: in three or four steps, and nobody where nobody is late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.processors.job.synthetic_small_groups import CHANGE, PEERS, seen, slower
from whichrank.processors.job.detectors.slow.device_straggler.small_group import find_late_in_group
from whichrank.processors.job.detectors.slow.smallest_group_waits import inner_groups, no_inner_waits, with_inner_waits
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.telemetry.tables import COLLECTIVES, DEVICE_STEPS


def first_told(times: StepTimes, inner: np.ndarray) -> tuple[int, int] | None:
    """After how many slow steps, and who."""
    group_of = times.ranks // PEERS
    for count in range(CHANGE - 10, times.steps.size + 1):
        names = ("steps", "begin_ns", "duration_ns", "self_ns", "starved_ns")
        part = replace(times, **{name: getattr(times, name)[:count] for name in names})
        found = find_late_in_group(part, inner[:count], group_of)
        if found is not None:
            assert abs(found.onset_step - CHANGE) <= 1
            return count - CHANGE, found.rank
    return None


@pytest.mark.parametrize("ranks", [32, 256])
def test_a_late_rank_is_told_within_four_steps(ranks: int) -> None:
    told = [first_told(*seen(slower(0.17, 9, ranks=ranks), ranks=ranks, seed=seed)) for seed in range(12)]
    assert all(each is not None and each[1] == 9 for each in told)
    assert sorted(each[0] for each in told if each is not None)[-2] <= 4


@pytest.mark.parametrize("jitter", [0.002, 0.02, 0.06])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_named_where_nobody_is_late(seed: int, jitter: float) -> None:
    even = slower(0.0)
    for told in (
        seen(even, seed=seed, jitter=jitter),
        seen(even, seed=seed, jitter=jitter, pauses=0.03),
        seen(slower(0.15, *range(64)), seed=seed, jitter=jitter),  # more work for all
        seen(even, seed=seed, jitter=jitter, transfer_ns=lambda step: 20e6 if step < CHANGE else 300e6),
        seen(slower(0.2, *range(8, 16)), seed=seed, jitter=jitter),  # all of a node: nobody waits there
        seen(slower(0.2, *range(1, 64, 8)), seed=seed, jitter=jitter),  # one of each node
    ):
        assert first_told(*told) is None


def test_two_that_are_late_together_in_one_group_are_not_told_apart() -> None:
    for seed in range(6):
        told = first_told(*seen(slower(0.2, 9, 10), seed=seed))
        assert told is None or told[1] in (9, 10)


def test_jobs_without_small_groups_say_nothing() -> None:
    times, inner = seen(slower(0.25, 9))
    assert find_late_in_group(times, inner, np.full(64, -1)) is None
    assert find_late_in_group(times, inner, np.zeros(64, np.int64)) is None
    assert find_late_in_group(times, no_inner_waits(64), times.ranks // PEERS) is None


def test_the_smallest_group_of_a_rank_is_asked() -> None:
    ranks = np.arange(16)
    members = [ranks, ranks[:8], ranks[8:], ranks[::8], ranks[4:8], ranks[:4]]
    on_device = [True, True, True, True, True, False]
    assert inner_groups(members, on_device, ranks).tolist() == [1] * 4 + [4] * 4 + [2] * 8
    as_small = [np.arange(place, 16, 4) for place in range(4)] + [np.arange(at, at + 4) for at in range(0, 16, 4)]
    assert (
        inner_groups(as_small, [True] * 8, ranks).tolist() == [4] * 4 + [5] * 4 + [6] * 4 + [7] * 4
    )  # closer together
    assert inner_groups(members[:1], on_device[:1], ranks).tolist() == [-1] * 16
    assert inner_groups(members, on_device, ranks[:6]).tolist() == [-1] * 4 + [4] * 2


def test_waits_of_small_groups_come_from_rows_or_sums() -> None:
    rows = np.zeros(4, COLLECTIVES)
    for row, (rank, group, step, began, done) in zip(
        rows, [(0, 1, 5, 100, 130), (0, 1, 5, 200, 205), (1, 0, 5, 100, 190), (1, 1, 6, 100, 150)], strict=True
    ):
        row["rank"], row["group"], row["step"], row["started_ns"], row["done_ns"] = rank, group, step, began, done
    sums = np.array([(0, 1, 0, 2, 6, 70, 0, 0), (0, 0, 0, 2, 6, 900, 0, 0), (1, 1, 0, 2, 6, 80, 0, 0)], DEVICE_STEPS)
    kept = with_inner_waits(no_inner_waits(0), np.array([1, 1]), rows, sums, np.array([0, 1]), np.array([5, 6]))
    assert kept.tolist() == [
        [5, 35, 0],
        [6, 70, 80],
    ]  # of a step with sums, rows that were shipped open are passed over
