"""A slow rank is over when it is as fast as usual again, and not because a second on a crowded node was quiet."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.detector_paces import Fault, draw_pace, window
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.detectors.slow.straggler import find_straggler
from whichrank.processors.job.detectors.slow.straggler_memory import StragglerMemory
from whichrank.processors.job.detectors.slow.straggler_recovery import is_still_slow

FIRST = 60


def drawn(number: int, habit: str, share: float, steps: int = 330) -> StepTimes:
    """Rank 0 is slower from step ``FIRST`` to the end. Steps of 20 to 500 ms, 3 to 20 % jitter, 2 to 6 ranks."""
    chance = np.random.default_rng([5, number])
    step_s = float(np.exp(chance.uniform(np.log(0.02), np.log(0.5))))
    jitter, ranks = float(chance.uniform(0.03, 0.2)), int(chance.integers(2, 7))
    fault = Fault(rank=0, first=FIRST, share=share)
    times: StepTimes = draw_pace(
        chance, habit=habit, ranks=ranks, steps=steps, step_s=step_s, jitter=jitter, fault=fault
    ).times()
    return times


def found_in(times: StepTimes) -> tuple[int, StragglerMemory] | None:
    """After how many steps it is found, and what is remembered of it."""
    for end in range(FIRST, times.steps.size + 1, 2):
        found = find_straggler(window(times, end))
        if found is not None and found.rank == 0:
            known = StragglerMemory(
                rank=0, step=found.onset_step, excess=found.excess, usual=found.usual, noise=found.noise
            )
            return end, known
    return None


@pytest.mark.parametrize("habit", ["even", "crowded"])
@pytest.mark.parametrize("share", [0.2, 0.3])
def test_it_does_not_end_while_it_lasts(habit: str, share: float) -> None:
    """Before the evidence was that of one window, 19 of 57 crowded jobs of these draws ended it while it went on."""
    ended = []
    for number in range(10):
        times = drawn(number, habit, share)
        known = found_in(times)
        if known is None:
            continue
        end, found = known
        ended += [
            number for last in range(end, times.steps.size + 1, 4) if not is_still_slow(window(times, last), found)
        ][:1]
    assert ended == []


@pytest.mark.parametrize("habit", ["even", "crowded"])
def test_it_ends_when_the_rank_is_as_fast_as_the_others_again(habit: str) -> None:
    """What follows the fault is a sound stretch of the same job."""
    waited = []
    for number in range(10):
        slow, sound = drawn(number, habit, 0.4, 160), drawn(number, habit, 0.0, 160)
        known = found_in(slow)
        assert known is not None
        joined = StepTimes(
            ranks=slow.ranks,
            steps=np.concatenate([slow.steps, sound.steps + slow.steps.size]),
            **{
                name: np.concatenate([getattr(slow, name), getattr(sound, name)])
                for name in ("begin_ns", "duration_ns", "self_ns", "starved_ns", "phase_self_ns")
            },
        )
        ends = (
            after
            for after in range(2, sound.steps.size, 2)
            if not is_still_slow(window(joined, slow.steps.size + after), known[1])
        )
        waited.append(next(ends, 1_000))
    assert sorted(waited)[len(waited) // 2] <= 60
    assert max(waited) < 1_000
