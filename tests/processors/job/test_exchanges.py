"""Devices that may all stand in sends and receives: in many places apart, what moves the data is the reason."""

from __future__ import annotations

import pytest

from tests.processors.job.synthetic_job import MemoryContext
from whichrank.processors.job.hang.hangs import judge_waits
from whichrank.processors.job.hang.stalled_p2p import places_apart
from whichrank.processors.job.state.job_state import JobState
from whichrank.telemetry.records import Group
from whichrank.telemetry.vocabulary import Kind, Phase

SECOND = 1_000_000_000


def test_places_apart_are_counted_by_what_their_ranks_share() -> None:
    partners = {rank: frozenset({rank ^ 2}) for rank in range(8)}
    alone = {rank: f"node-{rank}" for rank in range(8)}
    assert places_apart(alone, partners) == 4  # each pair that exchanges
    assert places_apart(dict.fromkeys(range(8), "node"), partners) == 1
    assert places_apart({rank: f"node-{rank // 4}" for rank in range(8)}, partners) == 2
    assert places_apart({rank: alone[rank] for rank in (1, 4)}, partners) == 2
    assert places_apart({**alone, 8: "node-8"}, partners) == 0  # it exchanges with nobody


COUNT = 6


def pipelines(stuck: int, *, count: int = COUNT, on_one_node: bool = False, launches: bool = True) -> JobState:
    """So many pipelines of two ranks, whose last stages sum up their gradients; the devices of ``stuck`` of these have
    not come to that."""
    job = JobState(job="j")
    job.groups.add(Group(uid="dp", name="dp", ranks=f"{count}-{2 * count - 1}", size=count, backend="nccl"))
    for rank in range(count):
        job.groups.add(Group(uid=str(rank), name="pp", ranks=f"{rank},{count + rank}", size=2, backend="nccl"))
    job.progress.grow(2 * count - 1)
    for rank in range(2 * count):
        job.set_node(rank, "node" if on_one_node else f"node-{rank}")
        job.progress.rows["rank"][rank], job.progress.rows["read_ns"][rank] = rank, 100 * SECOND
        job.progress.stamps[rank] = 100 * SECOND
    job.groups.stamps[:] = job.progress.newest_stamp_ns = 100 * SECOND
    rows, _ = job.groups.rows_of(0)
    rows["rank"], rows["enqueued"], rows["started"], rows["completed"] = job.groups.members[0], 5, 5, 4
    rows["open"], rows["open_age_ns"] = 1, 50 * SECOND
    rows["started"][:stuck] = 4
    rows["enqueued"][:stuck] = 4 + launches
    for index in range(1, count + 1):
        rows, _ = job.groups.rows_of(index)
        rows["rank"], rows["group"], rows["started"], rows["completed"] = job.groups.members[index], index, -1, -1
        rows["open"], rows["p2p_enqueued"], rows["p2p_completed"], rows["peer"] = -1, 9, -1, (1, 0)
    job.progress.rows["step"] = job.steps.closed_step = 7
    job.progress.rows["phase"] = Phase.FORWARD
    job.groups.open_ages_ns[:count] = 50 * SECOND
    return job


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (pipelines(4), (Kind.COLLECTIVE_STALLED, 0)),
        (pipelines(2), (Kind.RANK_NOT_ENTERED, 2)),
        (pipelines(4, on_one_node=True), (Kind.RANK_NOT_ENTERED, 4)),
        (pipelines(4, launches=False), (Kind.RANK_NOT_ENTERED, 4)),
    ],
    ids=["apart", "two only", "one node", "hosts have not come"],
)
def test_devices_in_many_places_that_may_all_stand_in_exchanges_are_no_culprits(
    job: JobState, expected: tuple[Kind, int]
) -> None:
    judge_waits(job, 101 * SECOND, MemoryContext())
    (finding,) = job.findings.all()
    assert (finding.kind, len(finding.body.suspects)) == expected


def pipelines_that_all_stand(*, age_s: float = 50.0, count: int = COUNT) -> JobState:
    """No device has ended anything for so long, and none is seen to stand in a collective: each has one before it."""
    job = pipelines(count, count=count)
    job.world_size = 2 * count
    job.groups.add(Group(uid="first", name="dp", ranks=f"0-{count - 1}", size=count, backend="nccl"))
    last, _ = job.groups.rows_of(0)
    first, stamps = job.groups.rows_of(count + 1)
    first[:], stamps[:] = last, 100 * SECOND
    first["rank"], first["group"] = job.groups.members[count + 1], count + 1
    for group in (0, count + 1):
        job.groups.rows_of(group)[0]["open_age_ns"] = age_s * SECOND
    job.groups.open_ages_ns[-count:] = job.groups.open_ages_ns[:count]
    return job


def with_a_wait(job: JobState) -> JobState:
    """Rank 1 had got what was sent to it: it waits in the collective for the others of its stage."""
    job.groups.rows_of(COUNT + 1)[0]["started"][1] = 5
    return job


def with_all_but_two_waiting(job: JobState) -> JobState:
    """Only one pipeline stands before the collective: the others wait for it there."""
    for group in (0, COUNT + 1):
        job.groups.rows_of(group)[0]["started"][1:] = 5
    return job


def without_work(job: JobState) -> JobState:
    """Rank 0's device has done everything: its host does not go on."""
    job.groups.rows_of(COUNT + 1)[0]["open"][0] = 0
    return job


def long_unheard(job: JobState) -> JobState:
    job.progress.stamps[3] -= 60 * SECOND
    return job


def stopped(job: JobState) -> JobState:
    job.ranks[3].stopped_ns = 90 * SECOND
    return job


@pytest.mark.parametrize(
    ("job", "is_told"),
    [
        (pipelines_that_all_stand(), True),
        (with_a_wait(pipelines_that_all_stand()), True),
        (pipelines_that_all_stand(age_s=2.0), False),
        (pipelines_that_all_stand(count=2), False),
        (without_work(pipelines_that_all_stand()), False),
        (long_unheard(pipelines_that_all_stand()), False),
        (stopped(pipelines_that_all_stand()), False),
    ],
    ids=[
        "all stand",
        "one waits",
        "not long",
        "two pipelines",
        "a host does not go on",
        "one is not seen",
        "one is stopped",
    ],
)
def test_a_job_whose_devices_all_stand_in_exchanges_is_held_up_by_what_moves_the_data(
    job: JobState, *, is_told: bool
) -> None:
    judge_waits(job, 101 * SECOND, MemoryContext())
    told = [(finding.kind, list(finding.body.suspects), finding.seq) for finding in job.findings.all()]
    assert told == ([(Kind.COLLECTIVE_STALLED, [], 5)] if is_told else [])


def test_a_pipeline_for_which_all_others_wait_has_the_culprit() -> None:
    job = with_all_but_two_waiting(pipelines_that_all_stand())
    judge_waits(job, 101 * SECOND, MemoryContext())
    told = [(finding.kind, finding.suspects) for finding in job.findings.all()]
    assert told == [(Kind.RANK_NOT_ENTERED, [0, COUNT])]


def test_it_is_over_when_the_collective_before_which_they_stood_has_ended() -> None:
    job, context = pipelines_that_all_stand(), MemoryContext()
    judge_waits(job, 101 * SECOND, context)
    (finding,) = job.findings.all()
    job.groups.rows_of(finding.group)[0]["completed"] = 5
    judge_waits(job, 102 * SECOND, context)
    assert not job.findings.all()
