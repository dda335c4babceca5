"""Several worlds in one job: side by side, one after the other, told to stop together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.job.synthetic_job import WALL_NS, MemoryContext, SyntheticJob, drive
from whichrank.telemetry.records import Event, Finding, Identity, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase


def of_world(world: str, records: Iterable[Record]) -> list[Record]:
    named = []
    for record in records:
        payload: Any = record.payload
        named.append(replace(record, payload=replace(payload, identity=replace(payload.identity, world=world))))
    return named


def together(*streams: Iterable[Record]) -> list[Record]:
    return sorted((record for stream in streams for record in stream), key=lambda record: record.stamp_ns)


def hangs(job: SyntheticJob, rank: int) -> SyntheticJob:
    at = (rank, 15, Phase.FORWARD)
    job.delays = [lambda rank, step, phase: float("inf") if (rank, step, phase) == at else 0.0]
    return job


def said(context: MemoryContext) -> list[tuple[str, str, list[int], bool]]:
    return [
        (f.identity.attempt, f.body["kind"], [s["rank"] for s in f.body["suspects"]], f.cleared)
        for f in context.final().values()
    ]


def two_worlds() -> list[Record]:
    """Both have ranks 0 to 3; rank 1 of the second stands still from step 15 on."""
    well = SyntheticJob(steps=60, attempt="a1")
    ill = hangs(SyntheticJob(steps=60, attempt="b1", start_s=101.3, step_s=0.25, seed=2), 1)
    return together(of_world("trainer", well.records()), of_world("actor", ill.records()))


def test_each_world_says_only_its_own() -> None:
    assert said(drive(two_worlds())) == [("b1", "rank_not_entered", [1], False)]


@pytest.mark.parametrize("sizes", [[1], [7], [3, 40, 1], [1000]])
def test_what_is_said_of_worlds_does_not_depend_on_batches_and_restarts(sizes: list[int]) -> None:
    records = two_worlds()
    once = [record.payload for record in drive(records).emitted]
    for fresh in (False, True):
        again = drive(records, batches=sizes, fresh_each_time=fresh)
        assert [record.payload for record in again.emitted if isinstance(record.payload, Finding)] == [
            payload for payload in once if isinstance(payload, Finding)
        ]


def ended(at_s: float, rank: int) -> tuple[float, EventName, int, dict[str, Any]]:
    return (at_s, EventName.RANK_EXIT, rank, {"exit_code": 0, "exit_state": int(ExitState.NORMAL), "step": 20})


def test_one_torchrun_after_the_other_is_one_world_and_its_next_attempt() -> None:
    first = SyntheticJob(steps=20, attempt="a1", events=[ended(8.0, rank) for rank in range(4)], after_s=5.0)
    second = hangs(SyntheticJob(steps=60, attempt="b1", start_s=130.0), 2)
    context = drive([*of_world("29500", first.records()), *of_world("29501", second.records())])
    assert said(context) == [("b1", "rank_not_entered", [2], False)]
    assert not context.table("job.1").values


def test_what_whichrank_starts_again_without_a_lost_node_is_the_next_attempt_of_its_world() -> None:
    """Rank 3 is on a node that is gone: of its end nobody tells."""
    first = SyntheticJob(steps=20, attempt="a1", events=[ended(8.0, rank) for rank in range(3)], after_s=5.0)
    second = hangs(SyntheticJob(steps=60, attempt="b1", start_s=130.0), 2)
    words = [
        Record(
            topic="whichrank.blocks",
            key="job-1",
            stamp_ns=WALL_NS + at,
            payload=Event(
                name=name,
                identity=Identity(cluster="lab", run="run-1", job="job-1", node="node-0"),
                time_ns=WALL_NS + at,
                attributes=attributes,
            ),
        )
        for name, at, attributes in (
            (EventName.JOB_STARTED, 99_000_000_000, {"supervised": 1}),
            (EventName.JOB_FINISHED, 120_000_000_000, {"exit_code": 1}),
            (EventName.JOB_STARTED, 121_000_000_000, {"supervised": 1, "restarted": 1}),
        )
    ]
    context = drive(together(of_world("29500", first.records()), of_world("29501", second.records()), words))
    assert not context.table("job.1").values
    assert ("b1", "rank_not_entered", [2], False) in said(context)


def test_a_world_that_restarts_does_not_push_out_the_one_that_took_its_place() -> None:
    first = SyntheticJob(steps=20, attempt="a1", events=[ended(8.0, rank) for rank in range(4)], after_s=5.0)
    second = hangs(SyntheticJob(steps=100, attempt="b1", start_s=130.0), 2)
    back = SyntheticJob(steps=40, attempt="a2", start_s=132.0)
    context = drive(
        [
            *of_world("A", first.records()),
            *together(of_world("B", second.records()), of_world("A", back.records())),
        ]
    )
    assert said(context) == [("b1", "rank_not_entered", [2], False)]


def test_what_is_said_of_the_job_is_said_to_all_its_worlds() -> None:
    records = two_worlds()
    asked_ns = WALL_NS + 110_000_000_000
    signalled = Event(
        name=EventName.JOB_SIGNALLED,
        identity=Identity(cluster="lab", run="run-1", job="job-1"),
        time_ns=asked_ns,
        attributes={"signal": 15, "origin": "scheduler"},
    )
    finished = replace(signalled, name=EventName.JOB_FINISHED, attributes={"exit_code": 143})
    before = [record for record in records if record.stamp_ns < WALL_NS + 105_000_000_000]
    told = [
        Record(topic="whichrank.blocks", key="job-1", stamp_ns=asked_ns + at, payload=payload)
        for at, payload in ((0, signalled), (1_000_000_000, finished))
    ]
    context = drive([*before, *told])
    assert {(kind, cleared) for _, kind, _, cleared in said(context)} == {("planned_stop", True)}
    assert {attempt for attempt, *_ in said(context)} == {"a1", "b1"}
