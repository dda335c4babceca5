"""When a hang is over because ranks went on, and what is said of those who did not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.processors.job.bare_finding import bare_body
from tests.processors.job.synthetic_job import (
    FOREVER,
    Action,
    Call,
    Enter,
    MemoryContext,
    SyntheticJob,
    WaitAll,
    Work,
    drive,
)
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.rank_state import OpenFinding
from whichrank.processors.job.steps.closed_steps import went_on
from whichrank.telemetry.vocabulary import Kind, Phase

STEP = 20


def standing(newest: list[int], *, closed: int, world_size: int = 4, exited: tuple[int, ...] = ()) -> JobState:
    """newest: by rank, the last step that it has finished."""
    job = JobState(job="j")
    job.steps.newest_step = np.array(newest, np.int64)
    job.steps.closed_step, job.world_size = closed, world_size
    for rank in range(len(newest)):
        job.facts(rank).exited_ns = int(rank in exited)
    return job


def hang(*suspects: int, step: int = STEP) -> OpenFinding:
    return OpenFinding(
        key="k",
        kind=Kind.RANK_NOT_ENTERED.value,
        attempt="",
        found_ns=0,
        onset_ns=0,
        step=step,
        group=0,
        seq=7,
        suspects=list(suspects),
        body=bare_body(Kind.RANK_NOT_ENTERED),
    )


@pytest.mark.parametrize(
    ("job", "finding", "said"),
    [
        (standing([21, 22, 21, 23], closed=21), hang(2), "all ranks have finished step 21"),
        (standing([20, 22, 21, 23], closed=20), hang(2), ""),
        # Steps are closed without who is 64 steps behind, which says nothing of it.
        (
            standing([123, 223, 221, 222], closed=221),
            hang(2, step=150),
            "3 of 4 ranks have finished step 221; rank 0 has not: it is in step 124",
        ),
        (
            standing([123, 223, 121, 222], closed=222),
            hang(step=150),
            "2 of 4 ranks have finished step 222; ranks 0,2 have not: they are in steps 122 to 124",
        ),
        (standing([123, 223, 221, 222], closed=221), hang(0, step=124), ""),
        (standing([123, 223, 221, 222], closed=221), hang(0, 2, step=150), ""),
        # What a rank that has left did not finish is no matter of this hang; nobody says that it has.
        (standing([21, 22, 5, 23], closed=21, exited=(2,)), hang(0), "3 of 4 ranks have finished step 21"),
        (standing([21, 22, 5, 23], closed=21, exited=(2,)), hang(2), "3 of 4 ranks have finished step 21"),
    ],
)
def test_what_is_said_is_true_of_every_rank_that_it_counts(job: JobState, finding: OpenFinding, said: str) -> None:
    assert went_on(job, finding) == said


def without_waiting(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """What is called in one step is waited for hundreds of steps later."""
    calls: list[Action] = [Call("world", asynchronous=True)] if step == STEP else []
    last: list[Action] = [WaitAll()] if step == job.steps - 1 else []
    return [Enter(Phase.FORWARD), Work(0.08), *calls, *last, Enter(Phase.OPTIMIZER), Work(0.02)]


def late_by(seconds: float, *, steps: int) -> MemoryContext:
    job = SyntheticJob(
        ranks=4,
        steps=steps,
        program=without_waiting,
        delays=[lambda rank, step, phase: seconds if (rank, step, phase) == (0, STEP, Phase.FORWARD) else 0],
    )
    return drive(job.records())


def test_a_hang_is_not_over_while_its_suspect_stands_where_it_stood() -> None:
    """It was told as over each second, because the others were 64 steps further, and opened again at once."""
    found = late_by(FOREVER, steps=200).findings()
    assert {item["rank"] for finding in found for item in finding.body["suspects"]} == {0}
    assert [finding for finding in found if finding.cleared] == []


def test_it_is_over_when_the_suspect_has_gone_on_as_well() -> None:
    context = late_by(12.0, steps=400)
    (finding,) = context.final().values()
    assert finding.cleared
    assert [found.cleared for found in context.findings()].count(True) == 1
