"""Flushes of a large job's nodes are joined and taken apart again without a change, and a shard goes no further."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.processors.flink.local_stages import DictState
from whichrank.processors.flink.intake import Intake
from whichrank.processors.flink.joined_flushes import CameFlush, read_joined, write_joined
from whichrank.processors.flink.keyed_rows import ShardRows
from whichrank.processors.flink.known_groups import AGAIN_NS, KnownGroups
from whichrank.processors.flink.node_range import NodeRange
from whichrank.processors.flink.stage_elements import (
    GRAIN_MS,
    PHASE_MESSAGE,
    Element,
    ElementSort,
    Stage,
    StreamPlace,
    wake_of,
    whole_until,
)
from whichrank.simulator.clock import START_UNIX_NS
from whichrank.telemetry.block import unknown_rows
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.packed_flush import Packing, referred_list
from whichrank.telemetry.records import Block, Event, Flush, Group, Identity
from whichrank.telemetry.tables import GROUP_PROGRESS, PROGRESS, TABLES
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import Message

SECOND_NS, MILLISECOND_NS = 1_000_000_000, 1_000_000
WORLD = Group(uid="00000000000000a1", name="world", ranks="0-15", size=16, is_default=True)
PAIR = Group(uid="00000000000000a2", name="pair", desc="mesh_tp", ranks="0-1", size=2, timeout_s=30.0)


def known_lists(state: DictState) -> tuple[ShardRows, KnownGroups]:
    rows = ShardRows(state)
    return rows, KnownGroups(rows.open_table(("runner", "", "groups")))


def flush_of(node: int, tables: Sequence[tuple[EventName, bytes]], groups: tuple[Group, ...] = ()) -> CameFlush:
    identity = Identity(cluster="c", run="r", job="j", attempt="a", node=f"node-{node}", owner="7")
    flush = Flush(identity=identity, tables=tuple(tables), groups=groups, clock_offset_ns=-node, time_ns=9)
    return CameFlush(stamp_ns=5 + node, topic="t", partition=2, offset=1 << 40, flush=flush)


def facts(came: CameFlush) -> tuple[object, ...]:
    flush = came.flush
    return (
        (came.stamp_ns, came.topic, came.partition, came.offset, flush.identity, flush.groups),
        (flush.tables, flush.clock_offset_ns, flush.time_ns),
    )


@given(some.lists(some.tuples(some.sampled_from(sorted(TABLES)), some.integers(0, 5), some.integers(0, 1 << 31))))
def test_flushes_are_read_as_they_were_written(given: list[tuple[EventName, int, int]]) -> None:
    """Whatever bytes the rows are: the least and the largest numbers of each type among them."""
    tables = [(name, np.random.default_rng(seed).bytes(count * TABLES[name].itemsize)) for name, count, seed in given]
    lists = ((), (WORLD,), (WORLD, PAIR), referred_list("00ff00ff00ff00ff"))
    told = [flush_of(node, tables[node:], lists[node % 4]) for node in range(max(1, len(tables)))]
    _, known = known_lists(DictState())
    read = read_joined(write_joined(told, lambda digest, stamp_ns: False), known)
    assert [facts(each) for each in read] == [facts(each) for each in told]


def test_alike_rows_are_few_bytes() -> None:
    rows = np.zeros(80, PROGRESS)
    rows["rank"], rows["pid"], rows["step"] = np.arange(80), 4_000_000_000, 1 << 40
    told = [flush_of(node, [(EventName.BLOCK_PROGRESS, rows.tobytes())]) for node in range(100)]
    assert len(write_joined(told, lambda digest, stamp_ns: True)) < 100 * rows.nbytes / 20


def test_columns_of_another_release_are_unknown_or_passed_over() -> None:
    rows = np.zeros(2, PROGRESS)
    rows["rank"], rows["in_io"] = (1, 2), (0, 1)
    told = [flush_of(0, [(EventName.BLOCK_PROGRESS, rows.tobytes())])]
    line, _, body = write_joined(told, lambda digest, stamp_ns: False).partition(b"\n")
    _, known = known_lists(DictState())
    for columns_more, of_body in ((-1, body[:-2]), (1, body + b"\x07\x08")):
        head = json.loads(line)
        columns = head[-1][0][2]
        columns[:] = columns[:-1] if columns_more < 0 else [*columns, [3, 1]]
        (came,) = read_joined(json.dumps(head).encode() + b"\n" + of_body, known)
        read = np.frombuffer(came.flush.tables[0][1], PROGRESS)
        assert read["rank"].tolist() == [1, 2]
        assert read["in_io"].tolist() == ([0, 1] if columns_more > 0 else unknown_rows(PROGRESS, 2)["in_io"].tolist())
    with pytest.raises((ValueError, IndexError)):
        read_joined(line + b"\n" + body[: len(body) // 2], known)


def message_of(node: int, stamp_ns: int, groups: tuple[Group, ...] = (WORLD, PAIR), job: str = "j") -> bytes:
    """One packed flush of a node's two ranks."""
    identity = Identity(cluster="c", run=job, job=job, attempt="a", node=f"node-{node}", owner="7")
    progress, of_groups = np.zeros(2, PROGRESS), np.zeros(2 * len(groups), GROUP_PROGRESS)
    progress["rank"] = 2 * node, 2 * node + 1
    progress["read_ns"] = stamp_ns
    of_groups["rank"], of_groups["group"] = 2 * node, np.arange(2 * len(groups)) % len(groups)
    blocks = [
        Block(name=EventName.BLOCK_PROGRESS, identity=identity, rows=progress, time_ns=stamp_ns),
        Block(name=EventName.BLOCK_GROUP_PROGRESS, identity=identity, rows=of_groups, groups=groups, time_ns=stamp_ns),
    ]
    return encode_payloads(blocks, packing=Packing.WHOLE)


def taken_in(intake: Intake, value: bytes, stamp_ns: int, offset: int) -> list[Element]:
    message = Message(topic=TOPIC_BLOCKS, key="j", value=value, position=offset, stamp_ns=stamp_ns, place=(0, offset))
    return [each for each in intake.take(message) if isinstance(each, Element) and each.stage is not Stage.IDLENESS]


def test_a_range_joins_what_came_within_a_grain_and_tells_a_group_once_a_minute() -> None:
    intake, state = Intake((), print), DictState()
    rows, known = known_lists(DictState())
    node_range, told = NodeRange("0", state, print), []
    at_ms = [100, 150, 250, AGAIN_NS // MILLISECOND_NS + 300]
    for offset, ms in enumerate(at_ms):
        stamp_ns = START_UNIX_NS + ms * MILLISECOND_NS
        (element,) = taken_in(intake, message_of(offset, stamp_ns), stamp_ns, offset)
        assert element.stage is Stage.RANGES
        node_range.take(element)
        node_range = NodeRange("0", state, print) if offset == 1 else node_range  # nothing is lost by that
    first_ms = START_UNIX_NS // MILLISECOND_NS
    assert node_range.wake_ms() == first_ms + 100
    for until_ms in (200, 400, at_ms[-1] + GRAIN_MS):
        told += node_range.advance(whole_until(first_ms + until_ms))
    assert not state
    assert node_range.wake_ms() is None
    records = [each for each in told if isinstance(each, Element)]
    assert [each.sort for each in records] == [ElementSort.JOINED] * 3
    assert [b'"world"' in each.value for each in records] == [True, False, True]
    read = [read_joined(each.value, known) for each in records]
    assert [[each.flush.identity.node for each in those] for those in read] == [
        ["node-0", "node-1"],
        ["node-2"],
        ["node-3"],
    ]
    whole = decode_logs(TOPIC_BLOCKS, message_of(2, START_UNIX_NS + 250 * MILLISECOND_NS), with_flushes=True)[0]
    assert isinstance(whole, Flush)
    assert (read[1][0].flush.tables, read[1][0].flush.groups) == (whole.tables, whole.groups)
    assert read[1][0].flush.groups is read[0][0].flush.groups, "the operator remembers lists as objects"
    rows.flush()


def test_what_a_shard_knows_of_lists_outlives_a_restart() -> None:
    state = DictState()
    rows, known = known_lists(state)
    told = [flush_of(0, [], (WORLD, PAIR))]
    read_joined(write_joined(told, lambda digest, stamp_ns: False), known)
    rows.flush()
    _, again = known_lists(state)
    (read,) = read_joined(write_joined(told, lambda digest, stamp_ns: True), again)
    assert read.flush.groups == (WORLD, PAIR)


def test_flushes_of_two_jobs_that_a_collector_put_together_go_each_to_its_own() -> None:
    stamp_ns = START_UNIX_NS + SECOND_NS
    event = Event(name=EventName.RANK_EXIT, identity=Identity(cluster="c", job="k", node="n", rank=1), time_ns=stamp_ns)
    # Requests one behind the other are one request.
    both = message_of(1, stamp_ns) + message_of(2, stamp_ns, job="k") + encode_payloads([event])
    found = taken_in(Intake((), print), both, stamp_ns, 1)
    assert {each.stage for each in found} == {Stage.JOBS}
    told = [
        (type(payload).__name__, payload.identity.job)
        for each in found
        for payload in decode_logs(each.topic, each.value, with_flushes=True)
        if isinstance(payload, Flush | Event)
    ]
    assert sorted(told) == [("Event", "k"), ("Flush", "j"), ("Flush", "k")]
    assert len({each.shard for each in found}) == 2


@given(some.integers(0, 1 << 41), some.integers(0, 1 << 41))
def test_a_shard_goes_no_further_than_those_before_it_have_spoken(stamp_ms: int, watermark_ms: int) -> None:
    """At a watermark a shard has spoken of what its timers at grains' ends have let it reach."""
    has_spoken = wake_of(stamp_ms) <= watermark_ms
    assert (stamp_ms <= whole_until(watermark_ms)) == has_spoken


def test_places_in_a_record_are_those_of_the_messages() -> None:
    place = StreamPlace(START_UNIX_NS, PHASE_MESSAGE, TOPIC_BLOCKS, 3, 77, "", 1)
    element = Element(
        stage=Stage.RANGES, shard="0", sort=ElementSort.MESSAGE, place=place, topic=TOPIC_BLOCKS, key="j",
        value=message_of(1, START_UNIX_NS),
    )  # fmt: skip
    node_range = NodeRange("0", DictState(), print)
    node_range.take(element)
    (joined,) = node_range.advance(START_UNIX_NS // MILLISECOND_NS + GRAIN_MS)
    assert isinstance(joined, Element)
    assert joined.place == StreamPlace(START_UNIX_NS, PHASE_MESSAGE, TOPIC_BLOCKS, 3, 77, "ranges/0")
    _, known = known_lists(DictState())
    (came,) = read_joined(joined.value, known)
    assert (came.topic, came.partition, came.offset, came.stamp_ns) == (TOPIC_BLOCKS, 3, 77, START_UNIX_NS)
