"""Spans as a back end reads them: decoded with opentelemetry-proto, and the same whoever writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from whichrank.telemetry import attributes as names
from whichrank.telemetry.block import MAX_RANK
from whichrank.telemetry.otlp_wire import RequestBuilder
from whichrank.telemetry.records import Group, Identity
from whichrank.telemetry.spans import (
    PHASE_SPANS,
    TraceScope,
    collective_spans,
    phase_spans,
    rank_resource,
    step_spans,
)
from whichrank.telemetry.tables import COLLECTIVES, STEPS
from whichrank.telemetry.trace_identity import STEP, span_ids, step_span_id, step_trace_id, trace_word
from whichrank.telemetry.vocabulary import EventFlag, Op, Phase, StepFlag

OFFSET_NS = 1_700_000_000 * 10**9
SCOPE = TraceScope(job="job-7", attempt="token", clock_offset_ns=OFFSET_NS)
GROUPS = (
    Group(uid="aa", name="0", desc="default_pg", ranks="0-7", size=8),
    Group(uid="bb", name="tp", ranks="4-7", size=4),
)


def decode(entries: list[bytes]) -> list[Span]:
    builder = RequestBuilder("whichrank", 900_000)
    builder.add(b"", entries)
    spans: list[Span] = []
    for raw in builder.take():
        for part in ExportTraceServiceRequest.FromString(raw).resource_spans:
            spans += part.scope_spans[0].spans
    return spans


def plain(holder: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


def collectives(**columns: object) -> np.ndarray:
    count = max((len(column) for column in columns.values() if isinstance(column, list)), default=1)
    rows = np.zeros(count, COLLECTIVES)
    rows["rank"], rows["peer"], rows["step"], rows["op"] = 5, -1, 41, Op.ALL_REDUCE
    rows["seq"] = np.arange(1, count + 1)
    rows["enqueued_ns"], rows["done_ns"] = 1_000, 3_000
    for name, column in columns.items():
        rows[name] = column
    return rows


def steps(**columns: object) -> np.ndarray:
    rows = np.zeros(1, STEPS)
    rows["rank"], rows["step"], rows["begin_ns"], rows["end_ns"] = 5, 41, 500, 2_000_000_500
    for name, column in columns.items():
        rows[name] = column
    return rows


def test_a_collective_says_what_it_was() -> None:
    rows = collectives(seq=[70_000], bytes=[1 << 30], dtype=[7], phase=[int(Phase.BACKWARD)], started_ns=[1_500])
    (span,) = decode(collective_spans(rows, GROUPS, SCOPE))
    assert (span.name, span.kind) == ("all_reduce", Span.SPAN_KIND_INTERNAL)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (OFFSET_NS + 1_000, OFFSET_NS + 3_000)
    assert [(event.name, event.time_unix_nano) for event in span.events] == [("started", OFFSET_NS + 1_500)]
    assert not span.HasField("status")
    assert plain(span) == {
        "whichrank.collective.op": "all_reduce",
        "whichrank.collective.state": "completed",
        "whichrank.collective.dtype": "float32",
        "whichrank.collective.seq": 70_000,
        "whichrank.collective.bytes": 1 << 30,
        "whichrank.pg.name": "default_pg",
        "whichrank.pg.uid": "aa",
        "whichrank.pg.size": 8,
        "whichrank.step.phase": "backward",
    }


def test_failed_polled_and_open_operations_say_so() -> None:
    flags = [EventFlag.FAILED, EventFlag.POLLED | EventFlag.P2P, 0, 0]
    rows = collectives(flags=flags, done_ns=[3_000, 3_000, 0, 0], started_ns=[0, 0, 2_000, 0], peer=[-1, 2, -1, -1])
    assert len(decode(collective_spans(rows, GROUPS, SCOPE))) == 2, "an open operation has no end to tell"
    failed, polled, started, scheduled = decode(collective_spans(rows, GROUPS, SCOPE, open_until_ns=OFFSET_NS + 9_000))
    assert [plain(span)[names.COLLECTIVE_STATE] for span in (failed, polled, started, scheduled)] == [
        "failed",
        "completed",
        "started",
        "scheduled",
    ]
    assert [span.status.code for span in (failed, polled, started, scheduled)] == [
        Status.STATUS_CODE_ERROR,
        Status.STATUS_CODE_UNSET,
        Status.STATUS_CODE_ERROR,
        Status.STATUS_CODE_ERROR,
    ]
    assert plain(polled)[names.COLLECTIVE_POLLED] is True
    assert plain(polled)[names.COLLECTIVE_PEER] == 2
    assert started.end_time_unix_nano == scheduled.end_time_unix_nano == OFFSET_NS + 9_000


def test_a_step_is_the_parent_of_its_parts_and_its_trace_is_every_ranks() -> None:
    (step,) = decode(step_spans(steps(), SCOPE))
    parts = np.zeros(2, PHASE_SPANS)
    parts["rank"], parts["step"], parts["phase"] = 5, 41, [Phase.FORWARD, Phase.CHECKPOINT]
    parts["begin_ns"], parts["end_ns"] = [600, 900], [900, 2_000]
    children = decode(phase_spans(parts, SCOPE)) + decode(collective_spans(collectives(), GROUPS, SCOPE))
    assert [span.name for span in children] == ["forward", "checkpoint", "all_reduce"]
    assert {span.parent_span_id for span in children} == {step.span_id}
    assert not step.parent_span_id
    (other,) = decode(step_spans(steps(rank=[6]), SCOPE))
    assert {span.trace_id for span in [*children, step, other]} == {step_trace_id("job-7", "token", 41)}
    assert other.span_id != step.span_id
    (later,) = decode(step_spans(steps(step=[42]), SCOPE))
    assert later.trace_id != step.trace_id


def test_a_steps_numbers() -> None:
    phase_ns = np.zeros((1, len(Phase)), np.int64)
    phase_ns[0, Phase.FORWARD], phase_ns[0, Phase.DATA] = 1_500_000_000, 500_000_000
    flags = StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM | StepFlag.SKIPPED
    rows = steps(
        flags=flags, loss=2.5, grad_norm=float("nan"), phase_ns=phase_ns, collectives=20, collective_ns=250_000_000
    )
    (span,) = decode(step_spans(rows, SCOPE))
    assert (span.name, span.start_time_unix_nano) == ("step", OFFSET_NS + 500)
    assert plain(span) == {
        "whichrank.step": 41,
        "whichrank.step.collectives": 20,
        "whichrank.step.collective_seconds": 0.25,
        "whichrank.step.loss": 2.5,
        "whichrank.step.grad_norm": "nan",
        "whichrank.step.skipped": True,
        "whichrank.step.seconds.data": 0.5,
        "whichrank.step.seconds.forward": 1.5,
    }
    (silent,) = decode(step_spans(steps(loss=2.5), SCOPE))
    assert names.STEP_LOSS not in plain(silent), "a loss that nobody recorded"


@given(
    ranks=st.lists(st.integers(0, MAX_RANK - 1), min_size=1, max_size=30),
    first_seq=st.integers(1, 1 << 40),
    within_step=st.lists(st.integers(0, (1 << 20) - 1), min_size=1, max_size=30),
)
def test_every_operation_has_an_id_of_its_own_and_keeps_it(
    ranks: list[int], first_seq: int, within_step: list[int]
) -> None:
    seqs = [first_seq + place for place in within_step]
    told = [
        (rank, seq, group, flag, step)
        for rank in sorted(set(ranks))[:6]
        for seq in sorted(set(seqs))[:6]
        for group in (0, 1)
        for flag in (0, int(EventFlag.P2P))
        for step in (41, 42)
    ]
    rows = collectives(seq=[each[1] for each in told])
    for column, place in (("rank", 0), ("group", 2), ("flags", 3), ("step", 4)):
        rows[column] = [each[place] for each in told]
    spans = collective_spans(rows, GROUPS, SCOPE)
    assert len({span.span_id for span in decode(spans)}) == len(told)
    assert all(len(span.span_id) == 8 and len(span.trace_id) == 16 for span in decode(spans))
    # Row by row, in another block (other group indexes) and by another node's clock: the same ids.
    swapped = rows.copy()
    swapped["group"] = 1 - rows["group"]
    elsewhere = TraceScope(job="job-7", attempt="token", clock_offset_ns=OFFSET_NS + 5)
    for row, span in zip(swapped, decode(spans), strict=True):
        (again,) = decode(collective_spans(np.array([row]), GROUPS[::-1], elsewhere))
        assert (again.trace_id, again.span_id, again.parent_span_id) == (
            span.trace_id,
            span.span_id,
            span.parent_span_id,
        )


def test_ids_of_this_release_stay() -> None:
    # An agent of this release and a trace writer of the next one must still name the same span.
    (span,) = decode(collective_spans(collectives(), GROUPS, SCOPE))
    (step,) = decode(step_spans(steps(), SCOPE))
    parts = np.zeros(1, PHASE_SPANS)
    parts["rank"], parts["step"], parts["phase"], parts["begin_ns"] = 5, 41, Phase.FORWARD, 600
    (phase,) = decode(phase_spans(parts, SCOPE))
    assert [span.trace_id.hex(), span.span_id.hex(), step.span_id.hex(), phase.span_id.hex()] == GOLDEN_IDS


GOLDEN_IDS = ["77b47c7b798a7af680434d7cdf45cb71", "76b40c8c518f7a76", "77b47c7b798f7af6", "77b47c7b798f7ab6"]


def test_rows_of_nobody_make_no_span() -> None:
    assert collective_spans(np.zeros(0, COLLECTIVES), (), SCOPE) == []
    assert step_spans(np.zeros(0, STEPS), SCOPE) == []
    assert phase_spans(np.zeros(0, PHASE_SPANS), SCOPE) == []


@pytest.mark.parametrize(("job_name", "service"), [("llama", "llama"), ("", "job-7")])
def test_the_resource_says_whose_process_it_is(job_name: str, service: str) -> None:
    identity = Identity(cluster="lab", run="r", job="job-7", attempt="launch", node="node-02", rank=5)
    builder = RequestBuilder("whichrank", 900_000)
    raw = rank_resource(identity, job_name=job_name, pid=4711, local_rank=1, world_size=8)
    builder.add(raw, step_spans(steps(), SCOPE))
    (request,) = map(ExportTraceServiceRequest.FromString, builder.take())
    assert plain(request.resource_spans[0].resource) == {
        "service.name": service,
        "host.name": "node-02",
        "process.pid": 4711,
        "whichrank.cluster.id": "lab",
        "whichrank.run.id": "r",
        "whichrank.job.id": "job-7",
        "whichrank.job.attempt": "launch",
        "whichrank.node.id": "node-02",
        "whichrank.rank": 5,
        "whichrank.local_rank": 1,
        "whichrank.world_size": 8,
    }


@given(st.binary(min_size=16, max_size=16), st.integers(0, MAX_RANK - 1))
def test_the_id_of_one_step_is_that_of_many(trace_id: bytes, rank: int) -> None:
    ranks = np.array([rank, 0], np.int64)
    assert step_span_id(trace_id, rank) == int(span_ids(trace_word(trace_id), STEP, ranks, 0)[0])
