"""Records survive the wire exactly, and nothing on the wire can make decoding raise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.telemetry.payload_strategies import blocks, events, findings, incidents
from whichrank.telemetry import attributes as names
from whichrank.telemetry.block import MAX_BLOCK_BYTES
from whichrank.telemetry.otlp import Encodable, decode_logs, encode_batches, encode_payloads
from whichrank.telemetry.records import Block, Broken, Event, Group, Identity, Incident, Payload
from whichrank.telemetry.tables import COLLECTIVES, STEPS
from whichrank.telemetry.vocabulary import EventName

IDENTITY = Identity(cluster="c", run="r", job="j", attempt="a", node="n")
GROUP = Group(uid="u", name="dp", ranks="0-3", size=4, backend="gloo", timeout_s=30.0)


def same(left: Payload, right: Payload) -> bool:
    if not isinstance(left, Block) or not isinstance(right, Block):
        return left == right or repr(left) == repr(right)  # a number that is none is not equal to itself
    fields = ("name", "identity", "groups", "clock_offset_ns", "time_ns")
    same_rows = left.rows.dtype == right.rows.dtype and left.rows.tobytes() == right.rows.tobytes()
    return same_rows and all(getattr(left, field) == getattr(right, field) for field in fields)


def make_block(count: int = 5) -> Block:
    rows = np.zeros(count, COLLECTIVES)
    rows["seq"] = np.arange(count)
    return Block(name=EventName.BLOCK_COLLECTIVES, identity=IDENTITY, rows=rows, groups=(GROUP,), time_ns=3)


def edit(value: bytes) -> ExportLogsServiceRequest:
    return ExportLogsServiceRequest.FromString(value)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(blocks(), events(), findings, incidents), max_size=5))
def test_what_goes_in_comes_out(payloads: list[Encodable]) -> None:
    value = encode_payloads(payloads)
    assert edit(value).SerializeToString() == value, "as the protobuf library writes it"
    out = decode_logs("t", value)
    assert len(out) == len(payloads)
    for left, right in zip(payloads, out, strict=True):
        assert same(left, right), (left, right)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_never_raise(value: bytes) -> None:
    for payload in decode_logs("topic", value):
        if isinstance(payload, Broken):
            assert payload.topic == "topic"
            assert "\n" not in payload.reason


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(blocks(max_rows=20), events(), findings, incidents),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.floats(0, 1),
)
def test_damaged_messages_never_raise(payload: Encodable, edits: list[tuple[float, int]], cut: float) -> None:
    value = bytearray(encode_payloads([payload]))
    for place, byte in edits:
        value[int(place * (len(value) - 1))] = byte
    decode_logs("t", bytes(value))
    decode_logs("t", bytes(value[: int(cut * len(value))]))


def test_bytes_that_are_no_otlp_are_one_broken_record_with_the_bytes() -> None:
    (broken,) = decode_logs("whichrank.blocks", b"\xff\xff\xff")
    assert isinstance(broken, Broken)
    assert broken.value == b"\xff\xff\xff"
    assert "3 bytes" in broken.reason


def test_a_broken_record_does_not_take_its_neighbours_along() -> None:
    request = edit(encode_payloads([make_block(), make_block(), make_block()]))
    request.resource_logs[0].scope_logs[0].log_records[1].body.bytes_value += b"x"
    first, broken, third = decode_logs("t", request.SerializeToString())
    assert isinstance(first, Block)
    assert isinstance(third, Block)
    assert isinstance(broken, Broken)
    assert "321 bytes" in broken.reason
    # The dead-letter queue gets the record's own bytes.
    assert b"whichrank.collectives" in broken.value


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        (names.BLOCK_COUNT, 1 << 40, "more than"),
        (names.BLOCK_COUNT, -1, "more than"),
        (names.BLOCK_COUNT, 4, "4 rows"),
        (names.BLOCK_DTYPE, "<O8 rank", "not of a known type"),
        (names.BLOCK_DTYPE, "<u4 rank;<u4 rank", "twice"),
        (names.BLOCK_DTYPE, "<i8[999] rank", "999 items"),
        (names.BLOCK_GROUPS, "[]", "points past 0 groups"),
        (names.BLOCK_GROUPS, "{}", "groups are not a list"),
        (names.BLOCK_GROUPS, "[1]", "no uid"),
        (names.BLOCK_GROUPS, "[[[", "record"),
        (names.BLOCK_GROUPS, '[{"uid": "u", "ranks": "0-4000000000"}]', "not a range of ranks"),
        (names.BLOCK_GROUPS, '[{"uid": "u", "ranks": "0-4000000"}, {"uid": "v", "ranks": "7-3"}]', "'7-3'"),
        (names.BLOCK_GROUPS, '[{"uid": "u", "size": 1e12}]', "a group of 1000000000000 ranks"),
    ],
)
def test_a_block_head_that_lies_is_broken(attribute: str, value: str | int, reason: str) -> None:
    request = edit(encode_payloads([make_block()]))
    for pair in request.resource_logs[0].scope_logs[0].log_records[0].attributes:
        if pair.key == attribute:
            if isinstance(value, str):
                pair.value.string_value = value
            else:
                pair.value.int_value = value
    (broken,) = decode_logs("t", request.SerializeToString())
    assert isinstance(broken, Broken)
    assert reason in broken.reason


def test_columns_of_a_later_release_are_skipped_and_missing_ones_are_unknown() -> None:
    written = np.zeros(2, [("extra", "<f8"), ("rank", "<u2"), ("seq", "<i4"), ("group", "<u2"), ("bytes", "<f8")])
    written["rank"], written["seq"] = [1, 2], [7, 8]
    request = edit(encode_payloads([make_block(2)]))
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    record.body.bytes_value = written.tobytes()
    for pair in record.attributes:
        if pair.key == names.BLOCK_DTYPE:
            pair.value.string_value = "<f8 extra;<u2 rank;<i4 seq;<u2 group;<f8 bytes"
    (block,) = decode_logs("t", request.SerializeToString())
    assert isinstance(block, Block)
    assert block.rows.dtype == COLLECTIVES
    assert block.rows["rank"].tolist() == [1, 2]
    assert block.rows["seq"].tolist() == [7, 8]
    assert block.rows["peer"].tolist() == [-1, -1]
    assert block.rows["done_ns"].tolist() == [0, 0]
    # A float cannot stand for a count of bytes: unknown, not truncated.
    assert block.rows["bytes"].tolist() == [-1, -1]


def test_more_phases_than_we_know_are_cut_and_fewer_filled() -> None:
    rows = np.zeros(1, STEPS)
    rows["phase_ns"][0] = np.arange(1, rows["phase_ns"].shape[1] + 1)
    block = Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=rows)
    for width in (5, 14):
        columns = [(n, STEPS[n]) if n != "phase_ns" else (n, "<i8", (width,)) for n in STEPS.names or ()]
        written = np.zeros(1, np.dtype(columns))
        written["phase_ns"] = np.arange(1, width + 1)
        request = edit(encode_payloads([block]))
        record = request.resource_logs[0].scope_logs[0].log_records[0]
        record.body.bytes_value = written.tobytes()
        for pair in record.attributes:
            if pair.key == names.BLOCK_DTYPE:
                pair.value.string_value = pair.value.string_value.replace("[11]", f"[{width}]")
        (decoded,) = decode_logs("t", request.SerializeToString())
        assert isinstance(decoded, Block)
        expected = [*range(1, min(width, 11) + 1), *[0] * (11 - min(width, 11))]
        assert decoded.rows["phase_ns"][0].tolist() == expected


def test_numbers_that_a_later_release_appended_to_an_enum_read_as_unknown() -> None:
    block = make_block(2)
    block.rows["op"] = [1, 200]
    block.rows["phase"] = [3, 77]
    (decoded,) = decode_logs("t", encode_payloads([block]))
    assert isinstance(decoded, Block)
    assert decoded.rows["op"].tolist() == [1, 0]
    assert decoded.rows["phase"].tolist() == [3, 9]


def test_a_rank_beyond_any_job_is_broken() -> None:
    block = make_block(1)
    block.rows["rank"] = 0xFFFFFFFF
    (broken,) = decode_logs("t", encode_payloads([block]))
    assert isinstance(broken, Broken)


def test_large_blocks_are_split_and_lose_no_row() -> None:
    block = make_block(5000)
    out = decode_logs("t", encode_payloads([block]))
    assert len(out) > 1
    rows = []
    for piece in out:
        assert isinstance(piece, Block)
        assert piece.rows.nbytes <= MAX_BLOCK_BYTES
        rows.append(piece.rows)
    assert np.concatenate(rows).tobytes() == block.rows.tobytes()


def test_batches_stay_below_the_brokers_limit_and_keep_the_order() -> None:
    blocks_in = [replace(make_block(1000), time_ns=i) for i in range(40)]
    messages = encode_batches(blocks_in, limit_bytes=200_000)
    assert len(messages) > 1
    assert all(len(message) < 210_000 for message in messages)
    times = [p.time_ns for message in messages for p in decode_logs("t", message) if isinstance(p, Block)]
    assert times == list(range(40))


def test_identities_that_differ_get_resources_of_their_own_and_order_is_kept() -> None:
    first = Event(name=EventName.RANK_STOPPED, identity=IDENTITY, time_ns=1)
    second = Event(name=EventName.RANK_STOPPED, identity=replace(IDENTITY, rank=3), time_ns=2)
    value = encode_payloads([first, second, first])
    assert len(edit(value).resource_logs) == 3
    assert decode_logs("t", value) == [first, second, first]


def test_events_of_other_software_and_later_releases_are_passed_over() -> None:
    request = edit(encode_payloads([Event(name=EventName.RANK_STOPPED, identity=IDENTITY, time_ns=1)]))
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    record.event_name = "whichrank.rank.teleported"
    request.resource_logs[0].scope_logs[0].log_records.add().body.string_value = "a plain log line"
    assert decode_logs("t", request.SerializeToString()) == []


def test_an_attribute_of_another_type_is_absent_and_a_required_one_breaks_the_record() -> None:
    good = Event(
        name=EventName.RANK_EXCEPTION,
        identity=IDENTITY,
        time_ns=1,
        attributes={"type": "ValueError", "message": "m", "line": "not a number", "step": True},
    )
    (event,) = decode_logs("t", encode_payloads([good]))
    assert isinstance(event, Event)
    assert dict(event.attributes) == {"type": "ValueError", "message": "m"}
    bad = replace(good, attributes={"type": "ValueError"})
    (broken,) = decode_logs("t", encode_payloads([bad]))
    assert isinstance(broken, Broken)
    assert "exception.message" in broken.reason


def test_numbers_that_would_size_somebodys_memory_are_bounded() -> None:
    event = Event(
        name=EventName.JOB_STARTED,
        identity=replace(IDENTITY, rank=1 << 40),
        time_ns=1,
        attributes={"world_size": 1 << 40, "rank": -5, "pid": 7},
    )
    (decoded,) = decode_logs("t", encode_payloads([event]))
    assert isinstance(decoded, Event)
    assert decoded.identity.rank == -1
    assert dict(decoded.attributes) == {"pid": 7}
    group = replace(event, name=EventName.GROUP_DEFINED, attributes={"uid": "u", "ranks": "0-99999999"})
    (broken,) = decode_logs("t", encode_payloads([group]))
    assert isinstance(broken, Broken)


def test_text_that_utf8_cannot_hold_is_replaced_not_refused() -> None:
    event = Event(
        name=EventName.RANK_STOPPED, identity=IDENTITY, time_ns=1, attributes={"file": "caf\udce9.py", "big": 1 << 63}
    )
    (decoded,) = decode_logs("t", encode_payloads([event]))
    assert isinstance(decoded, Event)
    assert decoded.attributes == {"file": "caf?.py", "big": str(1 << 63)}


def test_numpy_scalars_are_plain_numbers_on_the_wire() -> None:
    event = Event(
        name=EventName.RANK_STOPPED,
        identity=IDENTITY,
        time_ns=1,
        attributes={"step": np.int64(4), "x": np.float64(0.5), "y": np.bool_(True)},
    )
    (decoded,) = decode_logs("t", encode_payloads([event]))
    assert isinstance(decoded, Event)
    assert dict(decoded.attributes) == {"step": 4, "x": 0.5, "y": True}


def test_incident_events_carry_what_a_log_search_needs() -> None:
    document = {
        "id": "i1",
        "revision": 2,
        "change": "updated",
        "state": "open",
        "severity": "page",
        "bucket": "communication_hang",
        "kind": "rank_not_entered",
        "scope": "rank",
        "cluster": "c",
        "job": {"id": "j", "run": "r", "attempt": "a"},
        "suspects": [{"rank": 2, "node": "n1", "gpu": None}],
        "confidence": 0.9,
        "times": {"detected": 12.5},
    }
    request = edit(encode_payloads([Incident(document=document)]))
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    found = {pair.key: pair.value for pair in record.attributes}
    assert record.event_name == "whichrank.incident.updated"
    assert record.severity_text == "PAGE"
    assert record.time_unix_nano == 12_500_000_000
    assert found[names.SUSPECT_RANK].int_value == 2
    assert found[names.INCIDENT_KIND].string_value == "rank_not_entered"
    assert names.SUSPECT_GPU not in found
    resource = {pair.key: pair.value.string_value for pair in request.resource_logs[0].resource.attributes}
    assert resource[names.JOB_ID] == "j"


def test_copies_for_people_are_passed_over_where_they_are_not_wanted() -> None:
    event = Event(name=EventName.RANK_CONTINUED, identity=Identity(job="j", rank=1), time_ns=5)
    copy, own = encode_payloads([event], is_copy=True), encode_payloads([event])
    assert decode_logs("t", copy) == decode_logs("t", own) == [event]
    assert decode_logs("t", copy, with_copies=False) == []
    assert decode_logs("t", own, with_copies=False) == [event]
