"""A job over its attempts: nodes that restart in turn, what is told of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.job.synthetic_job import (
    SECOND,
    WALL_NS,
    Enter,
    MemoryContext,
    SyntheticJob,
    Work,
    ddp_step,
    drive,
)
from whichrank.telemetry.records import Block, Event, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase


def two_nodes(rank: int) -> str:
    return f"node-{rank // 2}"


def launched(records: Iterable[Record], number: int, met_s: Callable[[str], float]) -> Iterator[Record]:
    """As agents ship attempt ``number``: each node's launch by its own id, and at some time where its ranks met."""
    told = set()
    for record in records:
        payload = record.payload
        assert isinstance(payload, Block | Event)
        node = payload.identity.node
        identity = replace(payload.identity, attempt=f"{node}.{number}")
        if record.stamp_ns >= WALL_NS + int(met_s(node) * SECOND) and node not in told:
            told.add(node)
            met = Event(
                name=EventName.LAUNCH_MET,
                identity=replace(identity, rank=-1),
                time_ns=payload.time_ns,
                attributes={"token": f"T{number}"},
            )
            yield replace(record, payload=met)
        yield replace(record, payload=replace(payload, identity=identity))


def merged(*streams: Iterable[Record]) -> list[Record]:
    return sorted((record for stream in streams for record in stream), key=lambda record: record.stamp_ns)


def exits(at_s: float, rank: int, **values: Any) -> tuple[float, EventName, int, dict[str, Any]]:
    return (at_s, EventName.RANK_EXIT, rank, {"exit_state": int(ExitState.RUNNING), **values})


def incidents(context: MemoryContext) -> list[tuple[str, list[int], bool]]:
    return [
        (finding.body["kind"], [item["rank"] for item in finding.body["suspects"]], finding.cleared)
        for finding in context.final().values()
    ]


@pytest.mark.parametrize("met_s", [0.0, 103.1, 1e6])
def test_one_job_on_two_nodes_is_one_attempt_whenever_its_ranks_have_met(met_s: float) -> None:
    job = SyntheticJob(
        ranks=4,
        steps=30,
        node_of=two_nodes,
        delays=[lambda rank, step, phase: float("inf") if hung(rank, step, phase) else 0.0],
    )
    context = drive(list(launched(job.records(), 1, lambda node: met_s + 0.4 * (node == "node-1"))))
    assert incidents(context) == [("rank_not_entered", [3], False)]


def hung(rank: int, step: int, phase: Phase) -> bool:
    return (rank, step, phase) == (3, 20, Phase.FORWARD)


def crashed(number: int, start_s: float, culprit: int) -> SyntheticJob:
    """Rank ``culprit`` is killed after 4.4 s; the launchers end the others, those of the other node a second later."""
    others = [rank for rank in range(4) if rank != culprit]
    far = [rank for rank in others if two_nodes(rank) != two_nodes(culprit)]
    ends = {rank: 5.6 if rank in far else 4.7 for rank in others}
    return SyntheticJob(
        ranks=4,
        steps=60,
        start_s=start_s,
        after_s=1.0,
        node_of=two_nodes,
        ends={culprit: 4.4, **ends},
        events=[exits(4.4, culprit, signal=9), *[exits(at, rank, signal=15) for rank, at in ends.items()]],
    )


@pytest.mark.parametrize("overlap_s", [0.0, 1.0])
def test_each_death_is_one_incident_and_the_attempt_that_passes_resolves_them(overlap_s: float) -> None:
    """The nodes restart at different moments: the first records of a new attempt come before the last of the old."""
    first, second = crashed(1, 100.0, 2), crashed(2, 106.8 - overlap_s, 2)
    third = SyntheticJob(ranks=4, steps=60, start_s=114.0, node_of=two_nodes, after_s=1.0)
    context = drive(
        merged(
            launched(first.records(), 1, lambda node: 101.0),
            launched(second.records(), 2, lambda node: 108.0 + 0.3 * (node == "node-1")),
            launched(third.records(), 3, lambda node: 115.0),
        )
    )
    assert incidents(context) == [("rank_died", [2], True), ("rank_died", [2], True)]


def test_a_replaced_node_is_one_incident_and_the_next_attempt_is_seen_whole() -> None:
    """The launcher of the other node starts its ranks again under its own id: it counts no restart."""
    first, second = crashed(1, 100.0, 2), crashed(2, 112.0, 1)

    def relabelled(records: Iterable[Record], names: dict[str, str]) -> Iterator[Record]:
        for record in launched(records, 1, lambda node: 0.0):
            assert isinstance(record.payload, Block | Event)
            identity = record.payload.identity
            node = names[identity.node]
            identity = replace(identity, node=node, attempt=f"{node}.1")
            yield replace(record, payload=replace(record.payload, identity=identity))

    context = drive(
        merged(
            relabelled(first.records(), {"node-0": "node-0", "node-1": "node-1"}),
            relabelled(second.records(), {"node-0": "node-0", "node-1": "node-2"}),
        )
    )
    assert incidents(context) == [("rank_died", [2], True), ("rank_died", [1], False)]


def crash(steps: int = 60, **values: Any) -> SyntheticJob:
    return SyntheticJob(steps=steps, after_s=1.0, events=[exits(4.4, 2, signal=9, step=19)], ends={2: 4.4}, **values)


def test_the_job_is_restarting_until_its_first_step_then_running_and_resolved_when_past_the_fault() -> None:
    first = crash(attempt="a1")
    second = SyntheticJob(steps=60, attempt="a2", start_s=120.0, after_s=1.0)
    context = drive([*first.records(), *second.records()])
    (key,) = context.final()
    said = [(finding.body["job"]["now"], finding.cleared) for finding in context.findings() if finding.key == key]
    assert [word for word, _ in itertools.groupby(said)] == [
        ("running", False),
        ("restarting", False),
        ("running", False),
        ("running", True),
    ]


def saving(every: int) -> Callable[[SyntheticJob, int, int], list[Any]]:
    """The DDP script, whose rank 0 writes a checkpoint after every so many steps."""

    def program(job: SyntheticJob, rank: int, step: int) -> list[Any]:
        actions = ddp_step(job, rank, step)
        if rank == 0 and step and step % every == 0:
            actions = [Enter(Phase.CHECKPOINT), Work(0.05), *actions]
        return actions

    return program


def test_a_job_that_resumes_from_its_checkpoint_is_past_the_fault_when_it_has_made_up_for_what_was_lost() -> None:
    """Ranks count from 0 again: step 19 of the first attempt is step 4 of one that goes on after 15."""
    first = crash(attempt="a1", program=saving(5))
    second = SyntheticJob(steps=60, attempt="a2", start_s=120.0, after_s=1.0, program=saving(5))
    records = second.records()
    context = drive([*first.records(), *records])
    (finding,) = context.final().values()
    failed = finding.body["first_bad"]["step"]
    assert failed == 19
    needed = 19 - 15 + 1  # in steps that the second attempt counts from 0
    ends = {step: end for _, step, end, *_ in sorted(second.finished, key=lambda item: item[2])}
    assert finding.cleared
    assert ends[needed] <= finding.body["times"]["resolved"] * 1e9 - WALL_NS <= ends[needed] + 2 * SECOND


def test_a_loop_of_failures_keeps_the_newest_open() -> None:
    attempts = [crash(20, attempt=f"a{number}", start_s=100.0 + 10.0 * number) for number in range(12)]
    context = drive([record for job in attempts for record in job.records()])
    states = [finding.cleared for finding in context.final().values()]
    assert states == [True] * 3 + [False] * 9  # the newest attempt's, and those of eight before


def test_a_check_that_ran_before_the_trainer_was_not_the_rank() -> None:
    """A wrapper script runs one Python after the other with the same RANK; the first one ends well."""
    checked = [
        exits(0.05, 3, exit_code=0, exit_state=int(ExitState.NORMAL), phase="init"),
        (0.06, EventName.RANK_STARTED, 3, {"pid": 5003, "world_size": 4}),
    ]
    job = SyntheticJob(
        steps=30,
        events=checked,
        delays=[lambda rank, step, phase: float("inf") if hung(rank, step, phase) else 0.0],
    )
    context = drive(job.records())
    assert incidents(context) == [("rank_not_entered", [3], False)]
    (finding,) = context.final().values()
    assert "has left" not in str(finding.body)
