"""Who is held up by a send or receive on a device, whose end nobody tells: two stages of two ranks, and a twin of each.

Ranks 0, 1 are the first stage and 2, 3 the second; 4 to 7 are their replicas. 0 exchanges with 2, and 1 with 3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.processors.job.test_roots import root, wait
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.topology.p2p_peers import narrowed, only_fetching, partners_of
from whichrank.telemetry.records import Group

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
        job.groups.add(Group(uid=name, name=name, ranks="0-2", size=3, backend=backend))
    rows = job.groups.rows
    job.groups.stamps[:] = 7
    rows["group"], rows["rank"] = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    rows["p2p_enqueued"], rows["p2p_completed"] = [4, 4, 0] * 2, -1
    assert partners_of(job) == {0: frozenset({1, 2}), 1: frozenset({0, 2})}
