"""Who comes late on its device, told within some steps: from looks ten times a second at many ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.device_straggler.step_window import FEWEST_STEPS, find_late_in_steps
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.telemetry.vocabulary import Phase

LOOK_NS = 100_000_000
#: Of the calls of a step, layers differ.
WORK_NS = tuple(1_000_000 * each for each in (80, 95, 110, 125, 140, 155, 170, 185, 200, 215, 230, 95))
TRANSFER_NS = 10_000_000
CHANGE = 60
Pace = Callable[[int], np.ndarray]


def seen(
    pace: Pace,
    *,
    ranks: int = 64,
    steps: int = CHANGE + 12,
    seed: int = 1,
    jitter: float = 0.02,
    transfer: Callable[[int], float] = lambda step: 1.0,
    pauses: float = 0.0,
    work: tuple[int, ...] = WORK_NS,
) -> StepTimes:
    """A job on devices, whose calls all wait for the last one. pace: by step, time of each rank for its work."""
    random = np.random.default_rng(seed)
    offset = random.integers(0, LOOK_NS, ranks)

    def look(at_ns: np.ndarray) -> np.ndarray:
        return np.asarray(-(-(at_ns - offset) // LOOK_NS) * LOOK_NS + offset)

    now_ns = 0.0
    begins, lengths, stood = [], [], np.zeros((steps, ranks))
    for step in range(steps):
        begins.append(int(now_ns))
        drawn = pace(step) * np.exp(jitter * random.standard_normal(ranks))
        for usual_ns in work:
            work_ns = usual_ns * drawn * (1.0 + 0.5 * jitter * random.standard_normal(ranks))
            if random.random() < pauses:
                work_ns[random.integers(ranks)] += 400_000_000 * (1.0 + random.pareto(1.5))
            began_ns = now_ns + work_ns
            now_ns = float(began_ns.max()) + TRANSFER_NS * transfer(step)
            stood[step] += look(np.full(ranks, now_ns)) - look(began_ns)
        lengths.append(int(now_ns) - begins[-1])
    duration_ns = np.array(lengths)
    return StepTimes(
        ranks=np.arange(ranks),
        steps=np.arange(steps),
        begin_ns=np.array(begins),
        duration_ns=duration_ns,
        self_ns=np.maximum(0, duration_ns[:, None] - stood).astype(np.int64),
        starved_ns=np.zeros((steps, ranks), np.int64),
        phase_self_ns=np.zeros((0, ranks, len(Phase)), np.int64),
    )


def until(times: StepTimes, count: int) -> StepTimes:
    return StepTimes(
        ranks=times.ranks,
        steps=times.steps[:count],
        begin_ns=times.begin_ns[:count],
        duration_ns=times.duration_ns[:count],
        self_ns=times.self_ns[:count],
        starved_ns=times.starved_ns[:count],
        phase_self_ns=times.phase_self_ns,
    )


def slower(share: float, *who: int, ranks: int = 64) -> Pace:
    late = np.isin(np.arange(ranks), who)
    return lambda step: np.where(late & (step >= CHANGE), 1.0 + share, 1.0)


def first_told(times: StepTimes) -> tuple[int, int, tuple[int, ...], int] | None:
    """After how many slow steps, who, with whom, and since which step."""
    for count in range(CHANGE - 8, times.steps.size + 1):
        found = find_late_in_steps(until(times, count))
        if found is not None:
            return count - CHANGE, found.rank, found.company, found.onset_step
    return None


@pytest.mark.parametrize("ranks", [64, 256])
def test_one_late_device_is_told_within_five_steps(ranks: int) -> None:
    told = [first_told(seen(slower(0.25, 9, ranks=ranks), ranks=ranks, seed=seed)) for seed in range(20)]
    assert all(each is not None and each[1:3] == (9, ()) for each in told)
    after = sorted(each[0] for each in told if each is not None)
    assert after[0] >= FEWEST_STEPS
    assert after[-2] <= 5  # of 12
    assert all(abs(each[3] - CHANGE) <= 1 for each in told if each is not None)


def test_the_ranks_of_a_node_are_late_together() -> None:
    node = tuple(range(24, 32))
    for seed in range(4):
        told = first_told(seen(slower(0.25, *node), seed=seed))
        assert told is not None
        assert {told[1], *told[2]} == set(node)


@pytest.mark.parametrize("jitter", [0.002, 0.02, 0.06])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_named_where_nobody_is_late(seed: int, jitter: float) -> None:
    everybody = slower(0.15, *range(64))
    even = slower(0.0)
    for times in (
        seen(even, seed=seed, jitter=jitter),
        seen(even, seed=seed, jitter=jitter, pauses=0.03),
        seen(everybody, seed=seed, jitter=jitter),  # more work for all
        seen(even, seed=seed, jitter=jitter, transfer=lambda step: 1.0 if step < CHANGE else 3.5),  # a slower network
    ):
        assert first_told(times) is None


def test_looks_that_keep_time_with_the_calls_name_no_other() -> None:
    """Each call then comes upon the same moment of its rank's looks: some seem to wait always, some never."""
    for seed in range(10):
        told = first_told(seen(slower(0.25, 9), seed=seed, work=(150_000_000,) * 12))
        assert told is None or told[1:3] == (9, ())


def test_half_of_the_ranks_are_no_company() -> None:
    assert first_told(seen(slower(0.25, *range(32)))) is None


def test_few_ranks_and_few_steps_say_nothing() -> None:
    times = seen(slower(0.25, 3, ranks=6), ranks=6)
    assert first_told(times) is None
    late = seen(lambda step: np.where((np.arange(64) == 5) & (step >= 20), 1.25, 1.0), steps=24)
    assert find_late_in_steps(late) is None
