"""Spans read back with the official protobuf classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from whichrank.telemetry import attributes as names
from whichrank.telemetry.records import Block, Group, Identity
from whichrank.telemetry.spans import Span, collective_spans, encode_spans, span_id_of, step_spans, trace_id_of
from whichrank.telemetry.tables import COLLECTIVES, STEPS
from whichrank.telemetry.vocabulary import EventFlag, EventName, Op, Phase, StepFlag

IDENTITY = Identity(cluster="c", job="j", attempt="a", node="n")
TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
VALUES = st.one_of(TEXT, st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False))


def read(value: bytes) -> list[WireSpan]:
    request = ExportTraceServiceRequest.FromString(value)
    (resource_spans,) = request.resource_spans
    (scope_spans,) = resource_spans.scope_spans
    assert scope_spans.scope.name == "whichrank"
    resource = {pair.key: pair.value.string_value for pair in resource_spans.resource.attributes}
    assert resource[names.JOB_ID] == "j"
    return list(scope_spans.spans)


def plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    assert kind is not None
    return getattr(value, kind)


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        Span,
        trace_id=st.binary(min_size=16, max_size=16),
        span_id=st.binary(min_size=8, max_size=8),
        parent_id=st.sampled_from([b"", b"12345678"]),
        name=TEXT,
        start_ns=st.integers(0, (1 << 64) - 1),
        end_ns=st.integers(0, (1 << 64) - 1),
        attributes=st.lists(st.tuples(TEXT, VALUES), max_size=6).map(tuple),
        failed=st.booleans(),
    )
)
def test_the_official_classes_read_what_was_written(span: Span) -> None:
    (wire,) = read(encode_spans(IDENTITY, [span]))
    assert (wire.trace_id, wire.span_id, wire.parent_span_id) == (span.trace_id, span.span_id, span.parent_id)
    assert (wire.name, wire.start_time_unix_nano, wire.end_time_unix_nano) == (span.name, span.start_ns, span.end_ns)
    assert wire.kind == WireSpan.SPAN_KIND_INTERNAL
    assert [(pair.key, plain(pair.value)) for pair in wire.attributes] == list(span.attributes)
    assert (wire.status.code == Status.STATUS_CODE_ERROR) is span.failed


def test_spans_of_a_step_and_of_its_collectives_hang_together() -> None:
    steps = np.zeros(1, STEPS)
    steps["rank"], steps["step"], steps["begin_ns"], steps["end_ns"] = 2, 41, 1_000, 9_000
    steps["loss"], steps["flags"] = 0.5, StepFlag.HAS_LOSS
    steps["phase_ns"][0, Phase.FORWARD] = 2_000
    collectives = np.zeros(3, COLLECTIVES)
    collectives["rank"], collectives["step"], collectives["op"] = 2, 41, Op.ALL_REDUCE
    collectives["seq"] = [1, 2, 3]
    collectives["enqueued_ns"], collectives["done_ns"] = 2_000, [3_000, 4_000, 0]
    collectives["started_ns"] = [0, 2_500, 0]
    collectives["flags"] = [0, EventFlag.FAILED, 0]
    group = Group(uid="u", name="dp")
    (step,) = step_spans(Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=steps, clock_offset_ns=10**9))
    first, second = collective_spans(
        Block(name=EventName.BLOCK_COLLECTIVES, identity=IDENTITY, rows=collectives, groups=(group,))
    )
    assert step.start_ns == 10**9 + 1_000
    assert dict(step.attributes) == {
        names.STEP: 41,
        names.RANK: 2,
        names.STEP_LOSS: 0.5,
        f"{names.PHASE}.forward": 2e-6,
    }
    assert first.trace_id == second.trace_id == step.trace_id == trace_id_of("j", "a", 41)
    assert first.parent_id == second.parent_id == step.span_id
    assert (first.name, first.start_ns, second.start_ns) == ("all_reduce", 2_000, 2_500)
    assert (first.failed, second.failed) == (False, True)
    assert dict(second.attributes)[names.COLLECTIVE_SEQ] == 2


def test_ids_depend_on_what_the_span_is_about_and_on_nothing_else() -> None:
    trace = trace_id_of("j", "a", 1)
    assert len({trace, trace_id_of("j", "a", 2), trace_id_of("j", "b", 1), trace_id_of("k", "a", 1)}) == 4
    ids = {span_id_of(trace, r, g, s) for r in (0, 1, 11) for g in ("", "1", "dp") for s in (-1, 1, 11)}
    assert len(ids) == 27
    # Fixed for ever: spans written by another release or language must coincide.
    assert trace.hex() == "d24f2af8252a4e7c6085915b0c935716"
    assert span_id_of(trace, 3, "dp", 97).hex() == "a36617ac9cbce5c5"


def test_a_collective_and_a_send_of_one_number_are_two_spans() -> None:
    rows = np.zeros(2, COLLECTIVES)
    rows["seq"], rows["done_ns"], rows["flags"] = 1, 5, [0, EventFlag.P2P]
    group = Group(uid="u", name="pp")
    spans = collective_spans(Block(name=EventName.BLOCK_COLLECTIVES, identity=IDENTITY, rows=rows, groups=(group,)))
    assert spans[0].span_id != spans[1].span_id


def test_the_wrong_sort_of_block_is_refused() -> None:
    block = Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=np.zeros(0, STEPS))
    with pytest.raises(ValueError, match="not a block of collectives"):
        collective_spans(block)
