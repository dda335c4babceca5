"""Loops in which no step is seen: what lies between two calls is the measure, learnt from the first tens of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.processors.job.synthetic_job import (
    FOREVER,
    SECOND,
    Action,
    Call,
    Enter,
    MemoryContext,
    SyntheticJob,
    Work,
    drive,
)
from whichrank.processors.job.detectors.hang.call_gaps import FIRST_CALLS, CallGaps, signatures
from whichrank.telemetry.records import Block, Record
from whichrank.telemetry.tables import COLLECTIVES
from whichrank.telemetry.vocabulary import EventName, Op, Phase


def by_hand(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """An update by hand: gradients are summed one after the other, and rank 0 writes something every tenth time."""
    writes = [Work(1.5)] if rank == 0 and step % 10 == 9 else []
    return [
        Enter(Phase.OTHER),
        Work(0.4 * job.step_s),
        Call("world", Op.ALL_REDUCE, bytes=4096),
        Work(0.2 * job.step_s),
        Call("world", Op.ALL_REDUCE, bytes=64),
        *writes,
    ]


def without_steps(records: Sequence[Record]) -> list[Record]:
    """As an agent tells of ranks in which no optimizer makes steps."""
    kept = []
    for record in records:
        block = record.payload
        if isinstance(block, Block):
            if block.name in (EventName.BLOCK_STEPS, EventName.BLOCK_STEP_GROUPS):
                continue
            if "step" in (block.rows.dtype.names or ()):
                rows = block.rows.copy()
                rows["step"] = 0
                record = replace(record, payload=replace(block, rows=rows))
        kept.append(record)
    return kept


def run(guilty: dict[int, int], seconds: float = FOREVER, *, steps: int = 80, after_s: float = 40.0) -> MemoryContext:
    """guilty: by rank, the turn in which it stands still before its first call."""
    job = SyntheticJob(
        steps=steps,
        program=by_hand,
        delays=[lambda rank, step, phase: seconds if guilty.get(rank) == step and phase is Phase.OTHER else 0],
        after_s=after_s,
    )
    return drive(without_steps(job.records()))


def test_a_hang_is_a_page_after_seconds_once_the_loop_is_known() -> None:
    findings = run({2: 60}).findings()
    assert {(finding.body["kind"], finding.body["suspects"][0]["rank"]) for finding in findings} == {
        ("rank_not_entered", 2)
    }
    page = next(finding for finding in findings if finding.body["severity"] == "page")
    assert 7.0 <= page.time_ns / 1e9 - page.body["times"]["onset"] <= 9.0


def test_before_that_it_takes_a_minute() -> None:
    assert [finding.body["severity"] for finding in run({2: 3}, after_s=55.0).findings()] == ["info"]


def test_a_sound_loop_is_silent_and_so_is_a_pause_within_what_it_has_taken() -> None:
    assert not run({}, after_s=20.0).findings()
    assert not run({0: 60}, 1.6, after_s=20.0).findings()


def test_where_all_stand_it_may_be_the_end_of_the_loop() -> None:
    findings = run(dict.fromkeys(range(4), 60), after_s=80.0).findings()
    assert [(finding.body["severity"], finding.body["suspects"]) for finding in findings] == [
        ("info", []),
        ("page", []),
    ]


def rows(gaps_s: Sequence[float], *, nbytes: int = 64) -> np.ndarray:
    """Calls of one rank, each 0.1 s long, so long after the one before."""
    made = np.zeros(len(gaps_s), COLLECTIVES)
    made["seq"] = np.arange(1, len(gaps_s) + 1)
    made["op"], made["bytes"] = Op.ALL_REDUCE, nbytes
    made["enqueued_ns"] = SECOND + np.cumsum(np.array(gaps_s) + 0.1) * SECOND
    made["done_ns"] = made["enqueued_ns"] + SECOND // 10
    return made


@pytest.mark.parametrize("cut", [1, 7, 59])
def test_the_same_is_learnt_wherever_messages_end(cut: int) -> None:
    made = rows([5.0, *[0.3] * 30, 2.0, *[0.3] * 60])
    gaps, places = CallGaps(), np.zeros(made.size, np.intp)
    for first in range(0, made.size, cut):
        part = slice(first, first + cut)
        gaps.note(made[part], places[part], np.zeros(made[part].size, bool))
        gaps.note(made[part], places[part], np.zeros(made[part].size, bool))  # a repeat says nothing new
    one = int(signatures(Op.ALL_REDUCE, 64))
    assert gaps.longest_ns(0, one, one) == pytest.approx(2.0 * SECOND, rel=1e-6)
    read = CallGaps.of_arrays(gaps.as_arrays())
    assert read.longest_ns(0, one, one) == gaps.longest_ns(0, one, one)


def test_the_first_calls_are_no_precedent() -> None:
    made = rows([5.0] * FIRST_CALLS + [0.1] * 9)
    gaps = CallGaps()
    gaps.note(made, np.zeros(made.size, np.intp), np.zeros(made.size, bool))
    assert gaps.longest_ns(0, int(signatures(Op.ALL_REDUCE, 64)), int(signatures(Op.ALL_REDUCE, 64))) is None


def test_on_devices_only_ends_tell() -> None:
    """The host launches all at once; the device takes half a second for each."""
    made = rows([0.0] * 80)
    made["enqueued_ns"] = SECOND
    made["done_ns"] = SECOND + np.arange(1, 81) * (SECOND // 2)
    gaps = CallGaps()
    gaps.note(made, np.zeros(80, np.intp), np.ones(80, bool))
    assert gaps.longest_of_group_ns(0) == SECOND // 2
