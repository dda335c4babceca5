"""Who is no root of a hang: who stands in a call that all have entered, and of whose device nobody tells anything."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.processors.job.detectors.hang.wait_graph import Blockage, Wait, find_blockage
from whichrank.processors.job.hang.pending_collectives import find_waits
from whichrank.processors.job.state.job_state import JobState
from whichrank.telemetry.records import Group
from whichrank.telemetry.vocabulary import Op

SECOND = 1_000_000_000


def wait(rank: int, group: int, *, missing: tuple[int, ...] = (), within: bool = False, age_s: float = 5.0) -> Wait:
    age_ns = int(age_s * SECOND)
    return Wait(
        rank=rank,
        group=group,
        seq=7,
        op=int(Op.ALL_REDUCE),
        p2p=False,
        age_ns=age_ns,
        since_ns=0,
        missing=missing,
        within=within,
    )


def root(waits: list[Wait]) -> Blockage:
    found = find_blockage(waits, 3 * SECOND)
    assert found is not None
    return found


@pytest.mark.parametrize("age_s", [1.0, 6.0])
def test_who_stands_in_a_call_that_all_have_entered_is_not_whom_the_others_wait_for(age_s: float) -> None:
    """Also while it has stood there for a moment only: then nothing can be said yet."""
    waits = [wait(0, 0, missing=(1,)), wait(2, 1, missing=(3,))]
    waits += [wait(rank, 2, within=True, age_s=age_s) for rank in (1, 3)]
    found = root(waits)
    assert (found.sort, found.suspects, found.wait.group) == ("inside", (), 2)
    assert found.wait.age_ns == age_s * SECOND


def test_who_stands_elsewhere_still_is() -> None:
    found = root([wait(0, 0, missing=(1, 4)), wait(1, 2, within=True)])
    assert (found.sort, found.suspects) == ("missing", (4,))


def job_on_devices(enqueued: list[list[int]], started: list[list[int]], completed: list[list[int]]) -> JobState:
    """Two groups of ranks 0-2; by group and rank."""
    job = JobState(job="j")
    for name in ("tp", "world"):
        job.groups.add(Group(uid=name, name=name, ranks="0-2", size=3, is_default=name == "world", backend="nccl"))
    rows = job.groups.rows
    job.groups.stamps[:] = 7
    rows["rank"] = np.tile(np.arange(3), 2)
    rows["enqueued"], rows["started"], rows["completed"] = np.ravel(enqueued), np.ravel(started), np.ravel(completed)
    rows["open"] = rows["enqueued"] - rows["completed"]
    rows["open_age_ns"] = 5 * SECOND
    for rank in range(3):
        job.facts(rank)
    return job


def waiting(job: JobState) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(job.groups.known[each.group].name, each.rank): each.missing for each in find_waits(job)}


def test_a_call_of_which_no_start_was_ever_told_holds_nobody_who_stands_elsewhere() -> None:
    """All hosts have launched the world's next call, short as it is; the devices of 0 and 1 stand in another, to which
    that of 2 has not come. It is no circle: nobody is known to stand in the world's."""
    job = job_on_devices([[9, 9, 9], [4, 4, 4]], [[9, 9, 8], [-1, -1, -1]], [[8, 8, 8], [3, 3, 3]])
    assert waiting(job) == {("tp", 0): (2,), ("tp", 1): (2,)}
    found = root(find_waits(job))
    assert (found.sort, found.suspects) == ("missing", (2,))


def test_a_call_in_which_the_others_are_seen_to_stand_has_not_been_begun_by_who_is_not() -> None:
    job = job_on_devices([[9, 9, 9], [4, 4, 4]], [[9, 9, 9], [4, 4, -1]], [[9, 9, 9], [3, 3, 3]])
    assert waiting(job) == {("world", 0): (2,), ("world", 1): (2,)}


def test_where_no_start_is_told_at_all_launched_is_as_good_as_begun() -> None:
    job = job_on_devices([[9, 9, 9], [4, 4, 4]], [[-1, -1, -1], [-1, -1, -1]], [[9, 9, 9], [3, 3, 3]])
    assert waiting(job) == {("world", rank): () for rank in range(3)}
    assert root(find_waits(job)).sort == "inside"


def test_a_call_that_a_member_has_left_holds_nobody() -> None:
    """It ends for all: who still seems to stand in it was not looked at since."""
    job = job_on_devices([[9, 9, 9], [4, 4, 4]], [[9, 9, 9], [4, 4, 4]], [[9, 9, 9], [3, 4, 3]])
    assert [each.within for each in find_waits(job)] == [False, False]
