"""Ranks that did not do the same thing: the guilty one is named, not the many who wait for it or fail because of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.processors.job.synthetic_job import (
    WALL_NS,
    Action,
    Call,
    MemoryContext,
    Program,
    SyntheticJob,
    Work,
    ddp_step,
    drive,
)
from whichrank.processors.job.detectors.desync.matching import expected_signature
from whichrank.telemetry.records import Block, Finding, Record
from whichrank.telemetry.tables import COLLECTIVES
from whichrank.telemetry.vocabulary import EventName, ExitState, Op, Phase


def only(context: MemoryContext) -> Finding:
    found = list(context.final().values())
    assert len(found) == 1, [finding.key for finding in found]
    return found[0]


def changed(guilty: int, step: int, index: int, **new: Any) -> Callable[[int, int, list[Action]], list[Action]]:
    """Edit the index-th call of this rank's step; ``drop=True`` leaves it out, ``extra`` puts one more before it."""

    def edit(rank: int, now: int, actions: list[Action]) -> list[Action]:
        if (rank, now) != (guilty, step):
            return actions
        calls = [place for place, action in enumerate(actions) if isinstance(action, Call)]
        place = calls[index]
        call = actions[place]
        assert isinstance(call, Call)
        if new.get("drop"):
            return actions[:place] + actions[place + 1 :]
        if new.get("extra"):
            return [*actions[:place], new["extra"], *actions[place:]]
        return [*actions[:place], replace(call, **new), *actions[place + 1 :]]

    return edit


FAULTS: dict[str, dict[str, Any]] = {
    "wrong op": {"index": 3, "op": Op.BROADCAST, "peer": 0},
    "wrong size": {"index": 3, "bytes": 4000},
    "wrong size of a bucket": {"index": 1, "bytes": 77},
    "wrong dtype": {"index": 3, "dtype": 1},
    "skipped loss": {"index": 3, "drop": True},
    "skipped bucket": {"index": 0, "drop": True},
    "extra": {"index": 2, "extra": Call("world", Op.BARRIER, 0)},
}


def test_two_ranks_that_differ_wait_for_the_votes_of_those_who_are_still_on_their_way() -> None:
    """In the first steps there is no history to decide between the one that is wrong and the first that comes to it."""
    job = SyntheticJob(
        ranks=6,
        steps=8,
        step_s=2.0,
        edit=changed(1, 1, index=0, extra=Call("world", Op.BARRIER, 0)),
        delays=[lambda rank, step, phase: 1.2 if rank not in (1, 5) and (step, phase) == (1, Phase.FORWARD) else 0.0],
    )
    context = drive(job.records())
    assert [item["rank"] for item in context.findings()[0].body["suspects"]] == [1]
    assert [item["rank"] for item in only(context).body["suspects"]] == [1]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_the_diverging_rank_is_named_at_once(fault: str, ranks: int) -> None:
    guilty = 1
    job = SyntheticJob(ranks=ranks, steps=40, edit=changed(guilty, 20, **FAULTS[fault]))
    if fault == "wrong dtype":
        job.steps = 24  # our ranks do not notice: the job goes on
    context = drive(job.records())
    finding = only(context)
    body = finding.body
    assert (body["kind"], body["bucket"], body["scope"]) == ("desync", "communication_hang", "application")
    assert [item["rank"] for item in body["suspects"]] == [guilty]
    assert context.findings()[0].time_ns / 1e9 - body["times"]["onset"] < 0.8
    assert f"rank {guilty}" in body["evidence"][0]["source"]


@pytest.mark.parametrize("known", [4, 3, 1])
def test_history_speaks_though_the_last_calls_of_the_step_before_are_still_open(known: int) -> None:
    """known: of the four calls of step 5, those that had ended on all ranks when the mismatch came."""
    rows = np.zeros(12, COLLECTIVES)
    rows["seq"], rows["step"] = np.arange(12), np.repeat([3, 4, 5], 4)
    rows["bytes"], rows["op"] = np.tile([4, 128, 16, 1668], 3), int(Op.ALL_REDUCE)
    rows = rows[: 8 + known]
    signature = expected_signature(rows, 0, 12)
    assert signature is not None
    assert 4 in signature
    assert 128 in (expected_signature(rows, 0, 13) or ())
    rows["bytes"][8] = 7
    assert known == 4 or expected_signature(rows, 0, 12) is None, "a step that is another one is no shortened one"


def test_two_ranks_without_history_are_both_suspected() -> None:
    job = SyntheticJob(ranks=2, steps=3, edit=changed(1, 0, 3, bytes=4000))
    finding = only(drive(job.records()))
    assert [item["rank"] for item in finding.body["suspects"]] == [0, 1]
    assert [item["probability"] for item in finding.body["suspects"]] == [0.5, 0.5]


def read_at_once(records: Sequence[Record]) -> list[Record]:
    """As rings that outlive their watcher are: what came in many flushes comes in one, tables in an agent's order."""
    whole: dict[EventName, Block] = {}
    others = []
    for record in records:
        block = record.payload
        if not isinstance(block, Block):
            others.append(record)
        elif block.name in whole:
            assert block.groups == whole[block.name].groups
            rows = np.concatenate([whole[block.name].rows, block.rows])
            whole[block.name] = replace(block, rows=rows)
        else:
            whole[block.name] = block
    last = records[-1]
    return [*others, *(replace(last, payload=block) for block in whole.values())]


@pytest.mark.parametrize("fault", ["wrong size", "skipped loss", "skipped bucket", "extra"])
def test_two_ranks_whose_steps_all_come_at_once_are_told_apart(fault: str) -> None:
    """The history that tells who left the pattern comes with the mismatch."""
    job = SyntheticJob(ranks=2, steps=12, step_s=2.4, edit=changed(1, 4, **FAULTS[fault]))
    body = only(drive(read_at_once(job.records()))).body
    assert [item["rank"] for item in body["suspects"]] == [1]


def same_calls(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    from tests.processors.job.synthetic_job import Enter, Work
    from whichrank.telemetry.vocabulary import Phase

    return [Enter(Phase.FORWARD), Work(0.05), *[Call("world", bytes=8)] * 3, Enter(Phase.OPTIMIZER), Work(0.02)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_skip_among_identical_calls_is_found_by_counting(ranks: int) -> None:
    job = SyntheticJob(ranks=ranks, steps=40, program=same_calls, edit=changed(1, 20, 1, drop=True))
    finding = only(drive(job.records()))
    assert finding.body["kind"] == "desync"
    assert [item["rank"] for item in finding.body["suspects"]] == [1]
    assert finding.body["first_bad"]["step"] == 20


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_skip_that_stops_nobody_is_told_at_once_though_even_steps_are_closed_seldom(ranks: int) -> None:
    """Identical calls that nobody waits for: the job goes on at its pace, a call behind on one rank."""

    def program(job: SyntheticJob, rank: int, step: int) -> list[Action]:
        return [
            replace(action, asynchronous=True) if isinstance(action, Call) else action
            for action in same_calls(job, rank, step)
        ]

    skip = changed(1, 61, 1, drop=True)
    job = SyntheticJob(ranks=ranks, steps=140, jitter=0.001, program=program, edit=skip)
    context = drive(job.records())
    finding = only(context)
    assert [item["rank"] for item in finding.body["suspects"]] == [1]
    ended_ns = max(end for rank, step, end, *_ in job.finished if (rank, step) == (1, 61))
    assert context.findings()[0].time_ns - WALL_NS - ended_ns < 0.5e9


@pytest.mark.parametrize("noted_late_s", [-3.0, 0.05])
def test_what_a_rank_calls_when_it_is_told_to_stop_changes_no_verdict(noted_late_s: float) -> None:
    """Lightning's handler of SIGTERM broadcasts, whatever the others are in; we may note the signal after it did."""

    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        if (rank, step) != (2, 20):
            return actions
        place = [isinstance(action, Call) for action in actions].index(True)
        return [*actions[:place], Work(15.0), Call("world", Op.BROADCAST, 8, peer=0), *actions[place:]]

    job = SyntheticJob(steps=24, edit=edit)
    untold = [finding.body for finding in drive(job.records()).findings()]
    assert untold[0]["kind"] == "rank_not_entered"
    (onset_s,) = {body["times"]["onset"] for body in untold if body["kind"] == "desync"}
    noted_s = onset_s - WALL_NS / 1e9 - job.start_s + noted_late_s
    signalled = (noted_s, EventName.JOB_SIGNALLED, -1, {"signal": 15, "origin": "user"})
    told = drive(SyntheticJob(steps=24, edit=edit, events=[signalled]).records())
    assert {finding.body["kind"] for finding in told.findings()} == {"rank_not_entered"}


def test_an_innocent_that_is_aborted_by_a_wrong_size_is_ruled_out() -> None:
    dead = {"signal": 6, "exit_state": int(ExitState.RUNNING), "step": 20, "phase": "other"}
    text = {"type": "RuntimeError", "message": "Connection closed by peer", "communication": True, "step": 20}
    job = SyntheticJob(
        steps=40,
        edit=changed(2, 20, 3, bytes=4000),
        ends={1: 4.45},
        events=[
            (4.46, EventName.RANK_EXIT, 1, dead),
            (4.5, EventName.RANK_EXCEPTION, 0, text),
            (4.6, EventName.RANK_EXIT, 3, {**dead, "signal": 15}),
            (5.5, EventName.JOB_FINISHED, -1, {"exit_code": 1}),
        ],
    )
    context = drive(job.records())
    finding = only(context)
    assert [item["rank"] for item in finding.body["suspects"]] == [2]
    assert finding.body["kind"] == "desync"
    assert {item["who"] for item in finding.body["ruled_out"]} >= {"rank 0", "rank 1", "rank 3"}


def test_uneven_sizes_that_are_meant_are_no_mismatch() -> None:
    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return [*actions, Call("world", Op.ALL_TO_ALL, bytes=100 * rank), Call("world", Op.GATHER, bytes=rank, peer=0)]

    job = SyntheticJob(steps=30, edit=edit)
    assert drive(job.records()).findings() == []


@pytest.mark.parametrize("program", [same_calls, ddp_step])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_made_fewer_steps_of_their_own_are_no_desync(program: Program, ranks: int) -> None:
    """Uneven inputs under ``join``: who is through takes part in the others' calls, and its steps lag from then on."""

    def through(rank: int, step: int) -> bool:
        epoch, place = divmod(step, 40)
        return place >= 40 - 6 * ((rank + epoch) % ranks)

    job = SyntheticJob(ranks=ranks, steps=160, step_s=0.05, program=program, shadows=through)
    assert drive(job.records()).findings() == []
