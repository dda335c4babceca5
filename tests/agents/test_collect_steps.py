"""Step rows: every nanosecond of a step in exactly one phase, wherever flushes fall and whatever was lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.agents.reduction.collect_collectives import CollectedRows
from whichrank.agents.reduction.collect_steps import StepCollector
from whichrank.agents.rings.ring_events import EVENT
from whichrank.telemetry.tables import COLLECTIVES
from whichrank.telemetry.vocabulary import EventKind, Phase, StepFlag

RANK_OF = np.array([7, 8, 9], np.uint32)


class Writer:
    """The phase and step events one rank's ring would hold."""

    def __init__(self, slot: int, begin_ns: int = 1000) -> None:
        self.slot = slot
        self.now_ns = self.phase_since_ns = self.step_since_ns = begin_ns
        self.phase, self.step = int(Phase.INIT), 0
        self.spent: dict[tuple[int, int], int] = {}

    def _pass(self, ns: int) -> None:
        self.now_ns += ns
        key = (self.step, self.phase)
        self.spent[key] = self.spent.get(key, 0) + ns

    def enter(self, phase: int, after_ns: int) -> Any:
        self._pass(after_ns)
        event = np.zeros(1, EVENT)[0]
        event["kind"], event["phase"], event["seq"] = EventKind.PHASE, phase, self.phase
        event["time_ns"], event["value"], event["step"] = self.now_ns, self.phase_since_ns, self.step
        self.phase, self.phase_since_ns = phase, self.now_ns
        return event

    def end_step(self, after_ns: int, loss: float = 1.5) -> Any:
        self._pass(after_ns)
        event = np.zeros(1, EVENT)[0]
        event["kind"], event["phase"], event["seq"], event["flags"] = EventKind.STEP, self.phase, self.step, 2
        event["time_ns"], event["step"] = self.now_ns, self.step_since_ns
        event["value"] = np.float64(loss).view(np.uint64)
        self.step, self.step_since_ns = self.step + 1, self.now_ns
        return event


def _collect(collector: StepCollector, parts: Sequence[tuple[int, Sequence[Any]]]) -> Any:
    events = [event for _, batch in parts for event in batch]
    ring = np.array([slot for slot, batch in parts for _ in batch], np.uint16)
    return collector.collect(np.array(events, EVENT) if events else np.zeros(0, EVENT), ring, RANK_OF)


def test_a_step_is_split_over_its_phases() -> None:
    writer, collector = Writer(1), StepCollector()
    batch = [
        writer.enter(Phase.DATA, 5),
        writer.enter(Phase.FORWARD, 10),
        writer.enter(Phase.BACKWARD, 20),
        writer.end_step(30, loss=float("nan")),
    ]
    (row,) = _collect(collector, [(1, batch)]).steps
    spent = {phase: int(ns) for phase, ns in zip(Phase, row["phase_ns"], strict=True) if ns}
    assert spent == {Phase.INIT: 5, Phase.DATA: 10, Phase.FORWARD: 20, Phase.BACKWARD: 30}
    assert (int(row["rank"]), int(row["step"]), int(row["flags"])) == (8, 0, StepFlag.HAS_LOSS)
    assert int(row["end_ns"] - row["begin_ns"]) == 65
    assert np.isnan(row["loss"])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_phase_times_add_up_wherever_flushes_fall(data: st.DataObject) -> None:
    writers = [Writer(slot, 1000 + slot) for slot in range(3)]
    collector = StepCollector(single_phases=True)
    rows, phases = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        parts = []
        for writer in writers:
            batch = []
            for phase in data.draw(st.lists(st.integers(-1, int(Phase.EXIT)), max_size=12)):
                after_ns = 100_000 * data.draw(st.integers(0, 1000))
                if phase < 0:
                    batch.append(writer.end_step(after_ns))
                elif phase != writer.phase:
                    batch.append(writer.enter(phase, after_ns))
            parts.append((writer.slot, batch))
        collected = _collect(collector, parts)
        rows += list(collected.steps)
        phases += list(collected.phases)
        assert [int(phase["rank"]) for phase in collected.phases] == RANK_OF[collected.phases_ring].tolist()
    assert len(rows) == sum(writer.step for writer in writers)
    for row in rows:
        writer = writers[int(row["rank"]) - 7]
        assert int(row["phase_ns"].sum()) == int(row["end_ns"] - row["begin_ns"])
        for phase in Phase:
            assert int(row["phase_ns"][phase]) == writer.spent.get((int(row["step"]), int(phase)), 0)
    # One by one they are as long as in sum, and never overlap.
    for writer in writers:
        single = [phase for phase in phases if phase["rank"] == RANK_OF[writer.slot]]
        spent: dict[tuple[int, int], int] = {}
        for phase in single:
            key = (int(phase["step"]), int(phase["phase"]))
            spent[key] = spent.get(key, 0) + int(phase["end_ns"] - phase["begin_ns"])
        assert spent == {key: ns for key, ns in writer.spent.items() if ns}
        for before, after in pairwise(single):
            assert before["end_ns"] <= after["begin_ns"]


def test_single_phases_are_told_only_where_they_are_wanted() -> None:
    for wanted in (False, True):
        writer, collector = Writer(0), StepCollector(single_phases=wanted)
        events = [writer.enter(Phase.DATA, 99_999), writer.enter(Phase.FORWARD, 100_000)]
        collected = _collect(collector, [(0, events)])
        assert [(int(each["phase"]), int(each["step"])) for each in collected.phases] == ([(Phase.DATA, 0)] * wanted)


def test_after_lost_events_a_phase_counts_from_its_own_begin() -> None:
    writer, collector = Writer(0), StepCollector()
    _collect(collector, [(0, [writer.enter(Phase.DATA, 5)])])
    for _ in range(3):  # lost: the reader was lapped
        writer.end_step(100)
        writer.enter(Phase.FORWARD, 50)
        writer.enter(Phase.DATA, 50)
    late = [writer.enter(Phase.BACKWARD, 10), writer.end_step(7)]
    (row,) = _collect(collector, [(0, late)]).steps
    assert int(row["phase_ns"][Phase.DATA]) == 10
    assert int(row["phase_ns"][Phase.BACKWARD]) == 7
    assert int(row["phase_ns"].sum()) <= int(row["end_ns"] - row["begin_ns"]) + 5


def _rows(slot: int, *calls: tuple[int, int, int, int]) -> CollectedRows:
    """calls: (step, group, seq, nanoseconds; 0 = open)."""
    rows = np.zeros(len(calls), COLLECTIVES)
    for row, (step, group, seq, ns) in zip(rows, calls, strict=True):
        row["rank"], row["step"], row["group"], row["seq"] = RANK_OF[slot], step, group, seq
        row["op"], row["bytes"], row["enqueued_ns"], row["done_ns"] = 1, 100 + seq, 10, 10 + ns if ns else 0
    all_of_them = np.ones(len(calls), bool)
    return CollectedRows(rows=rows, ring=np.full(len(calls), slot, np.uint16), first=all_of_them, ships=all_of_them)


def test_collectives_are_summed_per_step_and_group() -> None:
    writer, collector = Writer(2), StepCollector()
    collector.add_collectives(_rows(2, (0, 0, 1, 5), (0, 1, 1, 7), (0, 0, 2, 0), (1, 0, 3, 4)))
    completed = _rows(2, (0, 0, 2, 9))
    completed.first[:] = False
    collector.add_collectives(completed)
    out = _collect(collector, [(2, [writer.end_step(100)])])
    (step,) = out.steps
    assert (int(step["collectives"]), int(step["collective_ns"])) == (3, 21)
    groups = {int(row["group"]): row for row in out.groups}
    assert (int(groups[0]["count"]), int(groups[0]["collective_ns"]), int(groups[0]["last_seq"])) == (2, 14, 2)
    assert (int(groups[1]["count"]), int(groups[1]["last_bytes"])) == (1, 101)
    collector.add_collectives(_rows(2, (0, 0, 2, 9)))  # late: its step has gone out
    out = _collect(collector, [(2, [writer.end_step(100)])])
    assert int(out.steps[0]["collectives"]) == 1


def test_a_ring_that_ends_leaves_nothing_for_the_next_in_its_slot() -> None:
    writer, collector = Writer(0), StepCollector()
    _collect(collector, [(0, [writer.enter(Phase.DATA, 500)])])
    collector.add_collectives(_rows(0, (0, 0, 1, 5)))
    collector.forget(0)
    fresh = Writer(0, 900_000)
    (row,) = _collect(collector, [(0, [fresh.end_step(5)])]).steps
    assert int(row["phase_ns"].sum()) == 5
    assert int(row["collectives"]) == 0


def test_a_step_says_what_its_thread_waited_for_a_cpu_where_that_was_read() -> None:
    writer, collector = Writer(0), StepCollector()
    batch = [writer.end_step(100) for _ in range(3)]
    batch[1]["group"], batch[1]["dtype"] = (70_000 + 1) & 0xFFFF, (70_000 + 1) >> 16
    batch[2]["group"] = 1
    assert _collect(collector, [(0, batch)]).steps["run_delay_ns"].tolist() == [-1, 70_000_000, 0]
