"""What an attempt goes on from is what its ranks have read, where that is known; else the newest checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processors.job.synthetic_job import MemoryContext, SyntheticJob, drive
from tests.processors.job.test_accounting import account, dies, finished_at, merged, saving_every, seconds, started_at
from whichrank.processors.job.accounting.resumed_checkpoint import MOST_CHECKPOINTS, note_checkpoint
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.state_rows import load_job
from whichrank.telemetry.vocabulary import EventName, TimeBucket

B = TimeBucket
STEP_S = 0.465  # of four ranks the slowest


def named(at_s: float, checkpoint: str, *, read: bool, step: int = 0) -> tuple[float, EventName, int, dict[str, Any]]:
    return at_s, EventName.RANK_CHECKPOINT, 0, {"checkpoint": checkpoint, "read": read, "step": step}


def two_attempts(*reads: str) -> MemoryContext:
    """Saves before steps 20, 40 and 60 as a, b and c; killed in step 70 or so; then 30 steps more."""
    first = dies(37.0, 100.0, "a1", step_s=0.5, program=saving_every(20, 0.4))
    for at_s, name, step in ((0.1, "cache", 0), (10.5, "a", 20), (21.0, "b", 40), (31.5, "c", 60)):
        first.events.append(named(at_s, name, read=False, step=step))
    second = SyntheticJob(
        steps=30,
        attempt="a2",
        start_s=145.0,
        step_s=0.5,
        after_s=0.5,
        events=[named(0.2 + 0.1 * number, name, read=True) for number, name in enumerate(reads)],
    )
    return drive(merged([started_at(99.0)], first.records(), second.records(), [finished_at(161.0)]))


@pytest.mark.parametrize(
    ("reads", "resumed"),
    [
        ((), 60),
        (("c",), 60),
        (("b",), 40),
        (("a", "b"), 40),
        (("b", "a"), 40),
        (("pretrained",), 60),
        (("cache",), 60),
        (("cache", "a"), 20),
    ],
)
def test_steps_after_what_was_read_are_lost(reads: tuple[str, ...], resumed: int) -> None:
    context = two_attempts(*reads)
    found = account(context)
    said = seconds(found)
    lost = [each for each in context.intervals() if each.of(B.REWORK) and each.steps]
    assert min(each.first_step for each in lost) == resumed
    done = found.steps - 30
    assert said[B.REWORK] == pytest.approx((done - resumed) * STEP_S, abs=1.0)
    job = load_job(context.tables["job"])
    assert job is not None
    assert (job.checkpoints.steps_before, job.ledger.steps_before) == (resumed, resumed)
    assert max(each.last_step for each in context.intervals() if each.attempt == "a2") == resumed + 29
    (down,) = found.interruptions
    assert down.ns[B.REWORK] == found.ns[B.REWORK]


def test_a_checkpoint_that_nobody_saw_written_and_was_read_gives_the_steps_back() -> None:
    """The save before step 60 is in no step row; that it was read says that it was whole."""
    first = dies(37.0, 100.0, "a1", step_s=0.5, program=saving_every(40, 0.4))
    first.events += [named(21.0, "b", read=False, step=40), named(31.5, "c", read=False, step=60)]
    second = SyntheticJob(
        steps=30, attempt="a2", start_s=145.0, step_s=0.5, after_s=0.5, events=[named(0.2, "c", read=True)]
    )
    context = drive(merged([started_at(99.0)], first.records(), second.records(), [finished_at(161.0)]))
    account(context)
    job = load_job(context.tables["job"])
    assert job is not None
    assert job.checkpoints.steps_before == 60
    assert max(each.last_step for each in context.intervals()) == 89


def test_as_many_places_are_remembered_as_may_be() -> None:
    job = JobState()
    for number in range(MOST_CHECKPOINTS + 50):
        note_checkpoint(job, f"{number:x}", step=number + 1, is_read=False)
    assert len(job.checkpoints.by_place) == MOST_CHECKPOINTS
    note_checkpoint(job, "0", step=0, is_read=True)
    assert job.checkpoints.restored_steps == -1, "forgotten"
    newest = f"{MOST_CHECKPOINTS + 49:x}"
    note_checkpoint(job, newest, step=1000, is_read=False)
    note_checkpoint(job, newest, step=0, is_read=True)
    assert job.checkpoints.restored_steps == 1000, "the same place written again"
