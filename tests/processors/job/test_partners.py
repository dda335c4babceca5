"""Who is held up by a send or receive on a device, whose end nobody tells: two stages of two ranks, and a twin of each.

Ranks 0, 1 are the first stage and 2, 3 the second; 4 to 7 are their replicas. 0 exchanges with 2, and 1 with 3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.processors.job.synthetic_job import MemoryContext
from tests.processors.job.test_roots import root, wait
from whichrank.processors.job.hangs import judge_waits
from whichrank.processors.job.partners import narrowed, only_fetching, partners_of, places_apart
from whichrank.processors.job.state import JobState
from whichrank.telemetry.records import Group
from whichrank.telemetry.vocabulary import Kind, Phase

SECOND = 1_000_000_000
PARTNERS = {rank: frozenset({rank ^ 2}) for rank in range(8)}
STAGE_PEERS, REPLICAS = 1, 2


def test_the_rank_that_its_own_peer_waits_for_holds_up_the_stage_that_receives_from_both() -> None:
    """Rank 3 stands still: 2 waits for it, and 0 and 1 stand in receives that only the replicas show."""
    waits = [wait(2, STAGE_PEERS, missing=(3,)), wait(4, REPLICAS, missing=(0,)), wait(5, REPLICAS, missing=(1,))]
    blockage = root(waits)
    assert blockage.suspects == (0, 1, 3)
    found = narrowed(blockage, waits, PARTNERS)
    assert (found.suspects, found.wait.rank, set(found.waiting)) == ((3,), 2, {0, 1, 2, 4, 5})


def test_who_waits_for_a_rank_itself_does_not_keep_it_waiting() -> None:
    """The others have come to a call of all ranks and wait there for 0, 1 and 3."""
    late = (0, 1, 3)
    waits = [wait(2, STAGE_PEERS, missing=(3,)), *[wait(rank, 9, missing=late) for rank in range(4, 8)]]
    assert narrowed(root(waits), waits, PARTNERS).suspects == (3,)


def test_without_a_wait_that_tells_them_apart_all_stay_suspects() -> None:
    waits = [wait(4, REPLICAS, missing=(0,)), wait(5, REPLICAS, missing=(1,))]
    assert narrowed(root(waits), waits, PARTNERS).suspects == (0, 1)


def test_who_fetches_its_data_while_the_others_have_called_is_the_root() -> None:
    """Rank 3's whole stage waits for its input; 0 and 1 have launched everything, and stand in receives."""
    called = (
        replace(wait(4, REPLICAS, missing=(0,)), launched=(0,)),
        replace(wait(5, REPLICAS, missing=(1,)), launched=(1,)),
    )
    waits = [*called, wait(6, REPLICAS, missing=(2,)), wait(7, REPLICAS, missing=(3,))]
    blockage = root(waits)
    assert blockage.suspects == (0, 1, 2, 3)
    found = only_fetching(blockage, waits, frozenset({2, 3}))
    assert (found.suspects, set(found.waiting)) == ((2, 3), {0, 1, 4, 5, 6, 7})
    for fetching in ({0, 2, 3}, {2}, set(), {0, 1, 2, 3}):  # has called; another one has not; nobody fetches; all do
        expected = (2, 3) if fetching == {0, 2, 3} or fetching == {0, 1, 2, 3} else (0, 1, 2, 3)
        assert only_fetching(blockage, waits, frozenset(fetching)).suspects == expected


def test_only_devices_that_tell_no_end_of_what_they_exchange_have_such_partners() -> None:
    job = JobState(job="j")
    for name, backend in (("pp", "nccl"), ("hosts", "gloo")):
        job.add_group(Group(uid=name, name=name, ranks="0-2", size=3, backend=backend))
    rows = job.group_rows
    job.group_stamps[:] = 7
    rows["group"], rows["rank"] = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    rows["p2p_enqueued"], rows["p2p_completed"] = [4, 4, 0] * 2, -1
    assert partners_of(job) == {0: frozenset({1, 2}), 1: frozenset({0, 2})}


def test_places_apart_are_counted_by_what_their_ranks_share() -> None:
    near = {rank: (f"node-{rank}", -1) for rank in range(8)}
    assert places_apart(near, PARTNERS) == 4  # each pair that exchanges
    assert places_apart({rank: ("node", -1) for rank in range(8)}, PARTNERS) == 1
    assert places_apart({rank: (f"node-{rank}", rank // 4) for rank in range(8)}, PARTNERS) == 2
    assert places_apart({rank: near[rank] for rank in (1, 4)}, PARTNERS) == 2
    assert places_apart({**near, 8: ("node-8", -1)}, PARTNERS) == 0  # it exchanges with nobody


def pipelines(stuck: int, *, count: int = 6, on_one_node: bool = False, launches: bool = True) -> JobState:
    """So many pipelines of two ranks, whose last stages sum up their gradients; the devices of ``stuck`` of these have
    not come to that."""
    job = JobState(job="j")
    job.add_group(Group(uid="dp", name="dp", ranks=f"{count}-{2 * count - 1}", size=count, backend="nccl"))
    for rank in range(count):
        job.add_group(Group(uid=str(rank), name="pp", ranks=f"{rank},{count + rank}", size=2, backend="nccl"))
    job.grow_progress(2 * count - 1)
    for rank in range(2 * count):
        job.set_node(rank, "node" if on_one_node else f"node-{rank}")
        job.progress["rank"][rank], job.progress["read_ns"][rank] = rank, 100 * SECOND
        job.progress_stamps[rank] = 100 * SECOND
    job.group_stamps[:] = 100 * SECOND
    rows, _ = job.rows_of_group(0)
    rows["rank"], rows["enqueued"], rows["started"], rows["completed"] = job.members[0], 5, 5, 4
    rows["open"], rows["open_age_ns"] = 1, 50 * SECOND
    rows["started"][:stuck] = 4
    rows["enqueued"][:stuck] = 4 + launches
    for index in range(1, count + 1):
        rows, _ = job.rows_of_group(index)
        rows["rank"], rows["group"], rows["started"], rows["completed"] = job.members[index], index, -1, -1
        rows["open"], rows["p2p_enqueued"], rows["p2p_completed"], rows["peer"] = -1, 9, -1, (1, 0)
    job.progress["step"] = job.closed_step = 7
    job.progress["phase"] = Phase.FORWARD
    job.open_ages_ns[:count] = 50 * SECOND
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
    (finding,) = job.findings.values()
    assert (finding.kind, len(finding.body["suspects"])) == expected
