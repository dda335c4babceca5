"""The culprit where nobody measured the waiting: who waits least in the phase in which all meet."""

from __future__ import annotations

import random

import pytest

from whichrank.diagnosis.phase_times.step_phases import RankTimes, StepPhase, StepTimeCause, StragglerSeverity, Strategy
from whichrank.diagnosis.phase_times.visible_time import judge_visible

LATE_IN = {
    StepPhase.INPUT: StepTimeCause.INPUT_STRAGGLER,
    StepPhase.H2D: StepTimeCause.H2D_STRAGGLER,
    StepPhase.FORWARD: StepTimeCause.COMPUTE_STRAGGLER,
}


def job(
    ranks: int, *, late: int | None = None, phase: StepPhase = StepPhase.INPUT, by_s: float = 0.0
) -> list[RankTimes]:
    """Everybody takes 0.3 s; ``late`` takes longer in ``phase``, and the others wait for it in backward."""
    found = []
    for rank in range(ranks):
        times = {StepPhase.INPUT: 0.01, StepPhase.H2D: 0.01, StepPhase.FORWARD: 0.1, StepPhase.BACKWARD: 0.18}
        times[phase if rank == late else StepPhase.BACKWARD] += by_s
        found.append(RankTimes(rank=rank, step_s=sum(times.values()), phases_s=times))
    return found


@pytest.mark.parametrize("phase", LATE_IN)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_the_late_rank_is_named_with_its_phase(phase: StepPhase, ranks: int) -> None:
    for late in {0, ranks // 2, ranks - 1}:
        said = judge_visible(job(ranks, late=late, phase=phase, by_s=0.2), 64)
        assert (said.cause, said.culprit, said.severity) == (LATE_IN[phase], late, StragglerSeverity.CRIT)
        assert said.victim is not None
        assert said.victim != late
        assert said.coverage == pytest.approx(1.0)


def test_a_balanced_job_names_nobody() -> None:
    said = judge_visible(job(8), 64)
    assert (said.cause, said.culprit) == (StepTimeCause.COMPUTE_BOUND, None)


def test_below_a_tenth_of_the_step_it_is_noise() -> None:
    assert judge_visible(job(4, late=1, by_s=0.03), 64).culprit is None
    assert judge_visible(job(4, late=1, by_s=0.04), 64).culprit == 1


def test_few_steps_and_fsdp_are_never_critical() -> None:
    late = job(4, late=1, by_s=0.3)
    assert judge_visible(late, 1).cause is StepTimeCause.WARM_UP
    assert judge_visible(late, 19).severity is StragglerSeverity.WARN
    assert judge_visible(late, 20).severity is StragglerSeverity.CRIT
    assert judge_visible(late, 64, Strategy.FSDP).severity is StragglerSeverity.WARN


def test_fsdp_never_blames_forward_in_which_it_waits() -> None:
    said = judge_visible(job(4, late=1, phase=StepPhase.INPUT, by_s=0.3), 64, Strategy.FSDP)
    assert (said.cause, said.culprit) == (StepTimeCause.INPUT_STRAGGLER, 1)


def test_lateness_outside_the_phases_is_a_straggler_without_a_cause() -> None:
    ranks = job(4, late=1, by_s=0.3)
    hidden = [
        RankTimes(rank=each.rank, step_s=each.step_s, phases_s={**each.phases_s, StepPhase.INPUT: 0.01})
        for each in ranks
    ]
    said = judge_visible(hidden, 64)
    assert (said.cause, said.culprit, said.phase) == (StepTimeCause.STRAGGLER, 1, "sync")


@pytest.mark.parametrize(
    ("phase", "share", "cause", "severity"),
    [
        (StepPhase.INPUT, 0.1, StepTimeCause.INPUT_BOUND, StragglerSeverity.WARN),
        (StepPhase.INPUT, 0.25, StepTimeCause.INPUT_BOUND, StragglerSeverity.CRIT),
        (StepPhase.H2D, 0.2, StepTimeCause.H2D_BOUND, StragglerSeverity.CRIT),
        (StepPhase.RESIDUAL, 0.15, StepTimeCause.RESIDUAL_BOUND, StragglerSeverity.WARN),
        (StepPhase.INPUT, 0.09, StepTimeCause.COMPUTE_BOUND, StragglerSeverity.INFO),
    ],
)
def test_what_a_whole_job_spends_its_time_on(
    phase: StepPhase, share: float, cause: StepTimeCause, severity: StragglerSeverity
) -> None:
    times = {phase: share, StepPhase.BACKWARD: 1 - share}
    said = judge_visible([RankTimes(rank=0, step_s=1.0, phases_s=times)], 64)
    assert (said.cause, said.severity) == (cause, severity)


def test_any_times_are_survived() -> None:
    draw = random.Random(5)
    for _ in range(500):
        ranks = [
            RankTimes(
                rank=rank,
                step_s=draw.choice((0.0, 1.0, 1e9)),
                phases_s={phase: draw.choice((0.0, 1e-9, 1.0, 1e12)) for phase in draw.sample(list(StepPhase), 3)},
            )
            for rank in range(draw.randrange(5))
        ]
        said = judge_visible(ranks, draw.choice((0, 2, 50)), draw.choice(list(Strategy)))
        assert 0 <= said.coverage <= 1
        assert said.score >= 0
