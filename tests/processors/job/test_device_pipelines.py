"""Sends and receives between devices, whose ends nobody tells: who may stand in one, and who is held up by whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.job.detectors.hang.wait_graph import find_blockage
from whichrank.processors.job.findings.node_report import agent_silent_body
from whichrank.processors.job.hang.pending_collectives import _Members, _oldest_open, find_waits
from whichrank.processors.job.state.finding_memory import FindingDetail, SilentNodeMemory
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.rank_state import OpenFinding
from whichrank.telemetry.records import Group
from whichrank.telemetry.tables import COLLECTIVES
from whichrank.telemetry.vocabulary import EventFlag, Kind, Op

SECOND = 1_000_000_000
#: Two stages of two ranks: each stage has a group of its own, and rank 0 receives from rank 2.
FIRST, LAST, PIPE = 0, 1, 2


def job_at(stage: dict[int, dict[int, tuple[int, int, int]]], *, pipeline: bool) -> JobState:
    """stage: by group and rank, the newest collective that its host has called, its device begun, and ended."""
    job = JobState(job="j")
    for index, ranks in enumerate(("0-1", "2-3", "0,2")):
        job.groups.add(Group(uid=str(index), name=str(index), ranks=ranks, size=2, backend="nccl"))
    job.progress.grow(3)
    for rank in range(4):
        job.facts(rank)
        job.progress.rows["read_ns"][rank] = 100 * SECOND
        job.progress.stamps[rank] = 100 * SECOND
    for group, members in stage.items():
        rows, stamps = job.groups.rows_of(group)
        for place, (rank, (enqueued, started, completed)) in enumerate(sorted(members.items())):
            rows[place]["rank"], rows[place]["group"], rows[place]["open"] = rank, group, enqueued - completed
            rows[place]["enqueued"], rows[place]["started"], rows[place]["completed"] = enqueued, started, completed
            rows[place]["open_age_ns"] = 5 * SECOND * (enqueued > completed)
        stamps[:] = 100 * SECOND
    rows, stamps = job.groups.rows_of(PIPE)
    rows["rank"], rows["group"], rows["open"], rows["started"] = (0, 2), PIPE, -1, -1
    rows["p2p_enqueued"], rows["p2p_completed"] = 9 * pipeline, -1
    rows["peer"], rows["moved_age_ns"] = (1, 0), 5 * SECOND
    stamps[:] = 100 * SECOND
    return job


@pytest.mark.parametrize("pipeline", [True, False])
def test_a_device_that_receives_from_one_that_is_held_up_is_no_root(*, pipeline: bool) -> None:
    """All of the last stage are in their collective, which does not end; rank 0 has not come to its own."""
    held = {FIRST: {0: (5, 4, 4), 1: (5, 5, 4)}, LAST: {2: (5, 5, 4), 3: (5, 5, 4)}}
    blockage = find_blockage(find_waits(job_at(held, pipeline=pipeline)), 3 * SECOND)
    assert blockage is not None
    if pipeline:
        assert (blockage.sort, blockage.wait.group) == ("inside", LAST)
    else:
        assert (blockage.sort, blockage.suspects) == ("missing", (0,))


def test_a_device_whose_peer_is_not_held_up_by_the_network_is_the_root() -> None:
    """The last stage has done all that it had to do: what rank 0 stands in is its own."""
    done = {FIRST: {0: (5, 4, 4), 1: (5, 5, 4)}, LAST: {2: (5, 5, 5), 3: (5, 5, 5)}}
    blockage = find_blockage(find_waits(job_at(done, pipeline=True)), 3 * SECOND)
    assert blockage is not None
    assert (blockage.sort, blockage.suspects) == ("missing", (0,))
    assert np.array_equal(blockage.wait.launched, (0,))


@pytest.mark.parametrize("has_launched", [True, False])
@pytest.mark.parametrize("case", ["lost", "only its agent", "another peer"])
def test_a_device_that_exchanges_with_a_rank_that_is_gone_is_no_root(case: str, *, has_launched: bool) -> None:
    """The last stage went with its node. Rank 0 has not come to the collective in which rank 1 waits; its host has
    launched it, or waits for its device before (a norm that it reads)."""
    job = job_at(
        {FIRST: {0: (4 + has_launched, 4, 4), 1: (5, 5, 4)}, LAST: {2: (4, 4, 4), 3: (4, 4, 4)}}, pipeline=True
    )
    for rank in (2, 3):
        job.set_node(rank, "node-b")
    job.nodes.facts("node-b").state = "silent"
    if case == "only its agent":  # the job has gone on since
        job.findings.by_key["told"] = OpenFinding(
            key="told",
            kind=Kind.AGENT_SILENT.value,
            attempt="",
            found_ns=0,
            onset_ns=0,
            step=-1,
            group=-1,
            seq=-1,
            suspects=[],
            body=agent_silent_body(job, "node-b", job.nodes.facts("node-b"), [2, 3], 0),
            detail=FindingDetail(memory=SilentNodeMemory(node="node-b")),
        )
    if case == "another peer":
        job.groups.rows_of(PIPE)[0]["peer"][0] = 0
    blockage = find_blockage(find_waits(job), 3 * SECOND)
    assert blockage is not None
    expected = ("unknown", (2,)) if case == "lost" else ("missing", (0,))
    assert (blockage.sort, blockage.suspects) == expected


@pytest.mark.parametrize("is_known", [True, False])
def test_a_stage_whose_host_has_launched_all_of_the_step_may_stand_in_any_receive_of_it(*, is_known: bool) -> None:
    """The last stage is in a collective that does not end. Rank 0 has launched all: its last call is a send."""
    held = {FIRST: {0: (5, 4, 4), 1: (5, 5, 4)}, LAST: {2: (5, 5, 4), 3: (5, 5, 4)}}
    job = job_at(held, pipeline=True)
    job.groups.rows_of(PIPE)[0]["peer"][0] = 0  # to somebody who is held up by nothing
    calls = np.zeros(3, COLLECTIVES)
    calls["group"], calls["flags"], calls["op"] = PIPE, int(EventFlag.P2P), (Op.RECV, Op.RECV, Op.SEND)
    calls["rank"], calls["peer"], calls["seq"] = 0, (1, 1, 0), (7, 8, 9)
    calls["done_ns"][:2] = 0 if is_known else 99 * SECOND
    job.open_steps.calls.add(calls)
    blockage = find_blockage(find_waits(job), 3 * SECOND)
    assert blockage is not None
    if is_known:
        assert (blockage.sort, blockage.wait.group) == ("inside", LAST)
    else:
        assert (blockage.sort, blockage.suspects) == ("missing", (0,))


@pytest.mark.parametrize("first_receives_from", [2, 3])
def test_stages_that_are_held_up_one_behind_the_other_are_no_roots(first_receives_from: int) -> None:
    """Of three stages the last one is in a collective that does not end. The first one receives from the second one,
    which has not come to its collective either: it receives from the last one. Another replica waits for that one."""
    job = JobState(job="j")
    for index, ranks in enumerate(("0-1", "2-3", "4-5", "0,2-4", "4,6")):
        job.groups.add(Group(uid=str(index), name=str(index), ranks=ranks, size=len(ranks) - 1, backend="nccl"))
    job.progress.grow(6)
    for rank in range(7):
        job.facts(rank)
        job.progress.rows["read_ns"][rank] = job.progress.stamps[rank] = 100 * SECOND
    for group, (of_first, of_second) in enumerate([(4, 5), (4, 5), (5, 5)]):
        rows, stamps = job.groups.rows_of(group)
        rows["rank"], rows["group"], rows["open"] = (2 * group, 2 * group + 1), group, 1
        rows["enqueued"], rows["started"], rows["completed"] = 5, (of_first, of_second), 4
        rows["open_age_ns"], stamps[:] = 5 * SECOND, 100 * SECOND
    rows, stamps = job.groups.rows_of(3)  # ranks 0, 2, 3 and 4, in this order
    rows["rank"], rows["group"], rows["open"], rows["started"] = (0, 2, 3, 4), 3, -1, -1
    rows["p2p_enqueued"], rows["p2p_completed"], rows["moved_age_ns"] = 9, -1, 5 * SECOND
    rows["peer"], stamps[:] = (first_receives_from - 1, 3, 0, 1), 100 * SECOND  # the last one sent to the second one
    rows, stamps = job.groups.rows_of(4)
    rows["rank"], rows["group"], rows["open"], rows["open_age_ns"] = (4, 6), 4, 1, 5 * SECOND
    rows["enqueued"], rows["started"], rows["completed"], stamps[:] = 2, (1, 2), 1, 100 * SECOND
    blockage = find_blockage(find_waits(job), 3 * SECOND)
    assert blockage is not None
    if first_receives_from == 2:
        assert (blockage.sort, blockage.wait.group) == ("inside", 2)
    else:  # rank 3 is in its collective, for which it waits for rank 2: only the network holds anybody up unseen
        assert (blockage.sort, blockage.suspects) == ("missing", (0,))


def all_open(members: _Members) -> np.ndarray:
    rows = members._rows  # noqa: SLF001
    _, seqs = _oldest_open(rows)
    return np.flatnonzero((rows["open"] != 0) & (seqs >= 1) & (seqs <= rows["enqueued"]))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 6), st.integers(-1, 6)), min_size=4, max_size=4),
    st.booleans(),
)
def test_who_only_called_ahead_is_left_out_before_anybody_asks_whom_he_waits_for(
    places: list[tuple[int, int, int]], pipeline: bool
) -> None:
    """What is cheap to see of all places at once changes nothing."""
    first, second, third, fourth = places
    job = job_at({FIRST: {0: first, 1: second}, LAST: {2: third, 3: fourth}}, pipeline=pipeline)
    found = find_waits(job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Members, "may_wait", all_open)
        assert find_waits(job) == found
