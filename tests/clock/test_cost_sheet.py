"""The cost sheet's parts measure what they say: batches, series, a node at the reference load, a job made of nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kafka.record import MemoryRecords

from benchmarks.cost_sheet import FEWEST_RANKS, burst, judge, steady
from benchmarks.failing_ranks import fail
from benchmarks.metric_series import TARGET_INFO, series_of, series_of_ranks
from benchmarks.node_cost import (
    HANG_S,
    WINDOW,
    Node,
    cuts_per_s,
    first_step,
    observe,
    packing_of,
    spans_in,
    written_again,
)
from benchmarks.reference_load import COLLECTIVES_PER_STEP, STEP_S
from benchmarks.report import Report
from benchmarks.stepped_node import RANKS_PER_NODE
from benchmarks.whole_job import Sent, WholeJob, as_node
from whichrank.agents.base.settings import AgentSettings
from whichrank.evaluation.bench.producer_batches import BATCH_BYTES, ProducedBatches, Wire, batches
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.packed_flush import Packing
from whichrank.telemetry.records import Block, Event
from whichrank.telemetry.ring_layout import C_EXC_STACK_MAX, C_EXC_TEXT_MAX, parse_ranks
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.vocabulary import EventName

WORLD = 2048
GUILTY = 5

#: Of 2,048 ranks 126 were measured; the sheet asks for 100 of 8,192, and says SHORT.
MOST_WIRE_BYTES = 135.0


@pytest.fixture(scope="module")
def sound() -> Node:
    return observe(WORLD, 1)


@pytest.fixture(scope="module")
def odd() -> Node:
    return observe(WORLD, 3, (GUILTY,))


def blocks_in(node: Node, name: EventName, since_s: float, until_s: float) -> list[Block]:
    return [
        payload
        for each in node.wire.between(since_s, until_s)
        if each.topic == TOPIC_BLOCKS
        for payload in decode_logs(each.topic, each.value)
        if isinstance(payload, Block) and payload.name is name
    ]


# --- batches ----------------------------------------------------------------------------------------------------------
def published(at_s: float, value: bytes) -> ProducedBatches:
    return ProducedBatches(at_s=at_s, topic=TOPIC_BLOCKS, key="job", value=value)


def test_a_batch_holds_what_comes_within_the_linger_time_and_reads_back() -> None:
    messages = [published(at_s, b"%d" % place) for place, at_s in enumerate((1.0, 1.01, 1.015, 2.0))]
    made = list(batches(messages, 0.02))
    read = [[bytes(record.value) for record in batch] for raw in made for batch in MemoryRecords(raw)]
    assert read == [[b"0", b"1", b"2"], [b"3"]]


def test_a_batch_is_not_larger_than_the_producers_and_nothing_is_left_out() -> None:
    values = [bytes([place]) * (BATCH_BYTES // 2) for place in range(5)]
    made = list(batches([published(1.0, value) for value in values], 0.02))
    read = [[bytes(record.value) for record in batch] for raw in made for batch in MemoryRecords(raw)]
    assert [value for batch in read for value in batch] == values
    assert all(sum(map(len, batch)) <= BATCH_BYTES for batch in read)


def test_each_topic_and_key_has_batches_of_its_own() -> None:
    wire = Wire(lambda: 1.0)
    for topic, key in ((TOPIC_BLOCKS, "a"), (TOPIC_BLOCKS, "a"), (TOPIC_BLOCKS, "b"), (TOPIC_SPANS, "a")):
        wire.publish(topic, key, b"value")
    sizes = wire.sizes(0.0)
    assert sizes[TOPIC_BLOCKS].messages == 3
    assert sizes[TOPIC_BLOCKS].plain == 15
    assert sizes[TOPIC_SPANS].stored < sizes[TOPIC_BLOCKS].stored < 3 * sizes[TOPIC_SPANS].stored
    assert all(size.wire > size.stored for size in sizes.values())
    assert not wire.sizes(1.5)


def test_cuts_are_few_bytes() -> None:
    assert 0 < cuts_per_s().stored < 10_000


# --- a node -----------------------------------------------------------------------------------------------------------
def test_the_node_makes_the_reference_load(sound: Node) -> None:
    steps = sum(len(block.rows) for block in blocks_in(sound, EventName.BLOCK_STEPS, sound.plain_s, sound.end_s))
    assert steps == RANKS_PER_NODE * WINDOW
    progress = sum(len(b.rows) for b in blocks_in(sound, EventName.BLOCK_PROGRESS, sound.plain_s, sound.end_s))
    assert progress == RANKS_PER_NODE * WINDOW * STEP_S
    ops = blocks_in(sound, EventName.BLOCK_STEP_GROUPS, sound.plain_s, sound.end_s)
    counted = sum(int(block.rows["count"].sum()) for block in ops)
    assert counted == RANKS_PER_NODE * WINDOW * COLLECTIVES_PER_STEP
    assert sound.end_s - sound.plain_s == pytest.approx(WINDOW * STEP_S, abs=0.2)
    assert sound.drops == 0


def test_of_a_large_job_one_message_a_second_tells_all(sound: Node) -> None:
    told = [each for each in sound.wire.between(sound.plain_s, sound.end_s) if each.topic == TOPIC_BLOCKS]
    assert len(told) == pytest.approx(WINDOW * STEP_S, abs=1)
    payloads = [payload for each in told for payload in decode_logs(each.topic, each.value)]
    kinds = {payload.name for payload in payloads if isinstance(payload, Block | Event)}
    assert {EventName.BLOCK_STEPS, EventName.BLOCK_PROGRESS, EventName.AGENT_HEALTH} <= kinds


def test_exactly_one_step_of_the_first_window_is_told_whole(sound: Node) -> None:
    """Of other steps only ends of calls that were told as open."""
    whole, plain = (blocks_in(sound, EventName.BLOCK_COLLECTIVES, *window) for window in sound.windows)
    everything = blocks_in(sound, EventName.BLOCK_COLLECTIVES, 0.0, sound.end_s)
    opened = {call_of(row) for block in everything for row in block.rows if not row["done_ns"]}
    done = [row for block in whole for row in block.rows if row["done_ns"]]
    of_step = [row for row in done if int(row["step"]) == sound.k]
    assert len(of_step) == RANKS_PER_NODE * COLLECTIVES_PER_STEP
    late = [row for row in done if int(row["step"]) != sound.k]
    late += [row for block in plain for row in block.rows if row["done_ns"]]
    assert {call_of(row) for row in late} <= opened
    assert len({call_of(row) for row in late}) == len(late), "each once"
    assert spans_in(sound.wire.between(sound.whole_s, sound.plain_s)) > len(of_step)
    assert spans_in(sound.wire.between(sound.plain_s, sound.end_s)) == 0


def call_of(row: np.void) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("rank", "seq", "enqueued_ns"))


def test_a_mean_counts_the_whole_step_once_in_k(sound: Node) -> None:
    seconds = sound.k * STEP_S
    assert sound.mean(1.0, 0.0) == pytest.approx(1 / seconds)
    assert sound.mean(WINDOW, WINDOW) == pytest.approx(1 / STEP_S)


def test_runs_are_alike_however_busy_the_machine_is(sound: Node) -> None:
    again = observe(WORLD, 1)
    for topic, (plain, stored, _) in again.rates().items():
        assert plain == pytest.approx(sound.rates()[topic][0], rel=0.02)
        assert stored == pytest.approx(sound.rates()[topic][1], rel=0.05)


def test_series_are_those_of_metric_attributes_and_resource(sound: Node) -> None:
    metrics = [each.value for each in sound.wire.published if each.topic == TOPIC_METRICS]
    ranks = series_of_ranks(metrics)
    assert set(ranks) == set(range(RANKS_PER_NODE, 2 * RANKS_PER_NODE))
    # Histograms: of steps, of 5 phases and the one before them, of 4 pairs of group and operation. And 5 numbers.
    assert set(ranks.values()) == {1 + 6 + 4 + 5}
    assert {series.metric for series in series_of(metrics)} > {TARGET_INFO, "whichrank.agent.ranks"}
    assert series_of(metrics + metrics) == series_of(metrics)


def test_without_members_leaves_all_but_the_lists(sound: Node) -> None:
    each = next(e for e in sound.wire.between(sound.plain_s) if packing_of(e) is Packing.WHOLE)
    before, after = (
        decode_logs(each.topic, each.value),
        decode_logs(each.topic, written_again(each, members=False).value),
    )
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        if isinstance(old, Block):
            assert isinstance(new, Block)
            assert old.rows.tobytes() == new.rows.tobytes()
            assert not any(group.ranks for group in new.groups)
            assert [group.uid for group in old.groups] == [group.uid for group in new.groups]


def test_the_first_step_has_the_definitions_of_all_groups() -> None:
    first = first_step(WORLD, 1)
    members = (
        2 * 8 * (WORLD // RANKS_PER_NODE) * 4
    )  # on two topics, of eight groups, numbers of three or four characters
    assert 0.9 * members < first.plain < 10 * members


def test_lists_of_members_are_no_large_part_of_a_block(sound: Node) -> None:
    blocks = sound.rates()[TOPIC_BLOCKS][1]
    assert 0 < sound.member_lists() < 0.3 * blocks


def test_a_node_that_fails_tells_all_that_its_rings_hold() -> None:
    failure = fail(WORLD, 1, AgentSettings(tell_people=True))
    assert failure.events[EventName.RANK_EXCEPTION] == RANKS_PER_NODE
    assert failure.events[EventName.RANK_EXIT] == RANKS_PER_NODE
    assert failure.events[EventName.RANK_STACK] >= 2
    assert failure.dropped == 0
    logs = failure.sizes[TOPIC_LOGS]
    assert logs.plain > RANKS_PER_NODE * (C_EXC_TEXT_MAX + C_EXC_STACK_MAX - 200)
    report = Report("test")
    burst(report, WORLD, failure, AgentSettings())
    assert all(row.ok for row in report.rows), [row for row in report.rows if not row.ok]


# --- a job ------------------------------------------------------------------------------------------------------------
def test_one_node_as_another_has_its_ranks_and_groups(sound: Node, odd: Node) -> None:
    """What node 1 sent, as node 3, is what node 3 sent: the two were run apart."""
    theirs, ours = (
        [
            payload
            for at_s, _, payloads, _ in Sent.of(node.node, node.wire.published).messages
            if node.whole_s <= at_s < node.plain_s
            for payload in payloads
            if isinstance(payload, Block) and payload.name is EventName.BLOCK_STEP_GROUPS
        ]
        for node in (odd, sound)
    )
    assert len(ours) == len(theirs) > 0
    for block, other in zip(ours, theirs, strict=True):
        moved = as_node(block, 1, 3)
        assert isinstance(moved, Block)
        assert moved.rows["rank"].tolist() == other.rows["rank"].tolist()
        assert moved.rows["last_seq"].tolist() == other.rows["last_seq"].tolist()
        assert {(group.uid, group.ranks) for group in moved.groups} == {(g.uid, g.ranks) for g in other.groups}
        assert moved.identity.node == other.identity.node
        for group in moved.groups:
            assert len(parse_ranks(group.ranks)) == group.size


def test_events_of_one_node_as_another_keep_what_they_say(sound: Node) -> None:
    events = [
        payload
        for _, _, payloads, _ in Sent.of(1, sound.wire.published).messages
        for payload in payloads
        if isinstance(payload, Event)
    ]
    moved = [as_node(event, 1, 2) for event in events]
    assert {event.name for event in events} >= {EventName.RANK_STARTED, EventName.GROUP_DEFINED, EventName.LAUNCH_MET}
    for event, other in zip(events, moved, strict=True):
        assert isinstance(other, Event)
        assert other.identity.attempt != event.identity.attempt
        assert set(other.attributes) == set(event.attributes)
    assert decode_logs(TOPIC_BLOCKS, encode_payloads(moved))


def test_the_judge_is_fed_in_order_and_finds_the_hang(sound: Node, odd: Node, tmp_path: Path) -> None:
    job = WholeJob(tmp_path, Sent.of(1, sound.wire.published), 6, [Sent.of(3, odd.wire.published)])
    fed = job.feed(sound.end_s)
    assert not job.incidents
    sent = Sent.of(1, sound.wire.published).messages
    assert fed.messages == pytest.approx(6 * sum(at_s < sound.end_s for at_s, *_ in sent), abs=12)
    assert fed.cpu_s > 0
    assert job.state_bytes > 0
    assert job.state_rows > 0
    hung = job.feed(sound.end_s + STEP_S + HANG_S)
    assert hung.load_s == pytest.approx(STEP_S + HANG_S)
    job.close()
    assert {document["id"] for document in job.incidents} == {job.incidents[0]["id"]}
    assert job.incidents[-1]["kind"] == "rank_not_entered"
    assert [suspect["rank"] for suspect in job.incidents[-1]["suspects"]] == [3 * RANKS_PER_NODE + GUILTY]
    assert spans_in(job.wire.between(sound.end_s)) > 0


# --- the sheet --------------------------------------------------------------------------------------------------------
def test_the_sheet_tells_every_line_that_was_asked_for(sound: Node) -> None:
    report = Report("test")
    steady(report, sound)
    judge(report, 2_048, FEWEST_RANKS)
    lines = "\n".join(row.name for row in report.rows)
    for words in ("replication 3", "bytes a rank and second", "active series", "spans a second", "logs as", "cores"):
        assert words in lines
    rows = {row.name: row for row in report.rows}
    cores = next(row for name, row in rows.items() if "judge's cores" in name)
    assert cores.asked is None  # a part of the ranks: no verdict
    wire = next(row for name, row in rows.items() if "bytes a rank and second" in name)
    assert float(wire.measured) < MOST_WIRE_BYTES
    assert all(row.ok for row in report.rows if row is not wire), [row for row in report.rows if not row.ok]


def test_more_bytes_than_asked_are_short(sound: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cost_sheet.ASKED_BYTES_PER_RANK_S", 1.0)
    report = Report("test")
    steady(report, sound)
    assert report.finish() == 1


def test_a_job_whose_every_step_is_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="windows"):
        observe(1024, 1)
