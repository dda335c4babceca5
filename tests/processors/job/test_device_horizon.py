"""How far devices have come: looked at bit by bit, it is what a look at everything says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.processors.job.intake.device_groups import device_horizon, still_open
from whichrank.processors.job.state.job_state import JobState
from whichrank.telemetry.records import Group
from whichrank.telemetry.tables import COLLECTIVES, DEVICE_STEPS, NO_GROUP
from whichrank.telemetry.vocabulary import EventFlag

RANKS, STEPS, GROUPS = 3, 4, 3
#: (group, rank, step, ended): the row of a call; its sequence number is its step's. The last group is a host's.
Call = tuple[int, int, int, bool]
calls = st.tuples(st.integers(0, GROUPS), st.integers(0, RANKS - 1), st.integers(0, STEPS - 1), st.booleans())


def rows_of(drawn: list[Call], flags: int) -> np.ndarray:
    rows = np.zeros(len(drawn), COLLECTIVES)
    for row, (group, rank, step, ended) in zip(rows, drawn, strict=True):
        row["group"] = NO_GROUP if group == GROUPS else group
        row["rank"], row["step"], row["seq"], row["flags"] = rank, step, step + 1, flags
        row["enqueued_ns"], row["done_ns"] = 10 + step, 20 * ended
    return rows


def by_everything(job: JobState, horizon: int) -> int:
    """An end that was told once is known, also where an older message comes again after it."""
    told = [
        index
        for index in np.flatnonzero(job.groups.on_device)
        if (job.groups.rows_of(int(index))[0]["completed"] > 0).any()
    ]
    rows = job.open_steps.calls.all()
    rows = rows[(rows["flags"] & int(EventFlag.P2P)) == 0]
    still = np.array(
        [
            row["step"]
            for row in rows[(rows["done_ns"] == 0) & np.isin(rows["group"], told)]
            if not any(
                later["done_ns"] > 0 and later["seq"] >= row["seq"]
                for later in rows[(rows["rank"] == row["rank"]) & (rows["group"] == row["group"])]
            )
        ]
    )
    return min(horizon, int(still.min()) - 1) if still.size else horizon


@settings(max_examples=300, deadline=None)
@given(
    messages=st.lists(st.lists(calls, max_size=6), max_size=12),
    p2p=st.sets(st.integers(0, 11)),
    tells=st.lists(st.integers(-1, 11), min_size=GROUPS, max_size=GROUPS),
    closes=st.sets(st.integers(0, 11)),
)
def test_devices_have_come_as_far_as_a_look_at_everything_says(
    messages: list[list[Call]], p2p: set[int], tells: list[int], closes: set[int]
) -> None:
    """tells: at which message a group first tells an end, -1 never. closes: after which ones rows are let go."""
    job = JobState(job="j")
    for index in range(GROUPS):
        backend = "gloo" if index == GROUPS - 1 else "nccl"
        job.groups.add(Group(uid=str(index), name=str(index), ranks=f"0-{RANKS - 1}", size=RANKS, backend=backend))
        rows, _ = job.groups.rows_of(index)
        rows["group"] = index
    assert job.groups.on_device == [True, True, False]
    for number, message in enumerate(messages):
        job.open_steps.calls.add(rows_of(message, int(EventFlag.P2P) if number in p2p else 0))
        for index, told in enumerate(tells):
            rows, _ = job.groups.rows_of(index)
            rows["completed"] = int(0 <= told <= number)
            job.groups.note_ends(np.full(rows.size, index), rows)
        for horizon in (0, STEPS):
            assert device_horizon(job, horizon) == by_everything(job, horizon)
        if number in closes:
            rows = job.open_steps.calls.all()
            job.open_steps.calls.keep(rows[rows["step"] > 1].copy())
            assert device_horizon(job, STEPS) == by_everything(job, STEPS)


def test_an_end_that_nobody_told_holds_up_no_step_once_a_later_call_has_ended() -> None:
    rows = rows_of([(0, 0, 0, False), (0, 1, 0, True), (0, 0, 1, True), (0, 0, 2, False), (1, 0, 0, False)], 0)
    found = still_open(rows[rows["done_ns"] == 0], rows, np.array([True, True, False]))
    assert [(int(row["group"]), int(row["step"])) for row in found] == [(0, 2), (1, 0)]


def large_job(ranks: int) -> JobState:
    """Of a job of 128 ranks, these have nodes; every second step is shipped whole."""
    job = JobState(job="j")
    job.world_size = 128
    job.groups.add(Group(uid="0", name="0", ranks="0-127", size=128, backend="nccl"))
    rows, _ = job.groups.rows_of(0)
    rows["completed"] = 1
    job.groups.note_ends(rows["group"], rows)
    for rank in range(ranks):
        job.set_node(rank, "node-0")
    return job


def sums(*told: tuple[int, int]) -> np.ndarray:
    """told: rank and step of each."""
    rows = np.zeros(len(told), DEVICE_STEPS)
    rows["rank"], rows["step"] = np.array(told).T
    return rows


def test_a_step_whose_calls_are_not_shipped_is_over_when_every_device_has_told_its_sums() -> None:
    job = large_job(2)
    assert device_horizon(job, 0) == 0, "step 0 is shipped whole"
    assert device_horizon(job, 1) == 0, "of step 1 nobody has told anything yet"
    job.open_steps.note_summed(sums((0, 1), (1, 1), (0, 3)))
    assert device_horizon(job, 5) == 2, "step 2 is shipped whole; rank 1 is in step 3"
    job.open_steps.note_summed(sums((1, 3)))
    assert device_horizon(job, 5) == 4
    assert device_horizon(job, 3) == 3


def test_whose_device_tells_no_sums_or_is_far_behind_holds_nobody_up() -> None:
    job = large_job(3)
    assert device_horizon(job, 7) == 7, "nobody tells any: agents of an older release"
    job.open_steps.note_summed(sums((0, 99), (1, 99), (2, 1)))
    assert device_horizon(job, 99) == 99
    small = large_job(2)
    small.world_size = 64
    small.open_steps.note_summed(sums((0, 1)))
    assert device_horizon(small, 5) == 5, "all of its steps are shipped whole"
