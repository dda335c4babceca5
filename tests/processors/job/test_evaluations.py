"""Evaluations are planned time: also where a fault ends them, and but for what a slow rank makes them longer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processors.job.synthetic_job import Action, Call, Enter, SyntheticJob, Work, ddp_step, drive
from tests.processors.job.test_accounting import account, dies, finished_at, merged, seconds, started_at
from whichrank.processors.job.state.state_rows import load_job
from whichrank.telemetry.vocabulary import Phase, TimeBucket

B = TimeBucket
#: Of an evaluation; the ranks meet at its end.
EVALUATION_S = 6.0


def evaluating_every(steps: int) -> Any:
    """A DDP step; before every so manieth, all ranks evaluate."""

    def program(job: SyntheticJob, rank: int, step: int) -> list[Action]:
        before: list[Action] = (
            [Enter(Phase.EVAL), Work(EVALUATION_S), Call("world", bytes=8)] if step and step % steps == 0 else []
        )
        return [*before, *ddp_step(job, rank, step)]

    return program


def test_an_evaluation_that_a_death_ends_is_planned_and_no_work_lost() -> None:
    """Step 20 begins about 10 s after the start with an evaluation; rank 2 is killed 4 s later."""
    first = dies(14.0, 100.0, "a1", step_s=0.5, program=evaluating_every(20))
    second = SyntheticJob(steps=30, attempt="a2", start_s=125.0, step_s=0.5, after_s=0.5)
    found = account(drive(merged([started_at(99.0)], first.records(), second.records(), [finished_at(141.0)])))
    said = seconds(found)
    before_s = 20 * 0.465 + 20 * 0.05  # until the evaluation began
    assert said[B.PLANNED] == pytest.approx(14.0 - before_s, abs=0.6)
    assert said[B.REWORK] == pytest.approx(20 * 0.465, abs=0.6), "nothing was saved: its steps, without the evaluation"
    (down,) = found.interruptions
    assert not down.planned
    assert down.ns[B.REWORK] == found.ns[B.REWORK], "the evaluation in between has not hidden the lost work"
    assert found.mttf.failures == 1


def test_what_a_slow_rank_makes_evaluations_longer_is_charged_to_it() -> None:
    slow = SyntheticJob(
        steps=300,
        step_s=0.5,
        slow=lambda rank, step: 1.4 if rank == 1 and 100 <= step < 200 else 1.0,
        program=evaluating_every(30),
        after_s=0.5,
    )
    context = drive(merged(slow.records(), [finished_at(340.0)]))
    said = seconds(account(context))
    evaluations = [step for step in range(1, 300) if step % 30 == 0]
    longer = sum(100 <= step < 200 for step in evaluations)
    usual_s = EVALUATION_S * 1.03  # the slowest of four
    in_evaluations_s = longer * (1.4 * EVALUATION_S - usual_s)
    assert said[B.PLANNED] == pytest.approx(len(evaluations) * usual_s, rel=0.03)
    in_steps_s = 100 * (1.4 * 0.5 * 0.9 - 0.465)
    assert said[B.STRAGGLER_LOSS] == pytest.approx(in_steps_s + in_evaluations_s, rel=0.05)
    causes = {part.cause for each in context.intervals() for part in each.parts if part.bucket is B.STRAGGLER_LOSS}
    assert causes == set(context.final())
    job = load_job(context.tables["job"])
    assert job is not None
    assert 0 < len(job.ledger.evaluations) <= 16
