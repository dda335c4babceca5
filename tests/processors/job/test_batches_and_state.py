"""The answer does not depend on where batches end, on restarts of the process, or on who replays it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.processors.job.synthetic_job import (
    FOREVER,
    Action,
    Call,
    MemoryContext,
    MemoryTable,
    SyntheticJob,
    drive,
)
from whichrank.processors.job import operator
from whichrank.processors.job.operator import KEPT_NS, JobOperator
from whichrank.processors.job.state import step_rows
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.state_rows import load_job, save_job
from whichrank.processors.operator import Timer
from whichrank.telemetry.records import Finding, Record
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase


def skip(rank: int, step: int, actions: list[Action]) -> list[Action]:
    if (rank, step) != (1, 20):
        return actions
    return [action for action in actions if not (isinstance(action, Call) and action.bytes == 8000)]


VICTIM = {"type": "RuntimeError", "message": "Connection closed by peer", "communication": True}
DEAD = {"signal": 9, "exit_state": int(ExitState.RUNNING)}
JOBS: dict[str, Callable[[], SyntheticJob]] = {
    "hang": lambda: SyntheticJob(
        steps=30, delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 20, Phase.FORWARD) else 0]
    ),
    "skip": lambda: SyntheticJob(steps=30, edit=skip),
    "straggler": lambda: SyntheticJob(steps=80, slow=lambda r, s: 1.4 if r == 1 and 30 <= s < 50 else 1.0),
    "crash": lambda: SyntheticJob(
        steps=40,
        ends={2: 4.4},
        events=[
            (4.39, EventName.RANK_EXCEPTION, 0, VICTIM),
            (4.4, EventName.RANK_EXIT, 2, DEAD),
            (4.6, EventName.RANK_EXCEPTION, 1, VICTIM),
            (4.7, EventName.RANK_EXCEPTION, 3, VICTIM),
        ],
    ),
}
RECORDS: dict[str, list[Record]] = {}


def records_of(name: str) -> list[Record]:
    if name not in RECORDS:
        RECORDS[name] = JOBS[name]().records()
    return RECORDS[name]


def said(context: MemoryContext) -> list[Any]:
    return [
        (
            record.stamp_ns,
            record.topic,
            record.payload.key if isinstance(record.payload, Finding) else "",
            json.dumps(record.payload.body if isinstance(record.payload, Finding) else dict(record.payload.attributes)),  # type: ignore[union-attr]
        )
        for record in context.emitted
    ]


@pytest.mark.parametrize("steps_apart", [1, 1024], ids=["a row for each step", "one for all"])
@pytest.mark.parametrize("gathers_from", [1, 16], ids=["gathered", "one by one"])
@pytest.mark.parametrize("name", JOBS)
def test_replay_and_restarts_change_nothing(
    name: str, gathers_from: int, steps_apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new operator for every batch must rebuild its working copy from the rows."""
    monkeypatch.setattr(operator, "FEWEST_NODES", gathers_from)
    monkeypatch.setattr(step_rows, "FEWEST_RANKS", steps_apart)
    records = records_of(name)
    once = said(drive(records))
    assert once
    assert said(drive(records)) == once
    assert said(drive(records, fresh_each_time=True)) == once


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(JOBS)),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    gathers_from=st.sampled_from([1, 16]),
)
def test_findings_do_not_depend_on_where_batches_end(name: str, sizes: list[int], gathers_from: int) -> None:
    records = records_of(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "FEWEST_NODES", gathers_from)
        assert said(drive(records, batches=sizes)) == said(drive(records))


def test_where_a_checkpoint_was_written_is_kept_before_its_step_is_closed() -> None:
    table, job = MemoryTable(), JobState(job="job-1")
    save_job(job, table)
    rows = np.zeros(1, STEPS)
    rows["step"] = 41
    rows["phase_ns"][0, Phase.CHECKPOINT] = 1
    job.checkpoints.note_saving(rows)
    save_job(job, table)
    loaded = load_job(table)
    assert loaded is not None
    assert loaded.checkpoints.saved_steps == job.checkpoints.saved_steps == 41


def test_records_of_an_attempt_that_is_over_change_nothing() -> None:
    first, second = SyntheticJob(steps=10), SyntheticJob(steps=10, attempt="a2", start_s=130.0)
    late = SyntheticJob(steps=10, start_s=150.0).records()
    assert drive([*first.records(), *second.records(), *late]).findings() == []


def test_a_job_is_forgotten_a_day_after_its_last_record() -> None:
    records = records_of("crash")
    context, judge = MemoryContext(), JobOperator()
    for record in records:
        context.now = record.stamp_ns
        judge.process([record], context)
    late_ns = records[-1].stamp_ns + KEPT_NS // 2
    late = replace(records[-1], stamp_ns=late_ns)
    context.now = late_ns
    judge.process([late], context)
    assert [finding.cleared for finding in context.final().values()] == [False]
    while (due_ns := context.timers.pop("forget", 0)) and due_ns < late_ns + KEPT_NS:
        context.now = due_ns
        judge.on_timer(Timer("forget", due_ns), context)
        assert any(list(table.rows()) for table in context.tables.values()), "it was heard since"
    context.now = due_ns
    judge.on_timer(Timer("forget", due_ns), context)
    assert not any(list(table.rows()) for table in context.tables.values())
    assert context.timers == {}
    assert [finding.cleared for finding in context.final().values()] == [True], "nothing stays open for ever"
    context.now = due_ns + 1
    judge.process([replace(records[0], stamp_ns=context.now)], context)
    assert "forget" in context.timers, "it begins anew"


def test_after_a_restart_a_job_is_kept_a_day_from_then() -> None:
    records = records_of("crash")
    context = drive(records)
    due_ns = context.timers["forget"]
    context.now = due_ns
    JobOperator().on_timer(Timer("forget", due_ns), context)
    assert context.timers["forget"] == due_ns + KEPT_NS
    assert any(list(table.rows()) for table in context.tables.values())
