"""The trace of the bad step is there when someone looks: which steps and ranks are told, within which bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.agents.people_messages import plain, spans_of
from whichrank.processors.observability_export.trace_writer import TraceWriter, TraceWriterSettings
from whichrank.telemetry import attributes as names
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_events import SpanPlace
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.records import Block, Event, Group, Identity
from whichrank.telemetry.tables import COLLECTIVES, STEPS
from whichrank.telemetry.trace_identity import attempt_word, step_span_id, step_trace_id
from whichrank.telemetry.vocabulary import EventName, Op

SECOND_NS = 10**9
OFFSET_NS = 1_700_000_000 * SECOND_NS
STEP_NS = 2 * SECOND_NS
#: Two nodes of four ranks, each a launch of its own; ranks of a node are a group, and all of them are one.
WORLD = 8
GROUPS = (
    Group(uid="aa", name="0", desc="default_pg", ranks="0-7", size=8),
    Group(uid="bb", name="tp0", ranks="0-3", size=4),
    Group(uid="cc", name="tp1", ranks="4-7", size=4),
)
ATTEMPT = attempt_word(launch="", token="feed", restart_count=0)


def identity(rank: int, restart: int = 0) -> Identity:
    node = f"node-{rank // 4}"
    return Identity(cluster="lab", job="job-7", run="job-7", node=node, attempt=f"{node}-launch-{restart}", rank=-1)


def begin(writer: TraceWriter, restart: int = 0, token: str = "feed") -> None:
    writer.see(Event(name=EventName.JOB_STARTED, identity=identity(0), time_ns=0, attributes={"job_name": "llama"}), 0)
    for rank in range(WORLD):
        who = identity(rank, restart)
        started = {"pid": 100 + rank, "local_rank": rank % 4, "world_size": WORLD, "restart_count": restart}
        speaker = Identity(**{**{f: getattr(who, f) for f in who.__slots__}, "rank": rank})
        writer.see(Event(name=EventName.RANK_STARTED, identity=speaker, time_ns=0, attributes=started), 0)
        if rank % 4 == 0 and token:
            writer.see(Event(name=EventName.LAUNCH_MET, identity=who, time_ns=0, attributes={"token": token}), 0)


def run_step(
    writer: TraceWriter, step: int, *, restart: int = 0, hangs: int = -1, ranks: int = WORLD, now_ns: int = 0
) -> None:
    """The blocks that both nodes' agents send for one step. hangs: a rank that never enters the step's collective."""
    begin_ns = step * STEP_NS
    for node in range(ranks // 4):
        members = range(4 * node, 4 * node + 4)
        who = identity(4 * node, restart)
        rows = np.zeros(4 * 2, COLLECTIVES)
        rows["rank"] = np.repeat(list(members), 2)
        rows["group"] = [0, 1 + node] * 4
        rows["op"], rows["peer"], rows["step"], rows["seq"] = Op.ALL_REDUCE, -1, step, step + 1
        rows["enqueued_ns"] = begin_ns + 1000
        rows["done_ns"] = 0 if hangs >= 0 else begin_ns + 5000
        rows = rows[rows["rank"] != hangs]
        time_ns = OFFSET_NS + begin_ns + STEP_NS
        told = [Block(name=EventName.BLOCK_COLLECTIVES, identity=who, rows=rows, groups=GROUPS[:3])]
        if hangs < 0:
            steps = np.zeros(4, STEPS)
            steps["rank"], steps["step"] = list(members), step
            steps["begin_ns"], steps["end_ns"] = begin_ns, begin_ns + STEP_NS
            told.append(Block(name=EventName.BLOCK_STEPS, identity=who, rows=steps))
        for block in told:
            whole = Block(
                name=block.name,
                identity=who,
                rows=block.rows,
                groups=block.groups,
                clock_offset_ns=OFFSET_NS,
                time_ns=time_ns,
            )
            writer.see(whole, now_ns or begin_ns + STEP_NS)


def document(**others: Any) -> IncidentDocument:
    written = {
        "id": "1f0c",
        "revision": 1,
        "change": "opened",
        "state": "open",
        "job": {"id": "job-7", "attempt": "node-0-launch-0"},
        "suspects": [{"scope": "rank", "id": "5", "rank": 5}],
        "first_bad": {"step": 4},
        "times": {"onset": (OFFSET_NS + 4 * STEP_NS) / SECOND_NS + 0.5},
        **others,
    }
    return read_incident(written)


def told(writer: TraceWriter) -> list[tuple[dict[str, Any], Span]]:
    return spans_of(writer.take())


def steps_told(spans: list[tuple[dict[str, Any], Span]]) -> dict[int, list[int]]:
    """Steps by rank."""
    found: dict[int, list[int]] = {}
    for resource, span in spans:
        if span.name == "step":
            found.setdefault(resource[names.RANK], []).append(plain(span)[names.STEP])
    return found


def test_steps_around_the_incident_for_the_suspect_and_its_groups() -> None:
    writer = TraceWriter(TraceWriterSettings(ranks=4))
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    place = writer.incident(document(), 6 * STEP_NS)
    assert steps_told(told(writer)) == {rank: [2, 3, 4, 5] for rank in (4, 5, 6, 7)}, "its small group comes first"
    trace_id = step_trace_id("job-7", ATTEMPT, 4)
    assert place == SpanPlace(trace_id=trace_id, span_id=step_span_id(trace_id, 5))
    run_step(writer, 6)
    run_step(writer, 7)
    assert steps_told(told(writer)) == {rank: [6] for rank in (4, 5, 6, 7)}, "and the two that follow"


def test_a_trace_holds_the_ranks_of_both_nodes() -> None:
    writer = TraceWriter()
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    writer.incident(document(), 6 * STEP_NS)
    spans = told(writer)
    bad = [(resource, span) for resource, span in spans if span.trace_id == step_trace_id("job-7", ATTEMPT, 4)]
    assert {resource[names.RANK] for resource, _ in bad} == set(range(WORLD))
    assert sorted(span.name for _, span in bad) == ["all_reduce"] * 16 + ["step"] * 8
    resource = next(resource for resource, _ in bad if resource[names.RANK] == 5)
    assert resource == {
        "service.name": "llama",
        "host.name": "node-1",
        "process.pid": 105,
        "whichrank.cluster.id": "lab",
        "whichrank.run.id": "job-7",
        "whichrank.job.id": "job-7",
        "whichrank.job.attempt": "node-1-launch-0",
        "whichrank.node.id": "node-1",
        "whichrank.rank": 5,
        "whichrank.local_rank": 1,
        "whichrank.world_size": 8,
    }


def test_what_hangs_is_told_as_open_until_its_node_last_spoke() -> None:
    writer = TraceWriter()
    begin(writer)
    for step in range(4):
        run_step(writer, step)
    run_step(writer, 4, hangs=5)
    writer.incident(document(), 5 * STEP_NS)
    waiting = [
        (resource[names.RANK], span)
        for resource, span in told(writer)
        if span.trace_id == step_trace_id("job-7", ATTEMPT, 4)
    ]
    assert {rank for rank, _ in waiting} == set(range(WORLD)) - {5}, "the suspect has not entered"
    for _, span in waiting:
        assert plain(span)[names.COLLECTIVE_STATE] == "scheduled"
        assert span.status.code == Status.STATUS_CODE_ERROR
        assert span.end_time_unix_nano == OFFSET_NS + 5 * STEP_NS


def test_an_operation_that_was_open_and_has_ended_is_told_once() -> None:
    writer = TraceWriter()
    begin(writer)
    run_step(writer, 4, hangs=5)
    run_step(writer, 4)
    writer.incident(document(), 5 * STEP_NS)
    spans = [span for _, span in told(writer)]
    assert len({(span.trace_id, span.span_id) for span in spans}) == len(spans)
    assert {plain(span).get(names.COLLECTIVE_STATE, "completed") for span in spans} == {"completed"}


def test_steps_of_another_attempt_are_not_told() -> None:
    writer = TraceWriter()
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    begin(writer, restart=1)
    for step in range(3, 6):
        run_step(writer, step, restart=1)
    writer.incident(document(), 6 * STEP_NS)
    assert {resource[names.JOB_ATTEMPT] for resource, _ in told(writer)} == {"node-0-launch-0", "node-1-launch-0"}


def test_without_a_token_a_node_is_told_by_its_launch() -> None:
    writer = TraceWriter()
    begin(writer, token="")
    for step in range(6):
        run_step(writer, step, ranks=4)
    writer.incident(document(suspects=[{"rank": 2}]), 6 * STEP_NS)
    spans = told(writer)
    assert set(steps_told(spans)) == {0, 1, 2, 3}
    assert step_trace_id("job-7", "node-0-launch-0", 4) in {span.trace_id for _, span in spans}


def test_a_writer_that_came_later_than_the_ranks_learns_of_their_attempt_from_the_agents() -> None:
    writer = TraceWriter()
    for step in range(6):
        run_step(writer, step)
    writer.incident(document(id="early"), 6 * STEP_NS)
    assert set(steps_told(told(writer))) == {0, 1, 2, 3}, "that the other node's launch is of this attempt nobody knows"
    for node in range(2):
        who = identity(4 * node)
        words = (f"{who.attempt} {ATTEMPT}", "another-launch feed/1", 7)
        speaker = Identity(**{**{f: getattr(who, f) for f in who.__slots__}, "attempt": ""})
        health = Event(name=EventName.AGENT_HEALTH, identity=speaker, time_ns=0, attributes={"attempt_words": words})
        writer.see(health, 6 * STEP_NS)
    place = writer.incident(document(), 6 * STEP_NS)
    assert place is not None
    assert place.trace_id == step_trace_id("job-7", ATTEMPT, 4)
    assert set(steps_told(told(writer))) == set(range(WORLD))


def test_a_repeat_tells_nothing_and_another_suspect_only_what_is_new() -> None:
    writer = TraceWriter(TraceWriterSettings(ranks=4))
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    writer.incident(document(), 6 * STEP_NS)
    assert told(writer)
    writer.incident(document(revision=2, change="updated"), 6 * STEP_NS)
    assert not told(writer)
    writer.incident(document(revision=3, change="updated", suspects=[{"rank": 1}]), 6 * STEP_NS)
    assert set(steps_told(told(writer))) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("others", "step"),
    [
        ({"first_bad": {"step": None}}, 4),
        ({"first_bad": None}, 4),
        ({"first_bad": {"step": None}, "times": {"onset": None}}, 5),
        # All steps that are known have ended by then: it is in the next one.
        ({"first_bad": {"step": None}, "times": {"onset": (OFFSET_NS + 60 * STEP_NS) / SECOND_NS}}, 6),
    ],
)
def test_the_step_is_found_by_the_onset_where_nobody_names_it(others: dict[str, Any], step: int) -> None:
    writer = TraceWriter()
    begin(writer)
    for number in range(6):
        run_step(writer, number)
    place = writer.incident(document(**others), 6 * STEP_NS)
    assert place is not None
    assert place.trace_id == step_trace_id("job-7", ATTEMPT, step)


def test_nobodys_incident_is_told_of_some_ranks() -> None:
    writer = TraceWriter(TraceWriterSettings(ranks=16))
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    assert writer.incident(document(suspects=[]), 6 * STEP_NS) is None
    assert sorted(steps_told(told(writer))) == [0, 2, 4, 6]


def test_a_lost_node_is_told_with_the_ranks_it_held() -> None:
    writer = TraceWriter(TraceWriterSettings(ranks=4))
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    suspects = [{"scope": "node", "id": "node-1", "rank": None, "ranks": "4-7"}]
    writer.incident(document(suspects=suspects), 6 * STEP_NS)
    assert set(steps_told(told(writer))) == {4, 5, 6, 7}


def test_where_nobody_took_a_step_no_trace_is_pointed_at() -> None:
    """A rank that never joined, a step that nobody has come to."""
    writer = TraceWriter()
    begin(writer)
    assert writer.incident(document(first_bad={"step": 0}), 0) is None
    for step in range(6):
        run_step(writer, step)
    assert writer.incident(document(id="1f0d", first_bad={"step": 7}), 6 * STEP_NS) is None
    assert writer.incident(document(id="1f0e", first_bad={"step": 5}), 6 * STEP_NS) is not None


def test_an_attempt_that_a_launch_began_again_is_its_launch() -> None:
    writer = TraceWriter()
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    again = document(job={"id": "job-7", "attempt": "node-0-launch-0.2"})
    assert writer.incident(again, 6 * STEP_NS) == writer.incident(document(id="1f0d"), 6 * STEP_NS)


def test_an_unknown_job_or_attempt_is_no_trouble() -> None:
    writer = TraceWriter()
    assert writer.incident(document(), 0) is None
    begin(writer)
    assert writer.incident(document(job=None), 0) is None
    assert writer.incident(read_incident({"id": "x"}), 0) is None
    assert writer.incident(document(first_bad=None, job={"id": "job-7", "attempt": "unheard of"}), 0) is None
    assert not told(writer)


def test_memory_is_bounded_by_size_and_age() -> None:
    one_step = sum(np.zeros(4, dtype).nbytes * times for dtype, times in ((COLLECTIVES, 2), (STEPS, 1)))
    writer = TraceWriter(TraceWriterSettings(kept_bytes=3 * 2 * one_step, steps_before=100))
    begin(writer)
    for step in range(10):
        run_step(writer, step, now_ns=1 + step)
    writer.incident(document(first_bad={"step": 9}), 10)
    assert steps_told(told(writer))[5] == [7, 8, 9]

    writer = TraceWriter(TraceWriterSettings(kept_s=3.5, steps_before=100))
    begin(writer)
    for step in range(10):
        run_step(writer, step, now_ns=(1 + step) * SECOND_NS)
    writer.incident(document(first_bad={"step": 9}), 10 * SECOND_NS)
    assert steps_told(told(writer))[5] == [6, 7, 8, 9]


def test_jobs_are_bounded_too() -> None:
    writer = TraceWriter(TraceWriterSettings(jobs=2))
    begin(writer)
    run_step(writer, 4)
    for other in ("a", "b"):
        rows = np.zeros(1, STEPS)
        writer.see(Block(name=EventName.BLOCK_STEPS, identity=Identity(job=other), rows=rows), 5 * STEP_NS)
    assert writer.incident(document(), 5 * STEP_NS) is None
    assert writer._kept_bytes == 2 * STEPS.itemsize  # noqa: SLF001


@settings(max_examples=15)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=10))
def test_no_more_spans_are_written_than_were_saved_up(gaps: list[int]) -> None:
    writer = TraceWriter(TraceWriterSettings(spans_per_s=10.0, burst_spans=50))
    begin(writer)
    for step in range(6):
        run_step(writer, step)
    now_ns = 6 * STEP_NS
    first_ns = now_ns
    for number, gap in enumerate(gaps):
        now_ns += gap * SECOND_NS // 10
        writer.incident(document(id=str(number)), now_ns)
    assert writer.spans <= 50 + 10 * (now_ns - first_ns) / SECOND_NS + 1
    assert writer.spans == len(told(writer))
    whole = 4 * 8 * 3  # of each incident: four steps of eight ranks, with two operations each
    assert writer.spans + writer.dropped == len(gaps) * whole
