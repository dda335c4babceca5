"""Who comes late by so little that only many steps tell; and nobody where nobody is late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.processors.job.synthetic_small_groups import CHANGE, PEERS, seen, slower
from whichrank.processors.job.detectors.slow.device_straggler.long_window import find_late_by_little
from whichrank.processors.job.detectors.slow.step_times import StepTimes

STEPS = 40


def first_told(times: StepTimes, inner: np.ndarray) -> tuple[int, int] | None:
    """After how many slow steps, and who."""
    for count in range(CHANGE - 10, times.steps.size + 1):
        names = ("steps", "begin_ns", "duration_ns", "self_ns", "starved_ns")
        part = replace(times, **{name: getattr(times, name)[:count] for name in names})
        found = find_late_by_little(part, inner[:count], times.ranks // PEERS)
        if found is not None:
            return count - CHANGE, found.rank
    return None


@pytest.mark.parametrize("ranks", [32, 256])
def test_a_rank_that_is_late_by_a_twentieth_is_told(ranks: int) -> None:
    for seed in range(6):
        times, inner = seen(slower(0.055, 9, ranks=ranks), ranks=ranks, seed=seed, jitter=0.005, after=STEPS)
        told = first_told(times, inner)
        assert told is not None
        assert told[1] == 9


@pytest.mark.parametrize("jitter", [0.002, 0.02, 0.06])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_named_where_nobody_is_late(seed: int, jitter: float) -> None:
    even = slower(0.0)
    for told in (
        seen(even, seed=seed, jitter=jitter, after=STEPS),
        seen(even, seed=seed, jitter=jitter, pauses=0.03, after=STEPS),
        seen(slower(0.05, *range(64)), seed=seed, jitter=jitter, after=STEPS),  # more work for all
        seen(even, seed=seed, jitter=jitter, transfer_ns=lambda step: 20e6 if step < CHANGE else 100e6, after=STEPS),
        seen(slower(0.05, *range(8, 16)), seed=seed, jitter=jitter, after=STEPS),  # all of a node: nobody waits there
        seen(slower(0.05, *range(1, 64, 8)), seed=seed, jitter=jitter, after=STEPS),  # one of each node
    ):
        assert first_told(*told) is None


def test_what_peers_wait_without_longer_steps_is_nobodys_fault() -> None:
    times, inner = seen(slower(0.055, 9), jitter=0.005, after=STEPS)
    usual_ns = np.full_like(times.duration_ns, int(np.median(times.duration_ns[:CHANGE])))
    assert first_told(replace(times, duration_ns=usual_ns), inner) is None
