"""Of large jobs: how long a device stood in collectives is told of each step, wherever flushes fall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.agents.base.health import AgentHealth
from whichrank.agents.reduction.reduction import Reduction
from whichrank.agents.rings.ring_events import EVENT
from whichrank.telemetry.records import Group
from whichrank.telemetry.vocabulary import EventFlag, EventKind, EventName, Op

STEPS, CALLS, CALL_NS = 6, 3, 100
SENDS = 7  # number of a point-to-point call, among those of its own


def _reduction(*, world: int, backend: str) -> Reduction:
    reduction = Reduction(AgentHealth(), 1000)
    reduction.add_slot(0, 5, world, 4)
    reduction.see_completion(0, seen=True)
    group = Group(
        uid="g", name="g", ranks=f"0-{world - 1}", size=world, backend=backend, timeout_s=600.0, is_default=True
    )
    reduction.define_group(0, 0, group)
    return reduction


def _event(kind: EventKind, time_ns: int, seq: int, step: int, flags: int = 0) -> Any:
    event = np.zeros((), EVENT)
    event["kind"], event["time_ns"], event["seq"], event["step"], event["flags"] = kind, time_ns, seq, step, flags
    if kind is EventKind.ENQUEUE:
        event["op"], event["value"] = Op.ALL_REDUCE, 64
    return event


def _life() -> list[Any]:
    """A rank's events: its host launches a step's calls at once and ends the step, its device is two calls behind.

    Of step s the call number c lasts 10 * s + c + 1.
    """
    timed: list[tuple[int, int, Any]] = []
    for step in range(STEPS):
        at = step * CALLS * CALL_NS
        for call in range(CALLS):
            seq = step * CALLS + call + 1
            began = at + (call + 2) * CALL_NS
            timed.append((at, 0, _event(EventKind.ENQUEUE, at, seq, step)))
            timed.append((began, 1, _event(EventKind.STARTED, began, seq, step)))
            done = began + 10 * step + call + 1
            timed.append((done, 2, _event(EventKind.COMPLETE, done, seq, step, int(EventFlag.POLLED))))
        timed.append((at, 1, _event(EventKind.ENQUEUE, at, SENDS + step, step, int(EventFlag.P2P))))
        end = at + CALL_NS
        timed.append((end, 3, _event(EventKind.STEP, end, step, at)))
    return [event for _, _, event in sorted(timed, key=lambda each: each[:2])]


def _flushed(reduction: Reduction, life: Sequence[Any], cuts: Sequence[int]) -> Iterator[dict[EventName, np.ndarray]]:
    for first, last in pairwise([0, *sorted(cuts), len(life)]):
        events = np.array(life[first:last], EVENT)
        collected, steps = reduction.collect(events, np.zeros(len(events), np.uint16))
        now_ns = int(events["time_ns"].max(initial=0))
        yield {name: rows.copy() for name, rows, _ in reduction.tables(collected, steps, now_ns)}


def _all(parts: Sequence[dict[EventName, np.ndarray]], name: EventName) -> np.ndarray:
    return np.concatenate([part[name] for part in parts])


@given(st.lists(st.integers(0, len(_life()))))
@settings(deadline=None)
def test_sums_are_those_of_the_calls_and_what_was_sent_open_is_ended(cuts: list[int]) -> None:
    parts = list(_flushed(_reduction(world=128, backend="nccl"), _life(), cuts))
    sums = _all(parts, EventName.BLOCK_DEVICE_STEPS)
    expected = {step: 3 * 10 * step + 6 for step in range(STEPS) if step % 2}  # the others are shipped whole
    assert dict(zip(sums["step"].tolist(), sums["stood_ns"].tolist(), strict=True)) == expected
    assert sums.size == len(expected)
    ends = [(s * CALLS + 2) * CALL_NS + 10 * s + 1 for s in expected]
    assert sums["first_end_ns"].tolist() == ends
    assert sums["last_end_ns"].tolist() == [end + (CALLS - 1) * (CALL_NS + 1) for end in ends]
    assert set(sums["rank"].tolist()) == {5}
    assert set(sums["calls"].tolist()) == {CALLS}
    rows = _all(parts, EventName.BLOCK_COLLECTIVES)
    rows = rows[(rows["flags"] & int(EventFlag.P2P)) == 0]
    opened = set(rows["seq"][rows["done_ns"] == 0].tolist())
    ended = set(rows["seq"][rows["done_ns"] > 0].tolist())
    assert opened <= ended
    assert {seq for seq in range(1, STEPS * CALLS + 1) if (seq - 1) // CALLS % 2 == 0} <= ended


def test_a_sum_is_told_as_soon_as_host_and_device_have_ended_the_step() -> None:
    life = _life()
    for event, part in zip(
        life, _flushed(_reduction(world=128, backend="nccl"), life, range(1, len(life))), strict=True
    ):
        names = list(part)
        assert names.index(EventName.BLOCK_DEVICE_STEPS) < names.index(EventName.BLOCK_COLLECTIVES)
        if part[EventName.BLOCK_DEVICE_STEPS].size:
            assert event["kind"] in (EventKind.COMPLETE, EventKind.STEP)


def _calls_of(reduction: Reduction, events: Sequence[Any], now_ns: int) -> list[tuple[int, bool]]:
    """(sequence number, ended) of the calls that are shipped in a flush at ``now_ns``."""
    collected, steps = reduction.collect(np.array(events, EVENT), np.zeros(len(events), np.uint16))
    tables = {name: rows for name, rows, _ in reduction.tables(collected, steps, now_ns)}
    rows = tables[EventName.BLOCK_COLLECTIVES]
    return [(int(row["seq"]), bool(row["done_ns"])) for row in rows]


def _call(seq: int, step: int, at_ns: int, done_ns: int = 0) -> list[Any]:
    begin = _event(EventKind.ENQUEUE, at_ns, seq, step)
    return [begin, _event(EventKind.COMPLETE, done_ns, seq, step)] if done_ns else [begin]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_an_open_call_is_shipped_once_it_is_open_for_longer_than_calls_of_its_group_are(backend: str) -> None:
    reduction, usual_ns = _reduction(world=128, backend=backend), 400_000_000  # steps 0, 2, 4 are shipped whole
    assert _calls_of(reduction, _call(1, 0, 1_000, 1_000 + usual_ns), usual_ns) == [(1, True)]
    began_ns = usual_ns + 2_000
    assert _calls_of(reduction, _call(2, 1, began_ns) + _call(3, 1, began_ns), began_ns + 1_000) == []
    assert _calls_of(reduction, [_event(EventKind.COMPLETE, began_ns + usual_ns, 2, 1)], began_ns + usual_ns) == []
    overdue_ns = began_ns + usual_ns * 5 // 4 + 1_000
    assert _calls_of(reduction, [], overdue_ns) == [(3, False)], "the other one has ended in time"
    assert _calls_of(reduction, [], overdue_ns + 1) == [], "once"
    assert _calls_of(reduction, [_event(EventKind.COMPLETE, overdue_ns + 2, 3, 1)], overdue_ns + 2) == [(3, True)]


def test_however_long_calls_were_an_open_one_is_shipped_before_anybody_is_seen_waiting() -> None:
    reduction, long_ns = _reduction(world=128, backend="nccl"), 600_000_000_000  # a save, say
    _calls_of(reduction, _call(1, 0, 1_000, long_ns), long_ns)
    assert _calls_of(reduction, _call(2, 1, long_ns), long_ns + 1_900_000_000) == []
    assert _calls_of(reduction, [], long_ns + 2_100_000_000) == [(2, False)]


def test_of_a_group_without_an_ended_call_and_of_a_whole_step_open_calls_are_shipped_at_once() -> None:
    reduction = _reduction(world=128, backend="nccl")
    assert _calls_of(reduction, _call(1, 1, 1_000), 2_000) == [(1, False)]
    _calls_of(reduction, _call(2, 1, 3_000, 900_000_000), 900_000_000)
    assert _calls_of(reduction, _call(3, 2, 900_000_000), 900_000_001) == [(3, False)]


def test_an_open_call_that_has_become_an_old_one_is_shipped_as_well() -> None:
    reduction = _reduction(world=128, backend="nccl")
    _calls_of(reduction, _call(1, 0, 1_000, 900_000_000), 900_000_000)
    many = [event for seq in range(2, 1800) for event in _call(seq, 1, 900_000_000 + seq)]
    assert _calls_of(reduction, many, 900_010_000) == []
    kept = [seq for seq, _ in _calls_of(reduction, [], 3_000_000_000)]
    assert kept[-1] == 1799
    assert len(kept) == len(set(kept))
    assert _calls_of(reduction, [], 4_000_000_000) == []


@pytest.mark.parametrize(("world", "backend"), [(64, "nccl"), (128, "gloo")])
def test_nothing_is_summed_where_all_is_shipped_or_hosts_do_the_calls(world: int, backend: str) -> None:
    parts = list(_flushed(_reduction(world=world, backend=backend), _life(), [5, 9, 20]))
    assert not _all(parts, EventName.BLOCK_DEVICE_STEPS).size


def test_a_ring_that_ends_leaves_nothing_for_the_next_in_its_slot() -> None:
    reduction, life = _reduction(world=128, backend="nccl"), _life()
    list(_flushed(reduction, life[: len(life) // 2], []))
    reduction.forget_slot(0)
    reduction.add_slot(0, 6, 128, 4)
    reduction.see_completion(0, seen=True)
    group = Group(uid="h", name="h", ranks="0-127", size=128, backend="nccl", timeout_s=600.0, is_default=True)
    reduction.define_group(0, 0, group)
    sums = _all(list(_flushed(reduction, life, [])), EventName.BLOCK_DEVICE_STEPS)
    assert sums["stood_ns"].tolist() == [36, 96, 156]
