"""Blocks of a job on many nodes are taken together, at places that follow from the records alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from tests.processors.job.synthetic_job import FOREVER, SECOND, MemoryContext, SyntheticJob, drive
from whichrank.agents.reduction.group_identity import group_uid
from whichrank.processors.job import operator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.micro_batch import FEWEST_NODES, HOLD_NS, Gathered, Gathering
from whichrank.processors.job.state.state_rows import load_job
from whichrank.processors.operator import Timer
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.packed_flush import Packing, TaughtList, groups_of, list_referred, taught_list
from whichrank.telemetry.records import Block, Event, Finding, Flush, Group, Record
from whichrank.telemetry.tables import COLLECTIVES, PROGRESS
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName, Phase

RANKS = 2 * FEWEST_NODES


def job_of(**changes: object) -> SyntheticJob:
    """Two ranks on each of so many nodes that their blocks wait for each other."""
    return SyntheticJob(ranks=RANKS, node_of=lambda rank: f"node-{rank // 2}", **changes)  # type: ignore[arg-type]


def hangs(rank: int, step: int, phase: Phase) -> float:
    return FOREVER if (rank, step, phase) == (5, 20, Phase.FORWARD) else 0


def told(context: MemoryContext) -> list[tuple[str, str, list[int], bool]]:
    return [
        (finding.key, finding.body["kind"], [suspect["rank"] for suspect in finding.body["suspects"]], finding.cleared)
        for finding in context.final().values()
    ]


def first_told_ns(context: MemoryContext) -> int:
    return next(r.stamp_ns for r in context.emitted if isinstance(r.payload, Finding) and "kind" in r.payload.body)


class Steered:
    """An operator that is given one record after the other."""

    def __init__(self) -> None:
        self.operator, self.context = JobOperator(), MemoryContext()

    def give(self, record: Record) -> None:
        self.context.now = record.stamp_ns
        self.operator.process([record], self.context)

    def look(self) -> None:
        due_ns = self.context.timers.pop("look")
        self.context.now = due_ns
        self.operator.on_timer(Timer("look", due_ns), self.context)

    @property
    def state(self) -> JobState:
        """As it was saved."""
        state = load_job(self.context.table("job"))
        assert state is not None
        return state


@pytest.fixture(scope="module")
def sound() -> list[Record]:
    return job_of(steps=10).records()


@pytest.fixture
def steered(sound: list[Record]) -> Steered:
    """Has taken all until every node was heard; then what is here was gathered."""
    steered = Steered()
    for record in sound:
        if len(steered.context.tables) and len(steered.state.nodes.offsets) == FEWEST_NODES:
            break
        steered.give(record)
    steered.look()
    assert not steered.state.gathering.due_ns
    return steered


def block_of(records: list[Record], name: EventName, node: str, stamp_ns: int) -> Record:
    found = [r for r in records if isinstance(r.payload, Block) and r.payload.name is name]
    return replace(next(r for r in found if r.payload.identity.node == node), stamp_ns=stamp_ns)  # type: ignore[union-attr]


def test_they_tell_the_same_hardly_later(monkeypatch: pytest.MonkeyPatch) -> None:
    records = job_of(steps=30, delays=[hangs]).records()
    together = drive(records)
    monkeypatch.setattr(operator, "FEWEST_NODES", RANKS)
    one_by_one = drive(records)
    assert told(together) == told(one_by_one)
    assert [ranks for _, _, ranks, _ in told(together)] == [[5]]
    assert 0 <= first_told_ns(together) - first_told_ns(one_by_one) <= HOLD_NS


def with_list(record: Record) -> Record:
    """With uids as agents make them, and a group more, which nobody is in: what is alone is no list."""
    if not isinstance(record.payload, Block) or not record.payload.groups:
        return record
    groups = [replace(group, uid=group_uid(group.uid, group.ranks, 0)) for group in record.payload.groups]
    return replace(record, payload=replace(record.payload, groups=(*groups, Group(uid=16 * "f", name="unused"))))


def packed(records: list[Record]) -> list[Record]:
    """With one flush in place of the blocks that came from a node at one stamp; what its groups are is told once."""
    together: list[Record] = []
    lists: dict[str, set[TaughtList]] = {}
    for (stamp_ns, node), group in groupby(records, lambda each: (each.stamp_ns, each.payload.identity.node)):  # type: ignore[union-attr]
        those = list(group)
        blocks = [each.payload for each in those if isinstance(each.payload, Block)]
        if len(blocks) == len(those) and len({block.groups for block in blocks if block.groups}) <= 1:
            told = lists.setdefault(node, set())
            is_told = taught_list(blocks[0].identity.attempt, groups_of(blocks)) in told
            value = encode_payloads(blocks, packing=Packing.UIDS if is_told else Packing.WHOLE, lists=told)
            (flush,) = decode_logs(TOPIC_BLOCKS, value, with_flushes=True)
            assert isinstance(flush, Flush)
            assert bool(list_referred(flush.groups)) == is_told
            assert (flush.identity.node, len(flush.tables)) == (node, len(blocks))
            together.append(replace(those[0], stamp_ns=stamp_ns, payload=flush))
        else:
            together += those
    return together


@pytest.mark.parametrize(("ranks", "stuck"), [(RANKS, 5), (4, 1)])
def test_packed_flushes_tell_what_their_blocks_do(ranks: int, stuck: int) -> None:
    """Held together, as of a large job, and one by one."""

    def hangs(rank: int, step: int, phase: Phase) -> float:
        return FOREVER if (rank, step, phase) == (stuck, 20, Phase.FORWARD) else 0

    job = SyntheticJob(ranks=ranks, node_of=lambda rank: f"node-{rank // 2}", steps=30, delays=[hangs])
    plain = [with_list(record) for record in job.records()]
    flushes = packed(plain)
    told_as_flushes = [each.payload for each in flushes if isinstance(each.payload, Flush)]
    assert len(told_as_flushes) > 20
    assert any(list_referred(flush.groups) for flush in told_as_flushes)
    of_blocks, of_flushes = drive(plain), drive(flushes)
    assert [ranks for _, _, ranks, _ in told(of_flushes)] == [[stuck]]
    assert told(of_flushes) == told(of_blocks) == told(drive(flushes, fresh_each_time=True))
    assert abs(first_told_ns(of_flushes) - first_told_ns(of_blocks)) <= HOLD_NS


def test_restarts_and_batches_change_nothing() -> None:
    records = job_of(steps=24, delays=[hangs]).records()
    once = drive(records)
    assert told(once)
    for other in (drive(records, fresh_each_time=True), drive(records, batches=[1, 7, 60, 200])):
        assert [r.stamp_ns for r in other.emitted] == [r.stamp_ns for r in once.emitted]
        assert told(other) == told(once)


def test_they_wait_for_a_moment(sound: list[Record], steered: Steered) -> None:
    now_ns = steered.context.now
    first = block_of(sound, EventName.BLOCK_PROGRESS, "node-1", now_ns + 1)
    steered.give(first)
    steered.give(block_of(sound, EventName.BLOCK_PROGRESS, "node-2", now_ns + HOLD_NS))
    assert steered.state.progress.newest_stamp_ns <= now_ns, "neither is taken yet"
    assert steered.context.timers["look"] == first.stamp_ns + HOLD_NS
    steered.look()
    assert steered.state.progress.stamps[[2, 3, 4, 5]].tolist() == [now_ns + 1] * 2 + [now_ns + HOLD_NS] * 2


def test_a_record_after_that_moment_finds_them_taken(sound: list[Record], steered: Steered) -> None:
    now_ns = steered.context.now
    steered.give(block_of(sound, EventName.BLOCK_PROGRESS, "node-1", now_ns + 1))
    steered.give(block_of(sound, EventName.BLOCK_STEPS, "node-2", now_ns + 1 + HOLD_NS))
    assert steered.state.progress.newest_stamp_ns == now_ns + 1


def test_an_event_comes_after_what_was_there_before_it(sound: list[Record], steered: Steered) -> None:
    now_ns = steered.context.now
    steered.give(block_of(sound, EventName.BLOCK_PROGRESS, "node-1", now_ns + 1))
    steered.give(event_like(sound, now_ns + 2, name=EventName.RANK_LEVEL, attributes={"level": 1, "hook_state": 0}))
    assert steered.state.progress.newest_stamp_ns == now_ns + 1


def event_like(sound: list[Record], stamp_ns: int, **changes: object) -> Record:
    """An event as the first one, of a rank on node-0 that starts."""
    started = sound[0].payload
    assert isinstance(started, Event)
    assert (started.name, started.identity.node) == (EventName.RANK_STARTED, "node-0")
    return replace(sound[0], stamp_ns=stamp_ns, payload=replace(started, **changes))  # type: ignore[arg-type]


JOINED = {"name": EventName.RANK_JOINING, "attributes": {"joined": True}}


@pytest.mark.parametrize(
    ("node", "changes", "is_held"),
    [
        ("node-1", {}, True),
        ("node-0", {}, False),
        ("node-1", {"attributes": {"pid": 1, "world_size": 2 * RANKS}}, False),
        ("node-0", JOINED, True),
        ("node-1", {"name": EventName.LAUNCH_MET, "attributes": {"token": "t"}}, False),
        ("node-1", {"name": EventName.LAUNCH_MET, "attributes": {}}, False),
    ],
)
def test_what_ranks_tell_while_they_start_leaves_flushes_held(
    sound: list[Record], steered: Steered, node: str, changes: dict[str, object], is_held: bool
) -> None:
    """node: of the flush. Not where the event may change what it means."""
    now_ns = steered.context.now
    steered.give(block_of(sound, EventName.BLOCK_PROGRESS, node, now_ns + 1))
    steered.give(event_like(sound, now_ns + 2, **changes))
    assert (steered.state.gathering.due_ns > 0) == is_held
    assert (steered.state.progress.newest_stamp_ns == now_ns + 1) != is_held


def test_a_start_in_which_something_is_found_is_taken_one_by_one(sound: list[Record], steered: Steered) -> None:
    now_ns = steered.context.now
    left = {"name": EventName.RANK_EXIT, "attributes": {"exit_code": 1}}
    steered.give(event_like(sound, now_ns + 1, **left))
    steered.give(block_of(sound, EventName.BLOCK_PROGRESS, "node-1", now_ns + 2))
    steered.give(event_like(sound, now_ns + 3, **JOINED))
    assert steered.state.progress.newest_stamp_ns == now_ns + 2


def test_a_node_that_tells_again_is_not_merged_with_itself(sound: list[Record], steered: Steered) -> None:
    now_ns = steered.context.now
    for later_ns in (1, 2):
        steered.give(block_of(sound, EventName.BLOCK_PROGRESS, "node-1", now_ns + later_ns))
    assert steered.state.progress.newest_stamp_ns == now_ns + 1
    assert steered.state.gathering.due_ns == now_ns + 2 + HOLD_NS


def test_an_attempt_begins_after_what_the_one_before_has_told(sound: list[Record], steered: Steered) -> None:
    """It counts its steps from the last checkpoint before it."""
    now_ns = steered.context.now
    last = block_of(sound, EventName.BLOCK_STEPS, "node-1", now_ns + 1)
    assert isinstance(last.payload, Block)
    rows = last.payload.rows.copy()
    rows["step"], rows["phase_ns"][:, Phase.CHECKPOINT] = 41, 1
    steered.give(replace(last, payload=replace(last.payload, rows=rows)))
    assert steered.state.checkpoints.saved_steps == 0, "it waits"
    other = job_of(steps=1, attempt="a2").records()
    steered.give(block_of(other, EventName.BLOCK_PROGRESS, "node-1", now_ns + 2))
    assert (steered.state.attempt, steered.state.checkpoints.steps_before) == ("a2", 41)


def test_a_restart_finds_what_was_gathered() -> None:
    rows, others = np.zeros(2, COLLECTIVES), np.zeros(1, PROGRESS)
    rows["rank"], others["rank"] = [3, 4], 7
    kept, read = Gathering(), Gathering()
    calls, progress = (EventName.BLOCK_COLLECTIVES, rows.tobytes()), (EventName.BLOCK_PROGRESS, others.tobytes())
    lookup = np.array([2, 9], np.uint16)
    kept.add(Gathered(node="n1", stamp_ns=SECOND, closed_ns=0, offset_ns=5, groups=lookup, tables=(calls, progress)))
    kept.add(Gathered(node="n2", stamp_ns=SECOND + 1, closed_ns=1, offset_ns=6, groups=None, tables=(progress,)))
    read.read(kept.pack())
    assert read.due_ns == kept.due_ns == SECOND + HOLD_NS
    assert read.holds("n2", (progress,))
    assert not read.holds("n2", (calls,))
    one_by_one = [(flush, table) for flush in kept.take() for table in flush.tables]
    for (one, table), other in zip(one_by_one, read.take(), strict=True):
        assert (one.node, one.stamp_ns, one.closed_ns, one.offset_ns) == (
            other.node,
            other.stamp_ns,
            other.closed_ns,
            other.offset_ns,
        )
        assert list(other.tables) == [table]
        assert (other.groups is None) == (table[0] is EventName.BLOCK_PROGRESS)
        if other.groups is not None:
            assert np.array_equal(other.groups, lookup)
    assert not read.due_ns


def test_nothing_is_left_where_nothing_was() -> None:
    read = Gathering()
    read.read(Gathering().pack())
    assert not read.due_ns
    assert read.take() == []
