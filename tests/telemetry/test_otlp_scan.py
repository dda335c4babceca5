"""Messages read in C: the same payloads as by the protobuf library, whatever the bytes are."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from tests.telemetry.payload_strategies import blocks, events, findings, incidents
from tests.telemetry.test_otlp import edit, make_block, same
from whichrank.telemetry._otlp_scan import is_plain, scan  # built wherever tests run
from whichrank.telemetry.block import MAX_RANK, PLACES_IN_C, is_plain_by_columns
from whichrank.telemetry.otlp import Encodable, decode_logs, decode_with_protobuf, encode_payloads
from whichrank.telemetry.records import Block, Broken, Event, Identity, Payload
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.vocabulary import EventName

EVENT = Event(name=EventName.RANK_CONTINUED, identity=Identity(job="j", rank=1), time_ns=5)


def by_protobuf(value: bytes, *, with_copies: bool = False) -> list[Payload]:
    return decode_with_protobuf("t", value, with_copies)


def agree(value: bytes) -> bool:
    for with_copies in (False, True):
        here, there = decode_logs("t", value, with_copies=with_copies), by_protobuf(value, with_copies=with_copies)
        if len(here) != len(there) or not all(same(*pair) for pair in zip(here, there, strict=True)):
            return False
    return True


def scanned_blocks(value: bytes) -> int:
    parts = scan(value, False)
    return 0 if parts is None else sum(isinstance(record, tuple) for _, records in parts for record in records)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(blocks(), events(), findings, incidents), max_size=5), st.booleans())
def test_both_say_the_same(payloads: list[Encodable], is_copy: bool) -> None:
    assert agree(encode_payloads(payloads, is_copy=is_copy))


@settings(max_examples=200, deadline=None)
@given(st.lists(blocks(max_rows=20), min_size=1, max_size=4))
def test_every_block_that_we_write_is_read_in_c(payloads: list[Block]) -> None:
    """What the attributes are called stands in C once more: a wrong name there would only be slow."""
    assert scanned_blocks(encode_payloads(payloads)) == len(payloads)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.one_of(blocks(max_rows=20), blocks(max_rows=3), events()), min_size=1, max_size=3),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
)
def test_both_say_the_same_of_damage(payloads: list[Encodable], edits: list[tuple[float, int]], cut: float) -> None:
    value = bytearray(encode_payloads(payloads))
    for place, byte in edits:
        value[int(place * (len(value) - 1))] = byte
    assert agree(bytes(value))
    assert agree(bytes(value[: int(cut * len(value))]))


def test_both_say_the_same_of_every_byte_changed() -> None:
    """Each place of a small message, with the bytes that mean something on the wire."""
    whole = encode_payloads([make_block(1), EVENT])
    for place in range(len(whole)):
        for byte in (0x00, 0x01, 0x08, 0x0A, 0x12, 0x3A, 0x7F, 0x80, 0xFF, whole[place] ^ 1, whole[place] ^ 8):
            value = whole[:place] + bytes((byte,)) + whole[place + 1 :]
            assert agree(value), (place, byte)
        assert agree(whole[:place]), place
        assert agree(whole[:place] + whole[place + 1 :]), place


def test_what_a_collector_adds_is_no_reason_to_read_more_slowly() -> None:
    request = edit(encode_payloads([make_block(), make_block(3)]))
    part = request.resource_logs[0]
    part.schema_url = part.scope_logs[0].schema_url = "https://opentelemetry.io/schemas/1.27.0"
    part.scope_logs[0].scope.version = "1.0"
    for record in part.scope_logs[0].log_records:
        record.observed_time_unix_nano, record.flags = 7, 1
        record.severity_number = SeverityNumber.SEVERITY_NUMBER_INFO
        record.trace_id, record.span_id = bytes(16), b"\xff" * 8
    part.scope_logs.add().CopyFrom(part.scope_logs[0])
    value = request.SerializeToString()
    assert scanned_blocks(value) == 4
    assert agree(value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.attributes.append(KeyValue(key="ä")),
        lambda record: setattr(record.attributes.add().value, "string_value", "ä"),
        lambda record: record.attributes.add().value.kvlist_value.values.add(),
        lambda record: record.attributes.add().value.array_value.values.add(),
        lambda record: setattr(record.body, "string_value", "text"),
        lambda record: record.ClearField("body"),
        lambda record: setattr(record, "event_name", "another"),
        lambda record: setattr(record, "severity_text", "INFO"),
        lambda record: setattr(record.attributes[1].value, "string_value", "5"),
        lambda record: setattr(record.attributes[2].value, "int_value", 5),
        lambda record: setattr(record.attributes[3].value, "string_value", ""),
        lambda record: record.attributes.insert(0, record.attributes[1]),
    ],
)
def test_what_is_not_as_we_write_it_is_left_to_protobuf(spoil: object) -> None:
    request = edit(encode_payloads([make_block(), make_block(3), EVENT]))
    assert callable(spoil)
    spoil(request.resource_logs[0].scope_logs[0].log_records[0])
    assert agree(request.SerializeToString())


def test_fields_that_come_twice_are_merged_as_protobuf_does() -> None:
    """One message behind another is their merger: an encoder may do so within a record, too."""
    one, two = make_block(2), make_block(3)
    value = encode_payloads([one])
    first, second = (edit(encode_payloads([each])).resource_logs[0].scope_logs[0].log_records[0] for each in (one, two))
    doubled = edit(value)
    merged = LogRecord.FromString(first.SerializeToString() + second.SerializeToString())
    doubled.resource_logs[0].scope_logs[0].log_records[0].CopyFrom(merged)
    assert agree(doubled.SerializeToString())
    assert agree(value + value)

    def field(number: int, content: bytes) -> bytes:
        size = len(content)
        assert size < 1 << 14
        return bytes((number << 3 | 2, size & 0x7F | 0x80, size >> 7)) + content

    scope_logs = doubled.resource_logs[0].scope_logs[0]
    resource = doubled.resource_logs[0].resource.SerializeToString()
    record = field(2, first.SerializeToString() + second.SerializeToString())
    raw = field(
        1, field(1, resource) + field(1, b"") + field(2, field(1, scope_logs.scope.SerializeToString()) + record)
    )
    assert agree(raw)
    assert agree(field(1, field(2, record)))


def test_without_a_compiler_all_is_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    value = encode_payloads([make_block(), EVENT])
    with_c = decode_logs("t", value)
    monkeypatch.setattr("whichrank.telemetry.otlp._scan", None)
    monkeypatch.setattr("whichrank.telemetry.block._rows_are_plain", None)
    assert len(with_c) == 2
    assert all(same(*pair) for pair in zip(with_c, decode_logs("t", value), strict=True))


def test_a_copy_is_left_out_in_c_too() -> None:
    copy = encode_payloads([make_block()], is_copy=True)
    assert decode_logs("t", copy, with_copies=False) == []
    assert len(decode_logs("t", copy)) == 1
    assert scan(b"", False) == []


def test_what_is_broken_is_told_by_protobuf() -> None:
    value = edit(encode_payloads([make_block(), EVENT]))
    value.resource_logs[0].scope_logs[0].log_records[0].attributes[1].value.int_value = 9
    broken, event = decode_logs("t", value.SerializeToString())
    assert isinstance(broken, Broken)
    assert "9 rows" in broken.reason
    assert event == EVENT


@pytest.mark.parametrize("name", sorted(TABLES, key=str))
def test_rows_are_plain_in_c_where_all_their_numbers_are_known(name: EventName) -> None:
    dice = random.Random(str(name))
    row_bytes, rank, group, pairs = PLACES_IN_C[name]
    places = [rank + 1, rank + 2, rank + 3, *([group, group + 1] if group >= 0 else []), *pairs[::2]]
    verdicts = set()
    for _ in range(500):
        body = bytearray(40 * row_bytes)
        for _ in range(dice.randint(0, 2)):
            body[dice.randrange(40) * row_bytes + dice.choice(places)] = dice.choice((1, 2, 5, 0x3F, 0x40, 0xFF))
        rows = np.frombuffer(body, np.uint8).reshape(40, row_bytes)
        known = (np.frombuffer(body, TABLES[name])["rank"] < MAX_RANK).all()
        known &= group < 0 or (np.frombuffer(body, TABLES[name])["group"] < 3).all()
        known &= all((rows[:, place] <= limit).all() for place, limit in zip(pairs[::2], pairs[1::2], strict=True))
        here = is_plain(bytes(body), row_bytes, rank, MAX_RANK - 1, group, 3, pairs)
        assert here == known
        assert here or not is_plain_by_columns(bytes(body), name, 40, 3)  # numpy's look is more careful, never less
        verdicts.add(here)
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    "arguments",
    [
        (bytes(8), 0, 0, 1, -1, 0, b""),
        (bytes(8), 3, 0, 1, -1, 0, b""),
        (bytes(8), 4, 1, 1, -1, 0, b""),
        (bytes(8), 4, -1, 1, -1, 0, b""),
        (bytes(8), 4, 0, 1, 3, 0, b""),
        (bytes(8), 4, 0, 1, -2, 0, b""),
        (bytes(8), 4, 0, 1, -1, 0, b"\x04\x01"),
        (bytes(8), 4, 0, 1, -1, 0, b"\x00"),
    ],
)
def test_places_outside_of_a_row_are_refused(arguments: tuple[bytes, int, int, int, int, int, bytes]) -> None:
    with pytest.raises(ValueError, match="not in such rows"):
        is_plain(*arguments)
