"""Who only works for a late pipeline stage is not named with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.detectors.slow.straggler_memory import Straggler
from whichrank.processors.job.topology.pipeline_stages import FEWEST_STEPS, MOST_STEPS, of_one_stage
from whichrank.telemetry.vocabulary import Phase

RANKS, CHANGE = 32, 60
#: Two stages; nodes of eight.
STAGES = np.arange(RANKS) // 16
LATE, ITS_PEERS = range(24, 32), range(8, 16)


def job(late_ns: float, peers_ns: float, steps: int, seed: int = 1, fetch_ns: np.ndarray | None = None) -> StepTimes:
    """Self times as looks see them: to a tenth of a second. fetch_ns: (steps, ranks), of the last steps."""
    random = np.random.default_rng(seed)
    own = np.full((CHANGE + steps, RANKS), 1.5e9)
    own[:, 16:] -= 3e8
    own[CHANGE:, LATE] += late_ns
    own[CHANGE:, ITS_PEERS] += peers_ns
    duration = np.where(np.arange(CHANGE + steps) < CHANGE, 1.8e9, 1.8e9 + late_ns)
    looked = np.floor((own + 2e7 * random.standard_normal(own.shape)) / 1e8 + random.random(own.shape)) * 1e8
    phases = np.zeros((0 if fetch_ns is None else len(fetch_ns), RANKS, len(Phase)), np.int64)
    if fetch_ns is not None:
        phases[:, :, Phase.DATA] = fetch_ns
    return StepTimes(
        ranks=np.arange(RANKS),
        steps=np.arange(CHANGE + steps),
        begin_ns=(np.cumsum(duration) - duration).astype(np.int64),
        duration_ns=duration.astype(np.int64),
        self_ns=looked.astype(np.int64),
        starved_ns=np.zeros(own.shape, np.int64),
        phase_self_ns=phases,
    )


def found(rank: int, *company: int) -> Straggler:
    return Straggler(
        rank=rank, onset_step=CHANGE, onset_ns=0, excess=0.15, excess_ns=300_000_000, usual=0.0, phase=-1, z=9.0,
        window=6, slow_steps=6, step_ns=2_100_000_000, others_self_ns=1_500_000_000, self_ns=1_800_000_000,
        company=company,
    )  # fmt: skip


@pytest.mark.parametrize("rank", [8, 24])
@pytest.mark.parametrize("seed", range(5))
def test_the_stage_that_loses_more_is_the_late_one(rank: int, seed: int) -> None:
    """Whichever of its ranks or of those that work for it stood out first, and though one was not seen to be slow."""
    both = [each for each in (*ITS_PEERS, *LATE) if each not in (rank, 27)]
    named = of_one_stage(job(4e8, 3.2e8, 24, seed), STAGES, found(rank, *both))
    assert named is not None
    assert sorted((named.rank, *named.company)) == list(LATE)


def test_it_is_not_guessed() -> None:
    both = [each for each in (*ITS_PEERS, *LATE) if each != 8]
    asked = found(8, *both)
    assert of_one_stage(job(4e8, 3.2e8, FEWEST_STEPS - 1), STAGES, asked) is None
    assert of_one_stage(job(4e8, 4e8, FEWEST_STEPS + 4), STAGES, asked) is None
    assert of_one_stage(job(4e8, 4e8, MOST_STEPS), STAGES, asked) == asked


def test_who_was_always_so_or_only_seems_slower_is_as_it_was_found() -> None:
    both = [each for each in (*ITS_PEERS, *LATE) if each != 8]
    asked = found(8, *both)
    assert of_one_stage(job(-4e8, -3e8, FEWEST_STEPS + 4), STAGES, asked) == asked
    for always in (replace(asked, onset_step=0, based=False), replace(asked, onset_step=0)):
        assert of_one_stage(job(4e8, 3e8, FEWEST_STEPS + 4), STAGES, always) == always


def test_those_of_one_stage_and_of_none_are_as_they_are() -> None:
    times = job(4e8, 0.0, 4)
    asked = found(24, *list(LATE)[1:])
    assert of_one_stage(times, STAGES, asked) == asked
    alone = found(24)
    assert of_one_stage(times, STAGES, alone) == alone
    both = found(24, 8)
    assert of_one_stage(times, np.full(RANKS, -1), both) == both


def fetches(steps: int, *longer: tuple[range, float], seed: int = 1) -> np.ndarray:
    """30 ms each and a little, with a pause now and then; since the change, of these ranks so many times as long."""
    random = np.random.default_rng(seed)
    taken = 3e7 * (1.0 + 0.02 * random.standard_normal((20 + steps, RANKS)))
    taken[random.random(taken.shape) < 0.01] += 4e8
    for ranks, times in longer:
        taken[20:, list(ranks)] *= times
    return taken


@pytest.mark.parametrize("rank", [8, 24])
@pytest.mark.parametrize("seed", range(5))
def test_whose_hosts_fetch_their_data_for_longer_are_the_late_ones(rank: int, seed: int) -> None:
    """Within a few steps, and though the others seem to lose as much: they wait for them, which nobody sees."""
    asked = found(rank, *[each for each in (*ITS_PEERS, *LATE) if each != rank])
    named = of_one_stage(job(4e8, 4e8, 6, seed, fetches(6, (LATE, 1.4), seed=seed)), STAGES, asked)
    assert named is not None
    assert sorted((named.rank, *named.company)) == list(LATE)
    assert named.rank == rank if rank in LATE else named.usual < 0.05


@pytest.mark.parametrize(
    ("longer", "steps"),
    [
        ((), 6),
        (((LATE, 1.1),), 6),  # hardly more
        (((LATE, 1.4), (ITS_PEERS, 1.4)), 6),  # both: it is the data
        (((LATE, 1.4), (range(8, 9), 1.4)), 6),
        (((range(24, 28), 1.4),), 6),  # half of them
        (((LATE, 1.4),), 3),  # too soon to be known
    ],
)
def test_fetching_says_nothing_where_it_is_not_that_of_one_stage(
    longer: tuple[tuple[range, float], ...], steps: int
) -> None:
    asked = found(8, *[each for each in (*ITS_PEERS, *LATE) if each != 8])
    assert of_one_stage(job(4e8, 4e8, steps, 1, fetches(steps, *longer)), STAGES, asked) is None
