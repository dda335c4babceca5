"""How soon steps are looked at: how long they usually take is learned early where it can be, and findings hurry."""

from __future__ import annotations

import numpy as np
import pytest

from tests.processors.job.bare_finding import bare_body
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.detectors.slow.straggler import SMALLEST_EXCESS
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.open_steps import mean_length_ns
from whichrank.processors.job.state.rank_state import OpenFinding
from whichrank.processors.job.steps.closing_times import (
    CLOSE_NS,
    CLOSE_SLOW_NS,
    CLOSE_SOON_NS,
    closing_patience_ns,
)
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.vocabulary import Kind, Phase

MS = 1_000_000
MANY, FEW = 1024, 1023


def job_with(*step_ms: float, rows: int = FEW, ranks: int = 2) -> JobState:
    """A job that has closed steps of these lengths, all in one closing that joined so many rows."""
    job = JobState(job="job-1")
    close(job, *step_ms, rows=rows, ranks=ranks)
    return job


def close(job: JobState, *step_ms: float, rows: int = FEW, ranks: int = 2) -> None:
    duration_ns = (np.array(step_ms) * MS).astype(np.int64)
    steps = np.arange(duration_ns.size)
    by_rank = np.zeros((steps.size, ranks), np.int64)
    times = StepTimes(
        ranks=np.arange(ranks),
        steps=steps,
        begin_ns=steps * MS,
        duration_ns=duration_ns,
        self_ns=by_rank,
        starved_ns=by_rank,
        phase_self_ns=np.zeros((steps.size, ranks, len(Phase)), np.int64),
    )
    job.steps.add(times, duration_ns, np.zeros_like(duration_ns), np.zeros_like(duration_ns))
    job.steps.note_pace(rows)


def arriving_ns(*step_ms: float) -> int:
    """The mean length that is told."""
    rows = np.zeros(len(step_ms), STEPS)
    rows["begin_ns"] = 5_000 * MS
    rows["end_ns"] = rows["begin_ns"] + (np.array(step_ms) * MS).astype(np.int64)
    return mean_length_ns(rows)


def open_finding(job: JobState, kind: Kind, attempt: str = "") -> None:
    job.findings.by_key[kind.value] = OpenFinding(
        key=kind.value, kind=kind.value, attempt=attempt, found_ns=1, onset_ns=1, step=1, group=0, seq=1,
        suspects=[0], body=bare_body(kind),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "rows", "known"),
    [
        (15, MANY, False),
        (16, MANY, True),
        (16, FEW, False),
        (39, FEW, False),
        (40, FEW, True),
    ],
)
def test_even_steps_are_known_after_16_where_closing_is_dear_else_after_40(steps: int, rows: int, known: bool) -> None:
    assert bool(job_with(*[100.0] * steps, rows=rows).steps.slow_step_ns) == known


def test_one_step_in_ten_may_be_long_and_two_of_16_may_not() -> None:
    assert job_with(*[100.0] * 15, 300.0, rows=MANY).steps.slow_step_ns
    assert job_with(*[100.0] * 14, *[109.0] * 2, rows=MANY).steps.slow_step_ns
    assert not job_with(*[100.0] * 14, *[111.0] * 2, rows=MANY).steps.slow_step_ns


def test_uneven_steps_are_known_after_40_whatever_closing_costs() -> None:
    uneven = [100.0, 100.0, 400.0] * 13 + [100.0]
    assert not job_with(*uneven[:-1], rows=MANY).steps.slow_step_ns
    assert job_with(*uneven, rows=MANY).steps.slow_step_ns == 400 * MS


def test_slow_is_beyond_half_of_the_smallest_excess_that_is_told() -> None:
    assert job_with(*[100.0] * 40).steps.slow_step_ns == 100 * MS + int(SMALLEST_EXCESS / 2 * 100 * MS)
    assert job_with(*[100.0] * 30, *[200.0] * 10).steps.slow_step_ns == 200 * MS  # one step in five may take longer


def test_the_last_64_steps_count_and_other_ranks_begin_anew() -> None:
    job = job_with(*[100.0] * 64)
    close(job, *[200.0] * 64)
    assert job.steps.slow_step_ns == 200 * MS + int(SMALLEST_EXCESS / 2 * 200 * MS)
    close(job, *[200.0] * 5, ranks=3)
    assert job.steps.slow_step_ns == 0


def test_steps_are_closed_soon_while_it_is_not_known_how_long_they_take() -> None:
    assert closing_patience_ns(job_with(*[100.0] * 39), arriving_ns(100.0)) == CLOSE_SOON_NS


def test_usual_steps_wait_and_steps_that_are_slow_on_average_do_not() -> None:
    job = job_with(*[100.0] * 40)
    assert closing_patience_ns(job, arriving_ns(100.0, 102.0)) == CLOSE_NS
    assert closing_patience_ns(job, arriving_ns(100.0, 104.0)) == CLOSE_NS  # one of them alone means nothing
    assert closing_patience_ns(job, arriving_ns(103.0, 104.0)) == CLOSE_SOON_NS


@pytest.mark.parametrize("kind", [Kind.RANK_SLOW, Kind.SLOW_TOGETHER])
def test_while_a_slow_rank_is_told_usual_steps_are_closed_within_a_second(kind: Kind) -> None:
    job = job_with(*[100.0] * 40)
    open_finding(job, kind)
    assert closing_patience_ns(job, arriving_ns(100.0)) == CLOSE_SLOW_NS
    assert CLOSE_SOON_NS < CLOSE_SLOW_NS < CLOSE_NS


@pytest.mark.parametrize("kind", [Kind.RANK_NOT_ENTERED, Kind.RANK_STOPPED])
def test_what_ends_with_the_next_step_is_looked_at_soon(kind: Kind) -> None:
    job = job_with(*[100.0] * 40)
    open_finding(job, kind)
    assert closing_patience_ns(job, arriving_ns(100.0)) == CLOSE_SOON_NS


def test_a_finding_of_an_attempt_that_is_over_ends_with_the_next_steps_too() -> None:
    job = job_with(*[100.0] * 40)
    open_finding(job, Kind.RANK_SLOW, attempt="the one before")
    assert closing_patience_ns(job, arriving_ns(100.0)) == CLOSE_SOON_NS
