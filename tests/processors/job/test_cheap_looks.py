"""What is asked of every message of a large job is answered without a look at all ranks, and never otherwise."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processors.job.synthetic_job import FOREVER, MemoryContext, SyntheticJob
from whichrank.processors.job.columns.rows import Growing
from whichrank.processors.job.detectors.hang.wait_graph import Wait, find_blockage
from whichrank.processors.job.detectors.slow.wait_attribution import Places
from whichrank.processors.job.hang.pending_collectives import find_waits
from whichrank.processors.job.intake.progress import oldest_open_ns
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.open_steps import FURTHEST_BEHIND
from whichrank.processors.job.state.rank_state import NodeFacts, RankFacts
from whichrank.processors.job.state.state_rows import load_job
from whichrank.processors.job.steps.step_watermark import (
    MOST_PENDING_ROWS,
    horizon_of,
    is_early,
    most_pending_rows,
)
from whichrank.telemetry.records import Group
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.vocabulary import Phase

RANKS = 6


@settings(max_examples=400, deadline=None)
@given(
    steps=st.lists(st.integers(-1, FURTHEST_BEHIND + 3), max_size=RANKS),
    known=st.sets(st.integers(0, RANKS - 1)),
    exited=st.sets(st.integers(0, RANKS - 1)),
    blind=st.sets(st.integers(0, RANKS - 1)),
    lost=st.sets(st.sampled_from(["a", "b"])),
    world_size=st.integers(0, RANKS),
    closed=st.integers(-1, FURTHEST_BEHIND + 3),
)
def test_a_step_that_is_held_up_for_certain_is_closed_by_no_horizon(
    steps: list[int],
    known: set[int],
    exited: set[int],
    blind: set[int],
    lost: set[str],
    world_size: int,
    closed: int,
) -> None:
    job = JobState(job="j")
    job.steps.newest_step = np.array(steps, np.int64)
    job.steps.closed_step, job.world_size, job.blind_ranks = closed, world_size, blind
    for rank in known:
        job.set_node(rank, "ab"[rank % 2])
        job.facts(rank).exited_ns = int(rank in exited)
    for node in lost:
        job.nodes.known[node] = NodeFacts(state="silent")
    if is_early(job):
        assert horizon_of(job) <= closed


def test_the_usual_step_is_held_up_by_who_has_not_ended_it() -> None:
    job = JobState(job="j")
    job.world_size, job.steps.closed_step = 2, 4
    for rank in range(2):
        job.facts(rank)
    job.steps.newest_step = np.array([5, 4], np.int64)
    assert is_early(job)
    job.steps.newest_step[1] = 5
    assert not is_early(job)


def test_ages_of_open_operations_are_those_of_the_newest_rows_also_after_a_restart() -> None:
    ctx, operator = MemoryContext(), JobOperator()
    hang = SyntheticJob(
        steps=12,
        after_s=4.0,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 8, Phase.FORWARD) else 0.0],
    )
    seen = set()
    for record in hang.records():
        ctx.now = record.stamp_ns
        operator.process([record], ctx)
        job = load_job(ctx.table("job"))
        assert job is not None
        rows = job.groups.rows
        still = rows["open"]
        ages = np.where(still < 0, rows["moved_age_ns"], rows["open_age_ns"] * (still > 0))
        kept = operator._jobs["job-1"].states[0]  # noqa: SLF001  (the working copy is what is asked)
        oldest = int(ages.max()) if ages.size else 0
        assert oldest_open_ns(job) == oldest_open_ns(kept) == oldest
        seen.add(oldest > 0)
    assert seen == {False, True}


def test_thousands_that_wait_in_one_operation_are_told_whom_they_wait_for_once() -> None:
    job = JobState(job="j")
    job.groups.add(Group(uid="u", name="0", ranks="0-1999", size=2000, is_default=True))
    job.groups.stamps[:] = 7
    rows = job.groups.rows
    rows["rank"], rows["enqueued"], rows["completed"] = np.arange(2000), 5, 4
    rows["open"], rows["open_age_ns"] = 1, 3_000_000_000
    rows["enqueued"][13], rows["open"][13] = 4, 0
    rows["enqueued"][77], rows["completed"][77] = 6, 5  # ahead of the others: waits in the next one, for all of them
    for rank in range(2000):
        job.facts(rank)
    waits = find_waits(job)
    assert len(waits) == 1999
    usual = [wait for wait in waits if wait.rank != 77]
    assert {wait.missing for wait in usual} == {(13,)}
    assert len({id(wait.missing) for wait in usual}) == 1
    (ahead,) = (wait for wait in waits if wait.rank == 77)
    assert ahead.missing == tuple(rank for rank in range(2000) if rank != 77)


@given(st.lists(st.lists(st.integers(0, 40), unique=True, max_size=8), max_size=5), st.integers(0, 5))
def test_places_are_those_in_the_lists(groups: list[list[int]], at_first: int) -> None:
    """However many groups were there at first, and the others came one after the other."""
    arrays = [np.array(members, np.int64) for members in groups]
    places = Places.of(arrays[:at_first])
    for array in arrays[at_first:]:
        places = places.with_more([array])
    assert places.groups == len(groups)
    assert (np.diff(places.keys) > 0).all()
    for group in range(len(groups) + 1):
        ranks = np.arange(42, dtype=np.uint32)
        found = places.find(np.full(42, group, np.uint16), ranks).tolist()
        members = groups[group] if group < len(groups) else []
        assert found == [members.index(rank) if rank in members else -1 for rank in range(42)]


def test_rows_that_are_added_keep_those_before() -> None:
    growing = Growing(np.dtype([("a", np.int64), ("b", np.uint8)]))
    for size in range(1, 60):
        rows = growing.grow(1)
        assert rows.size == size
        assert rows[-1]["a"] == 0
        rows[-1] = (size, 7)
        assert growing.filled["a"].tolist() == list(range(1, size + 1))
    assert growing.grow(0).size == 59


def test_half_of_a_large_job_waiting_for_the_other_half_takes_no_edge_for_each_pair() -> None:
    """2,000 wait for 2,000 that wait for one: pairs alone would be four million."""
    common: dict[str, Any] = {"op": 1, "p2p": False, "age_ns": 5 * 10**9, "since_ns": 0}
    one, many = (4000,), tuple(range(2000, 4000))
    waits = [Wait(rank=rank, group=0, seq=9, missing=many, **common) for rank in range(2000)]
    waits += [Wait(rank=rank, group=1, seq=4, missing=one, **common) for rank in many]
    tracemalloc.start()
    try:
        found = find_blockage(waits, 3 * 10**9)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert (found.sort, found.suspects, len(found.waiting)) == ("missing", one, 4000)
    assert peak < 8 << 20


def test_the_next_steps_length_is_that_of_its_rows_whatever_came_before() -> None:
    job = JobState(job="j")
    for rank, length_ns in ((0, 10), (1, 30), (0, 90)):
        rows = np.zeros(1, STEPS)
        rows["rank"], rows["step"], rows["end_ns"] = rank, 0 if length_ns < 90 else 1, length_ns
        job.open_steps.steps.add(rows)
        assert job.open_steps.next_length_ns(job.steps.closed_step) == (10, 20, 20)[job.open_steps.steps.size - 1]
    job.open_steps.steps.keep(job.open_steps.steps.all()[2:].copy())
    assert job.open_steps.next_length_ns(job.steps.closed_step) == 0  # none of that step is left
    job.steps.closed_step = 0
    assert job.open_steps.next_length_ns(job.steps.closed_step) == 90


def test_what_waits_for_a_step_of_thousands_of_ranks_is_not_dropped_before_it_closes() -> None:
    """At the reference load: 25 calls a second and rank, in steps of three seconds."""
    job = JobState(job="j")
    assert most_pending_rows(job) == MOST_PENDING_ROWS
    job.ranks = {rank: RankFacts() for rank in range(16_384)}
    assert most_pending_rows(job) > 3 * 25 * 16_384
