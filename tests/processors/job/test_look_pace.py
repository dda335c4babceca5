"""A large job is looked at some times a second, whatever the number of its agents' messages."""

from __future__ import annotations

import pytest

from whichrank.processors.job.intake.check_interval import FEW_RANKS, NS_PER_RANK, is_look_due
from whichrank.processors.job.state.job_state import JobState

SECOND = 1_000_000_000


def job_of(ranks: int) -> JobState:
    job = JobState(cluster="c", run="r", job="j")
    for rank in range(ranks):
        job.facts(rank)
    job.progress.grow(ranks - 1)
    return job


def looks(job: JobState, messages: int, seconds: int) -> int:
    """How many of the messages, one after the other from all ranks in turn, are looked at."""
    found = 0
    ranks = len(job.ranks)
    for number in range(messages):
        stamp_ns = 1_790_000_000 * SECOND + number * seconds * SECOND // messages
        found += is_look_due(job, job.progress.newest_stamp_ns, stamp_ns)
        job.progress.stamps[number % ranks] = job.progress.newest_stamp_ns = stamp_ns
    return found


def test_a_small_job_is_looked_at_each_time() -> None:
    assert looks(job_of(FEW_RANKS), 500, 10) == 500


@pytest.mark.parametrize(
    ("ranks", "period_s"), [(FEW_RANKS + 1, 0.0154), (1023, 0.0614), (1024, 0.25), (2048, 0.25), (16_384, 0.983)]
)
def test_a_large_one_as_often_as_its_size_allows(ranks: int, period_s: float) -> None:
    assert looks(job_of(ranks), 20_000, 20) == pytest.approx(20 / period_s, rel=0.01, abs=2)


def test_of_a_large_one_nothing_is_late_by_more_than_a_period() -> None:
    job = job_of(16_384)
    assert is_look_due(job, 0, 5 * SECOND), "the first message"
    assert is_look_due(job, 5 * SECOND, 5 * SECOND + 16_384 * NS_PER_RANK), "one after a pause"
    assert 16_384 * NS_PER_RANK <= SECOND
