"""The culprit where the waiting was measured: drawn jobs with and without a slow rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from whichrank.diagnosis.phase_times.self_time import StepTable, judge_self, robust_z
from whichrank.diagnosis.phase_times.step_phases import StepPhase, StepTimeCause, StragglerSeverity


def job(
    ranks: int,
    *,
    steps: int = 60,
    slow: int | None = None,
    by: float = 0.0,
    phase: StepPhase = StepPhase.FORWARD,
    stages: int = 1,
    slow_stage: float = 0.0,
    noise: float = 0.01,
    pauses: float = 0.0,
    seed: int = 0,
) -> StepTable:
    """Each rank works about 1 s per step, then waits for the last. ``pauses``: seconds, on a random rank per step."""
    draw = np.random.default_rng(seed)
    phases = {
        StepPhase.INPUT: np.abs(draw.normal(0.05, noise * 0.05, (steps, ranks))),
        StepPhase.FORWARD: np.abs(draw.normal(0.35, noise * 0.35, (steps, ranks))),
        StepPhase.BACKWARD: np.abs(draw.normal(0.60, noise * 0.60, (steps, ranks))),
    }
    stage = tuple(rank * stages // ranks for rank in range(ranks))
    if slow is not None:
        phases[phase][:, slow] += by
    phases[StepPhase.FORWARD][:, [at for at in range(ranks) if stage[at] == stages - 1]] += slow_stage
    work = sum(phases.values(), np.zeros((steps, ranks)))
    work[np.arange(steps), draw.integers(0, ranks, steps)] += pauses
    step = np.repeat(work.max(axis=1, keepdims=True), ranks, axis=1)
    return StepTable(
        ranks=tuple(range(ranks)), step_s=step, wait_s=step - work, phases_s=phases, stages=stage if stages > 1 else ()
    )


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
@pytest.mark.parametrize("phase", [StepPhase.INPUT, StepPhase.FORWARD, StepPhase.BACKWARD])
def test_a_slow_rank_is_named_with_its_phase(ranks: int, phase: StepPhase) -> None:
    for seed in range(5):
        slow = seed * 7 % ranks
        said = judge_self(job(ranks, slow=slow, by=0.15, phase=phase, seed=seed))
        assert (said.culprit, said.phase, said.severity) == (slow, phase.value, StragglerSeverity.WARN), said
        assert said.victim not in (None, slow)


def test_ten_percent_are_found_from_eight_ranks_on() -> None:
    found = [judge_self(job(16, slow=5, by=0.10, seed=seed)).culprit for seed in range(50)]
    assert found == [5] * 50


def test_no_rank_of_a_clean_job_is_named() -> None:
    for ranks in (2, 4, 8, 64):
        for seed in range(50):
            said = judge_self(job(ranks, seed=seed, noise=0.03))
            assert said.culprit is None, said


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_pauses_that_wander_name_nobody(ranks: int) -> None:
    for seed in range(20):
        said = judge_self(job(ranks, pauses=0.5, seed=seed))
        assert (said.cause, said.culprit) == (StepTimeCause.WANDERING, None)


@pytest.mark.parametrize("slow", [(4, 5), tuple(range(8, 16)), (3, 17, 40)])
def test_several_slow_ranks_are_named_together(slow: tuple[int, ...]) -> None:
    for seed in range(10):
        table = job(64, seed=seed)
        nodes = tuple(f"n{rank // 8}" for rank in table.ranks)
        own = table.step_s - table.wait_s
        own[:, list(slow)] += 0.2
        table.phases_s[StepPhase.INPUT][:, list(slow)] += 0.2
        step = np.repeat(own.max(axis=1, keepdims=True), 64, axis=1)
        said = judge_self(replace(table, step_s=step, wait_s=step - own, nodes=nodes))
        assert (said.cause, said.culprits) == (StepTimeCause.INPUT_STRAGGLER, slow), said
        homes = {nodes[rank] for rank in slow}
        assert said.node == (homes.pop() if len(homes) == 1 else "")
        assert said.victim not in slow


def test_a_slow_stage_is_no_slow_rank() -> None:
    said = judge_self(job(16, stages=4, slow_stage=0.3))
    assert (said.cause, said.culprit, said.phase) == (StepTimeCause.STAGE_IMBALANCE, None, "stage 3")


def test_a_slow_rank_is_compared_with_its_own_stage() -> None:
    """The last stage takes 8 % longer as a whole, which is normal; rank 2 takes 20 % longer than its peers."""
    said = judge_self(job(16, stages=4, slow_stage=0.08, slow=2, by=0.2))
    assert (said.cause, said.culprit) == (StepTimeCause.COMPUTE_STRAGGLER, 2)


def test_steps_in_which_a_rank_is_missing_do_not_count() -> None:
    table = job(8, slow=3, by=0.3)
    table.wait_s[::2, 1] = np.nan
    assert judge_self(table).culprit == 3
    table.wait_s[:, 1] = np.nan
    assert judge_self(table).cause is StepTimeCause.WARM_UP


def test_robust_z_is_not_moved_by_the_outlier_itself() -> None:
    z = robust_z(np.array([1.0, 1.01, 0.99, 1.0, 1.02, 5.0]))
    assert z[5] > 100
    assert np.abs(z[:5]).max() < 2
