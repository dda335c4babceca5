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
        yield {name: rows.copy() for name, rows, _ in reduction.tables(collected, steps)}


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


def test_a_sum_is_told_with_or_before_the_last_end_of_its_step() -> None:
    life = _life()
    for part in _flushed(_reduction(world=128, backend="nccl"), life, range(len(life))):
        names = list(part)
        assert names.index(EventName.BLOCK_DEVICE_STEPS) < names.index(EventName.BLOCK_COLLECTIVES)
        if part[EventName.BLOCK_DEVICE_STEPS].size:
            assert (part[EventName.BLOCK_COLLECTIVES]["done_ns"] > 0).any() or part[EventName.BLOCK_STEPS].size


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
