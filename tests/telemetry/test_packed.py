"""Packed flushes: what goes in comes out, in C as in Python, whatever is done to the bytes; also of other releases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.telemetry.payload_strategies import blocks, events
from whichrank.telemetry import packed_rows
from whichrank.telemetry._packed_rows import unpack  # built wherever tests run
from whichrank.telemetry.block import BlockError, unknown_rows
from whichrank.telemetry.otlp import decode_logs, decode_with_protobuf, encode_batches, encode_payloads
from whichrank.telemetry.otlp_redaction import RequestRedactor
from whichrank.telemetry.otlp_wire import sint, varint
from whichrank.telemetry.packed_flush import (
    PACKED,
    Packing,
    TaughtList,
    is_reference,
    list_referred,
    read_packed,
    referred,
    referred_list,
    taught_list,
    uid_of_list,
    write_packed,
)
from whichrank.telemetry.packed_rows import CHAINED, LAYOUTS, ZEROS, fits, pack_rows, unpack_by_columns
from whichrank.telemetry.records import Block, Broken, Event, Group, Identity
from whichrank.telemetry.tables import GROUP_PROGRESS, PROGRESS, STEPS, TABLES
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName

IDENTITY = Identity(cluster="c", job="job", attempt="a", node="node-1", owner="1001")
GROUPS = tuple(Group(uid=f"{number:016x}", name=str(number), ranks="0-7", size=8) for number in (7, 3))
LIMIT = 1 << 16
#: A flush as this release writes it: every later one reads it.
GOLDEN = bytes.fromhex(
    "010902000000000000000700000000000000030529040210010000010c010000010a00000000000000000000000000000000"
    "000000000000000000220000042804011101000002e400000000000000000000000000000000000000000000000000000000"
    "00000000"
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[EventName, np.ndarray]:
    """Rows of anything, or of few different bytes, as real ones are; ranks in their order, or none."""
    name = draw(st.sampled_from(list(TABLES)))
    dtype = TABLES[name]
    count = draw(st.integers(1, 40))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    raw = random.integers(0, 256, (count, dtype.itemsize), dtype=np.uint8)
    raw[:, random.random(dtype.itemsize) < draw(st.sampled_from((0.0, 0.8, 1.0)))] = 0
    rows = raw.reshape(-1).view(dtype)
    if draw(st.booleans()):
        rows["rank"] = np.arange(count) // draw(st.integers(1, 4))
    if "spare" in (dtype.names or ()):
        rows["spare"] = 0
    return name, rows


@settings(max_examples=300, deadline=None)
@given(tables())
def test_rows_come_out_as_they_went_in(table: tuple[EventName, np.ndarray]) -> None:
    name, rows = table
    packed = pack_rows(name, rows)
    for read in (unpack_by_columns, unpack):
        assert read(packed, *LAYOUTS[name], LIMIT) == rows.tobytes()


@settings(max_examples=400, deadline=None)
@given(tables(), st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=4), st.floats(0, 1))
def test_whatever_is_done_to_the_bytes_both_say_the_same(
    table: tuple[EventName, np.ndarray], changes: list[tuple[float, int]], kept: float
) -> None:
    name, rows = table
    packed = bytearray(pack_rows(name, rows))
    for place, value in changes:
        packed[int(place * len(packed))] = value
    cut = bytes(packed[: int(kept * len(packed)) + 1])
    assert unpack_by_columns(cut, *LAYOUTS[name], 1000) == unpack(cut, *LAYOUTS[name], 1000)


def test_alike_rows_take_few_bytes() -> None:
    rows = np.zeros(24, GROUP_PROGRESS)
    rows["rank"], rows["group"] = 800 + np.arange(24) // 3, np.arange(24) % 3
    rows["bytes"] = np.array([8, 2_000_000_000, 134_217_728])[np.arange(24) % 3]
    assert len(pack_rows(EventName.BLOCK_GROUP_PROGRESS, rows)) < 100


def test_all_columns_are_told() -> None:
    for name, dtype in TABLES.items():
        told = {word.partition(":")[0] for word in packed_rows._ORDER[name].split()}  # noqa: SLF001
        assert told == {column for column in dtype.names or () if column != "spare"}
        assert len(LAYOUTS[name][0]) // 3 == sum(
            int(np.prod(dtype[column].shape)) for column in dtype.names or () if column != "spare"
        )


def test_columns_of_a_newer_release_are_passed_over_and_those_of_an_older_one_unknown() -> None:
    rows = np.zeros(3, PROGRESS)
    rows["rank"], rows["in_io"] = (1, 2, 3), 1
    packed = pack_rows(EventName.BLOCK_PROGRESS, rows)
    count, period, columns = packed[:3]
    newer = bytes((count, period, columns + 2)) + packed[3:] + b"\x00\x0a" + b"\x01\x06\x00\x02\x24"
    assert unpack(newer, *LAYOUTS[EventName.BLOCK_PROGRESS], LIMIT) == rows.tobytes()
    older = bytes((count, period, columns - 1)) + packed[3:-2]
    read = unpack(older, *LAYOUTS[EventName.BLOCK_PROGRESS], LIMIT)
    assert read is not None
    found = np.frombuffer(read, PROGRESS)
    unknown = unknown_rows(PROGRESS, 1)
    assert found["in_io"].tolist() == [int(unknown["in_io"][0])] * 3
    assert found["rank"].tolist() == [1, 2, 3]


def test_what_is_read_is_bounded_by_what_came() -> None:
    rows = np.zeros(50_000, GROUP_PROGRESS)
    packed = pack_rows(EventName.BLOCK_GROUP_PROGRESS, rows)
    assert not fits(len(rows), len(packed))
    with pytest.raises(BlockError, match="no packed rows"):
        read_packed(bytes((1, 0, 0, 5)) + varint(len(packed)) + packed)


# --- flushes ----------------------------------------------------------------------------------------------------------
def flush(count: int = 6) -> list[Block]:
    of_groups: np.ndarray = np.zeros(count, GROUP_PROGRESS)
    of_groups["rank"], of_groups["group"], of_groups["open_age_ns"] = np.arange(count) // 2, np.arange(count) % 2, 17
    of_ranks: np.ndarray = np.zeros(count, PROGRESS)
    of_ranks["rank"] = np.arange(count)
    tables: tuple[tuple[EventName, np.ndarray, tuple[Group, ...]], ...] = (
        (EventName.BLOCK_GROUP_PROGRESS, of_groups, GROUPS),
        (EventName.BLOCK_PROGRESS, of_ranks, ()),
    )
    return [
        Block(name=name, identity=IDENTITY, rows=rows, groups=groups, clock_offset_ns=-5, time_ns=9)
        for name, rows, groups in tables
    ]


def test_what_this_release_has_written_is_read() -> None:
    found = read_packed(GOLDEN)
    assert (found.clock_offset_ns, found.uids) == (-5, tuple(group.uid for group in GROUPS))
    assert list(found.tables) == [(block.name, block.rows.tobytes()) for block in flush(4)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(blocks(), events()), max_size=5))
def test_packed_or_not_the_same_is_read(payloads: list[Block | Event]) -> None:
    plain, packed = (decode_logs("t", encode_payloads(payloads, packing=how)) for how in (Packing.NONE, Packing.WHOLE))
    assert [type(each) for each in plain] == [type(each) for each in packed]
    for left, right in zip(plain, packed, strict=True):
        if isinstance(left, Block) and isinstance(right, Block):
            assert without_spare(left) == without_spare(right)
            assert left.identity == right.identity
            assert [left.groups[n] for n in groups_in(left)] == [right.groups[n] for n in groups_in(right)]
        else:
            assert left == right


def without_spare(block: Block) -> list[bytes]:
    names = [name for name in block.rows.dtype.names or () if name not in ("spare", "group")]
    return [block.rows[name].tobytes() for name in names]


def groups_in(block: Block) -> list[int]:
    return block.rows["group"].tolist() if "group" in (block.rows.dtype.names or ()) else []


def test_a_flush_is_one_record_with_its_groups_once() -> None:
    told = flush()
    for decode in (decode_logs, lambda topic, value: decode_with_protobuf(topic, value, True)):
        value = encode_payloads(told, packing=Packing.WHOLE)
        assert value.count(PACKED.encode()) == value.count(b"whichrank.block.groups") == 1
        found = [each for each in decode("t", value) if isinstance(each, Block)]
        assert [block.name for block in found] == [block.name for block in told]
        assert found[0].groups == GROUPS
        assert found[0].rows.tobytes() == told[0].rows.tobytes()
        assert (found[0].clock_offset_ns, found[0].time_ns, found[1].groups) == (-5, 9, ())


def test_uids_alone_stand_for_groups_that_are_known() -> None:
    value = encode_payloads(flush(), packing=Packing.UIDS)
    assert len(value) < len(encode_payloads(flush(), packing=Packing.WHOLE))
    (first, _), (again, _) = decode_logs("t", value), decode_logs("t", value)
    assert isinstance(first, Block)
    assert isinstance(again, Block)
    assert [group.uid for group in first.groups] == [group.uid for group in GROUPS]
    assert all(map(is_reference, first.groups))
    assert first.groups is again.groups, "by which operators remember where groups are"


def test_one_uid_stands_for_a_list_that_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lists: set[TaughtList] = set()
    (first, second, third) = (encode_payloads(flush(), packing=Packing.UIDS, lists=lists) for _ in range(3))
    assert len(first) - len(second) == 8 * (len(GROUPS) - 1)
    assert second == third
    for c in (True, False):
        if not c:
            monkeypatch.setattr("whichrank.telemetry.packed_flush._unpack_flush", None)
        blocks = [each for each in decode_logs("t", second) if isinstance(each, Block)]
        assert list_referred(blocks[0].groups) == uid_of_list(GROUPS)
        assert [block.rows.tobytes() for block in blocks] == [block.rows.tobytes() for block in flush()]
        assert blocks[0].groups is referred_list(uid_of_list(GROUPS))
        packed = write_packed(flush(), Packing.UIDS, {taught_list("another", GROUPS)})
        assert packed is not None
        assert read_packed(packed[0]).groups == referred(tuple(group.uid for group in GROUPS))


def test_a_list_has_one_uid() -> None:
    packed = write_packed(flush(), Packing.UIDS, {taught_list(flush()[0].identity.attempt, GROUPS)})
    assert packed is not None
    body, told_with_it = packed
    assert not told_with_it
    at = body.index(b"\x01" + bytes.fromhex(uid_of_list(GROUPS)))
    with pytest.raises(BlockError, match="2 uids are not one"):
        read_packed(body[:at] + b"\x02" + bytes(8) + body[at + 1 :])


def test_uids_of_another_sort_are_told_whole() -> None:
    told = [replace(block, groups=(replace(GROUPS[0], uid="x"), GROUPS[1])) for block in flush()[:1]]
    (found,) = decode_logs("t", encode_payloads(told, packing=Packing.UIDS))
    assert isinstance(found, Block)
    assert found.groups == told[0].groups


def test_a_table_of_a_newer_release_is_passed_over() -> None:
    packed = read_packed(bytes((1,)) + sint(-7) + varint(0) + bytes((200,)) + varint(3) + b"abc")
    assert (packed.clock_offset_ns, list(packed.tables)) == (-7, [])


def test_without_c_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with_c = read_packed(GOLDEN)
    cut = [GOLDEN[:size] for size in range(len(GOLDEN))]
    refused = [is_refused(each) for each in cut]
    monkeypatch.setattr("whichrank.telemetry.packed_flush._unpack_flush", None)
    assert read_packed(GOLDEN) == with_c
    assert [is_refused(each) for each in cut] == refused


def is_refused(body: bytes) -> bool:
    try:
        read_packed(body)
    except BlockError:
        return True
    return False


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x01\x00\xff\xff\x7f", b"\x01\x00\x00\x04\x09abc", b"\x01\x00\x01a"])
def test_a_damaged_flush_is_one_dead_letter(body: bytes) -> None:
    good = encode_payloads(flush(), packing=Packing.WHOLE)
    with pytest.raises(BlockError):
        read_packed(body)
    at = good.rindex(b"\x01\x09")  # version and offset
    (broken,) = decode_logs("t", good[:at] + b"\x07" + good[at + 1 :])
    assert isinstance(broken, Broken)
    assert "version 7" in broken.reason


def test_a_large_flush_is_several_messages() -> None:
    found = [
        payload
        for value in encode_batches(flush(20_000), 200_000, packing=Packing.WHOLE)
        for payload in decode_logs("t", value)
    ]
    ranks = [
        block.rows["rank"] for block in found if isinstance(block, Block) and block.name is EventName.BLOCK_PROGRESS
    ]
    assert np.concatenate(ranks).tolist() == list(range(20_000))


@pytest.mark.parametrize(
    "identity", [IDENTITY, replace(IDENTITY, job="a\nb"), replace(IDENTITY, run="x" * 1500), Identity()]
)
def test_who_speaks_is_told_in_one_text_or_as_usual(identity: Identity) -> None:
    told = [replace(block, identity=identity) for block in flush()]
    value = encode_payloads(told, packing=Packing.UIDS)
    assert (b"whichrank.who" in value) == (identity in (IDENTITY, Identity()))
    assert RequestRedactor().redact(TOPIC_BLOCKS, value) == value
    for decode in (decode_logs, lambda topic, value: decode_with_protobuf(topic, value, True)):
        assert {block.identity for block in decode("t", value) if isinstance(block, Block)} == {identity}


def test_the_gate_does_not_read_a_secret_into_two_names() -> None:
    identity = replace(IDENTITY, run="password=", job="hunter2hunter2")
    value = encode_payloads([replace(block, identity=identity) for block in flush()], packing=Packing.UIDS)
    (found, _) = decode_logs("t", RequestRedactor().redact(TOPIC_BLOCKS, value))
    assert isinstance(found, Block)
    assert found.identity == identity


def test_columns_of_zeros_take_a_byte_together_and_coarse_ones_no_low_bits() -> None:
    steps = np.zeros(8, STEPS)
    steps["rank"], steps["end_ns"] = 12_000 + np.arange(8), (1 << 60) + (np.arange(8) << 40)
    packed = pack_rows(EventName.BLOCK_STEPS, steps)
    assert len(packed) < 30
    for read in (unpack_by_columns, unpack):
        assert read(packed, *LAYOUTS[EventName.BLOCK_STEPS], LIMIT) == steps.tobytes()
        for cut in range(len(packed)):
            assert read(packed[:cut], *LAYOUTS[EventName.BLOCK_STEPS], LIMIT) is None
        # More columns of zeros than there are, and a shift that no word has.
        assert read(bytes((1, 1, 2, ZEROS | 2)), *LAYOUTS[EventName.BLOCK_STEPS], LIMIT) is None
        assert read(bytes((1, 1, 1, CHAINED, 64, 2)), *LAYOUTS[EventName.BLOCK_STEPS], LIMIT) is None
