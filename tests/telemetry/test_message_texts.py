"""Texts of OTLP requests by the walk in C: all that the protobuf library has, and nothing of what it cannot read."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from whichrank.telemetry._message_texts import texts  # built wherever tests run
from whichrank.telemetry.message_texts import MessageTexts

REQUESTS = (ExportTraceServiceRequest, ExportMetricsServiceRequest, ExportLogsServiceRequest)
WORDS = ("", "name", "Größe", "a long word " * 40, "password", "x", "\N{SNOWMAN}")


def filled(message: Any, draw: random.Random, depth: int = 0) -> None:
    """Some fields of a message, at random, down to where values hold values."""
    for field in message.DESCRIPTOR.fields:
        if draw.random() < 0.35 + 0.05 * depth:
            continue
        repeated = is_repeated(field)
        for _ in range(draw.randint(1, 3) if repeated else 1):
            if field.message_type is not None:
                if depth < 8:
                    child = getattr(message, field.name)
                    filled(child.add() if repeated else child, draw, depth + 1)
                continue
            value = value_of(field.cpp_type, field.type, draw)
            if repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


def is_repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def value_of(cpp_type: int, kind: int, draw: random.Random) -> Any:
    if kind == 9:
        return draw.choice(WORDS)
    if kind == 12:
        return draw.randbytes(draw.randint(0, 9))
    if cpp_type in (5, 6):  # double, float
        return draw.choice((0.5, -1.0))
    return draw.choice((0, 1, 1)) if cpp_type in (7, 8) else draw.choice((0, 3, 1 << 30))


def texts_in(message: Any, name: str = "") -> set[tuple[str, str]]:
    """The same by the protobuf library."""
    found = set()
    is_pair = message.DESCRIPTOR.name == "KeyValue"
    inside = message.key if is_pair else name
    for field, value in message.ListFields():
        for each in value if is_repeated(field) else [value]:
            if field.message_type is not None:
                found |= texts_in(each, inside)
            elif isinstance(each, str):
                found.add(("" if is_pair and field.name == "key" else inside, each))
    return found


def without_empty(found: Any) -> set[tuple[str, str]]:
    return {(name, text) for name, text in found if text}


@given(st.integers(), st.sampled_from(REQUESTS))
def test_all_texts_are_found_under_their_names(seed: int, kind: Any) -> None:
    message = kind()
    filled(message, random.Random(seed))
    found = MessageTexts(kind.DESCRIPTOR).of(message.SerializeToString())
    assert found is not None
    assert len(set(found)) == len(found)
    assert without_empty(found) == without_empty(texts_in(message))


@given(st.integers(), st.sampled_from(REQUESTS))
def test_what_is_read_of_damaged_requests_the_library_reads_too(seed: int, kind: Any) -> None:
    draw, message = random.Random(seed), kind()
    filled(message, draw)
    raw = bytearray(message.SerializeToString())
    for _ in range(draw.randint(1, 4)):
        if raw:
            at = draw.randrange(len(raw))
            match draw.randrange(3):
                case 0:
                    raw[at] = draw.randrange(256)
                case 1:
                    del raw[at:]
                case _:
                    raw[at:at] = raw[: draw.randint(1, 20)]
    found = MessageTexts(kind.DESCRIPTOR).of(bytes(raw))
    if found is None:
        return
    try:
        whole = kind.FromString(bytes(raw))
    except DecodeError:
        pytest.fail("was read, and is none")
    # The library keeps the last of what is told twice; all of it is told here.
    assert without_empty(texts_in(whole)) <= without_empty(found)


def test_what_it_does_not_know_is_left_to_the_library() -> None:
    known = MessageTexts(ExportTraceServiceRequest.DESCRIPTOR)
    assert known.of(b"") == []
    assert known.of(b"\x12\x00") is None  # field 2 of a request
    assert known.of(b"\x0a\x05\x0a") is None  # cut
    many = ExportTraceServiceRequest()
    spans = many.resource_spans.add().scope_spans.add().spans
    for number in range(5000):
        spans.add().name = f"name {number}"
    assert known.of(many.SerializeToString()) is None
    deep = ExportLogsServiceRequest()
    value = deep.resource_logs.add().scope_logs.add().log_records.add().body
    for _ in range(40):
        value = value.array_value.values.add()
    assert MessageTexts(ExportLogsServiceRequest.DESCRIPTOR).of(deep.SerializeToString()) is None


@pytest.mark.parametrize(
    "numbers",
    [
        (),
        (0, 1),  # a field that is not there
        (-1, 1, 1, 2, 2, 0),
        (0, 1, 1, 2, 4, 7),  # a message that is not there
        (0, 1, 1, 2, 9, 0),  # nothing that can be done
        (0, 1, 1, 0, 2, 0),  # a text that is a number
        (0, 1, 1, 2, 6, 0),  # packed numbers of no bytes
        (0, 1, 1, 2, 2),
    ],
)
def test_a_schema_that_leads_outside_of_itself_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no schema"):
        texts(b"", b"".join(number.to_bytes(4, "little", signed=True) for number in numbers), 1)
