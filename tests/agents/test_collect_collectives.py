"""The join of begins and ends: the same rows wherever flushes fall."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.agents.base.health import AgentHealth
from whichrank.agents.reduction.collect_collectives import CollectedRows, CollectiveJoiner
from whichrank.agents.reduction.old_calls import OldCalls
from whichrank.agents.rings.ring_events import EVENT
from whichrank.telemetry.tables import NO_GROUP
from whichrank.telemetry.vocabulary import EventFlag, EventKind, Op

#: slot, kind, group row, sequence, flags, time
Step = tuple[int, EventKind, int, int, int, int]
RANK_OF = np.array([10, 11, 12], np.uint32)
GROUP_OF = np.array([[0, 1, NO_GROUP], [0, 2, NO_GROUP], [NO_GROUP] * 3], np.uint16)
SEEN = np.array([True, True, True])
EVERY = np.array([1, 1, 1])  # each step is shipped whole


def _events(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Events per ring contiguous, as a drain delivers them."""
    steps = sorted(steps, key=lambda step: step[0])
    events = np.zeros(len(steps), EVENT)
    for event, (_, kind, group, seq, flags, time_ns) in zip(events, steps, strict=True):
        event["kind"], event["group"], event["seq"], event["flags"], event["time_ns"] = kind, group, seq, flags, time_ns
        if kind is EventKind.ENQUEUE:
            event["op"], event["dtype"], event["phase"], event["step"] = Op.BROADCAST, 6, 4, 9
            event["value"], event["extra"] = 4096, 3
    return events, np.array([step[0] for step in steps], np.uint16)


def _collect(joiner: CollectiveJoiner, steps: Sequence[Step], seen: np.ndarray = SEEN) -> CollectedRows:
    events, ring = _events(steps)
    return joiner.collect(events, ring, RANK_OF, GROUP_OF, seen, EVERY)


def _joiner(limit: int = 1000) -> tuple[CollectiveJoiner, AgentHealth]:
    health = AgentHealth()
    return CollectiveJoiner(health, limit), health


def test_a_row_carries_everything_of_its_call() -> None:
    joiner, _ = _joiner()
    out = _collect(
        joiner,
        [
            (1, EventKind.ENQUEUE, 1, 5, int(EventFlag.NO_SIZE), 100),
            (1, EventKind.STARTED, 1, 5, 0, 150),
            (1, EventKind.COMPLETE, 1, 5, int(EventFlag.POLLED), 200),
        ],
    )
    (row,) = out.rows
    assert {name: row[name].item() for name in row.dtype.names} == {
        "rank": 11,
        "group": 2,
        "op": Op.BROADCAST,
        "flags": EventFlag.NO_SIZE | EventFlag.POLLED,
        "dtype": 6,
        "phase": 4,
        "spare": 0,
        "peer": 2,
        "seq": 5,
        "bytes": 4096,
        "step": 9,
        "enqueued_ns": 100,
        "started_ns": 150,
        "done_ns": 200,
    }
    assert out.first.tolist() == [True]
    assert joiner.open_rows == 0


def test_a_row_tells_since_when_its_host_waited() -> None:
    joiner, _ = _joiner()
    events, ring = _events([(1, EventKind.ENQUEUE, 1, seq, 0, 100 + seq) for seq in (5, 6)])
    joiner.collect(events, ring, RANK_OF, GROUP_OF, SEEN, EVERY)
    events, ring = _events([(1, EventKind.COMPLETE, 1, seq, 0, 200 + seq) for seq in (5, 6)])
    events["extra"] = [0, 170]
    rows = joiner.collect(events, ring, RANK_OF, GROUP_OF, SEEN, EVERY).rows
    assert rows[["started_ns", "done_ns"]].tolist() == [(0, 205), (170, 206)]


def test_an_open_row_is_sent_once_and_again_when_done() -> None:
    joiner, _ = _joiner()
    first = _collect(joiner, [(0, EventKind.ENQUEUE, 0, 1, 0, 10)])
    assert [(int(row["seq"]), int(row["done_ns"])) for row in first.rows] == [(1, 0)]
    assert len(_collect(joiner, []).rows) == 0
    second = _collect(joiner, [(0, EventKind.COMPLETE, 0, 1, 0, 50)])
    assert [(int(row["seq"]), int(row["done_ns"])) for row in second.rows] == [(1, 50)]
    assert (first.first.tolist(), second.first.tolist()) == ([True], [False])


def test_collectives_and_p2p_of_one_number_are_two_operations() -> None:
    joiner, _ = _joiner()
    p2p = int(EventFlag.P2P)
    out = _collect(
        joiner,
        [
            (0, EventKind.ENQUEUE, 0, 1, 0, 10),
            (0, EventKind.ENQUEUE, 0, 1, p2p, 11),
            (0, EventKind.COMPLETE, 0, 1, p2p, 12),
        ],
    )
    assert [(int(row["flags"]), int(row["done_ns"])) for row in out.rows] == [(0, 0), (p2p, 12)]


def test_what_cannot_be_placed_is_counted() -> None:
    joiner, health = _joiner()
    out = _collect(
        joiner,
        [
            (0, EventKind.ENQUEUE, 2, 1, 0, 10),  # a row no definition names
            (0, EventKind.ENQUEUE, 60_000, 1, 0, 10),  # a row that cannot be
            (0, EventKind.COMPLETE, 0, 99, 0, 20),  # its begin was lost
        ],
    )
    assert len(out.rows) == 0
    assert health.drops == {"rows_without_group": 2, "ends_without_begin": 1}


def test_without_completion_rows_are_sent_once_and_forgotten() -> None:
    joiner, _ = _joiner()
    out = _collect(joiner, [(0, EventKind.ENQUEUE, 0, 1, 0, 10)], np.array([False, True, True]))
    assert len(out.rows) == 1
    assert joiner.open_rows == 0


def test_open_rows_are_bounded_and_the_newest_stay() -> None:
    joiner, health = _joiner(limit=10)
    _collect(joiner, [(0, EventKind.ENQUEUE, 0, seq, 0, seq) for seq in range(1, 31)])
    assert joiner.open_rows == 10
    assert health.drops["open_rows"] == 20
    out = _collect(joiner, [(0, EventKind.COMPLETE, 0, seq, 0, 99) for seq in range(1, 31)])
    assert sorted(out.rows["seq"].tolist()) == list(range(21, 31))


def test_ends_that_will_never_come_are_given_up() -> None:
    joiner, _ = _joiner(limit=100_000)
    _collect(joiner, [(0, EventKind.ENQUEUE, 0, seq, 0, seq) for seq in range(1, 3001)])
    assert joiner.open_rows == 1025


def test_ends_of_calls_that_were_open_for_long_are_joined_in_the_order_of_the_calls() -> None:
    joiner, health = _joiner(10_000)
    many = 900  # of each ring: more than are looked through at each flush
    begins = [(slot, EventKind.ENQUEUE, 0, seq, 0, 1000 + seq) for slot in (0, 1) for seq in range(many)]
    assert len(_collect(joiner, begins).rows) == 2 * many
    ends = [(slot, EventKind.COMPLETE, 0, seq, 0, 5000 + seq) for slot in (1, 0) for seq in (7, 3)]
    new = [(1, EventKind.ENQUEUE, 0, many, 0, 4000), (1, EventKind.COMPLETE, 0, many, 0, 4100)]
    out = _collect(joiner, ends + new)
    assert list(zip(out.rows["rank"].tolist(), out.rows["seq"].tolist(), out.first.tolist(), strict=True)) == [
        (10, 3, False), (10, 7, False), (11, 3, False), (11, 7, False), (11, many, True)
    ]  # fmt: skip
    assert out.rows["done_ns"].tolist() == [5003, 5007, 5003, 5007, 4100]
    assert joiner.open_rows == 2 * many - 4
    assert not health.drops
    assert not len(_collect(joiner, ends).rows)  # they have gone
    assert health.drops["ends_without_begin"] == 4
    joiner.forget(0)
    assert joiner.open_rows == many - 2


def test_what_is_open_for_long_is_moved_only_when_much_has_come_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    joiner, _ = _joiner(100_000)
    moves: list[int] = []
    add = OldCalls.add

    def counted(self: OldCalls, rows: np.ndarray, *others: np.ndarray) -> None:
        moves.append(len(rows))
        add(self, rows, *others)

    monkeypatch.setattr(OldCalls, "add", counted)
    for flush in range(100):
        _collect(joiner, [(0, EventKind.ENQUEUE, 0, 100 * flush + seq, 0, flush + 1) for seq in range(100)])
    assert 0 < len(moves) < 10
    assert 1025 <= joiner.open_rows <= 1025 + 1024 + 1025 // 2 + 100


def test_forgetting_a_ring_leaves_the_others() -> None:
    joiner, _ = _joiner()
    _collect(joiner, [(slot, EventKind.ENQUEUE, 0, 1, 0, 10) for slot in (0, 1)])
    joiner.forget(0)
    out = _collect(joiner, [(slot, EventKind.COMPLETE, 0, 1, 0, 20) for slot in (0, 1)])
    assert out.rows["rank"].tolist() == [11]


#: (end one that is open?, which, slot, group row, flags)
_CHOICES = st.lists(
    st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)), max_size=60
)


def _history(choices: Sequence[tuple[bool, int, int, int, int]]) -> list[Step]:
    """Calls of two rings and two groups; ends come in any order after their begins."""
    pending: list[Step] = []
    steps: list[Step] = []
    counts: dict[tuple[int, int, int], int] = {}
    for clock, (end, which, slot, group, flags) in enumerate(choices, 1):
        if end and pending:
            open_slot, _, open_group, seq, open_flags, _ = pending.pop(which % len(pending))
            steps.append((open_slot, EventKind.COMPLETE, open_group, seq, open_flags, clock))
        else:
            seq = counts[slot, group, flags] = counts.get((slot, group, flags), 0) + 1
            step = (slot, EventKind.ENQUEUE, group, seq, flags, clock)
            pending.append(step)
            steps.append(step)
    return steps


@settings(max_examples=60, deadline=None)
@given(choices=_CHOICES, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_final_rows_do_not_depend_on_where_flushes_fall(
    choices: list[tuple[bool, int, int, int, int]], cuts: list[int]
) -> None:
    steps = _history(choices)
    bounds = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    flushes = [steps[begin:end] for begin, end in pairwise(bounds)]

    def final(batches: list[list[Step]]) -> dict[tuple[int, ...], tuple[int, int]]:
        joiner, health = _joiner()
        rows: dict[tuple[int, ...], tuple[int, int]] = {}
        firsts = 0
        for batch in batches:
            out = _collect(joiner, batch)
            firsts += int(out.first.sum())
            for row in out.rows:
                key = (int(row["rank"]), int(row["group"]), int(row["flags"]) & 1, int(row["seq"]))
                rows[key] = (int(row["enqueued_ns"]), int(row["done_ns"]))
        assert not health.drops
        assert firsts == len(rows)
        return rows

    whole = final([[step for flush in flushes for step in flush]])
    assert final(flushes) == whole
    begun = {
        (10 + slot, int(GROUP_OF[slot, group]), flags, seq): time_ns
        for flush in flushes
        for slot, kind, group, seq, flags, time_ns in flush
        if kind is EventKind.ENQUEUE
    }
    assert {key: row[0] for key, row in whole.items()} == begun


def test_a_sequence_beyond_32_bits_is_joined() -> None:
    joiner, _ = _joiner()
    seq = (1 << 40) + 7
    out = _collect(joiner, [(2, EventKind.ENQUEUE, 0, seq, 0, 1)])
    assert len(out.rows) == 0  # slot 2 has no group
    out = _collect(joiner, [(1, EventKind.ENQUEUE, 1, seq, 0, 1), (1, EventKind.COMPLETE, 1, seq, 0, 2)])
    assert out.rows["done_ns"].tolist() == [2]


@pytest.mark.parametrize("kind", [EventKind.PHASE, EventKind.STEP, EventKind.MARK])
def test_other_events_are_none_of_its_business(kind: EventKind) -> None:
    joiner, health = _joiner()
    assert len(_collect(joiner, [(0, kind, 0, 1, 0, 1)]).rows) == 0
    assert not health.drops
