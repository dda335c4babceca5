"""Turns of loops that no optimizer drives: where calls repeat, alike on all ranks, however their events arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from whichrank.agents.ranks.drain import Drained
from whichrank.agents.ranks.inferred_steps import FIRST_LOOK, InferredSteps, find_period
from whichrank.agents.ranks.rank_groups import RankGroups
from whichrank.agents.rings.ring_events import EVENT
from whichrank.telemetry.vocabulary import EventKind, Op, StepFlag

MS = 1_000_000
#: A turn: gradients of three tensors, and a loss.
TURN = [(Op.ALL_REDUCE, 4096), (Op.ALL_REDUCE, 64), (Op.ALL_REDUCE, 1024), (Op.BROADCAST, 4)]


def calls(turns: int, *, before: int = 40, apart_ms: float = 50.0, turn: Any = TURN) -> np.ndarray:
    """Some calls of a set-up that repeat nothing, then turns."""
    made = [(Op.BROADCAST, 8 + 8 * number) for number in range(before)] + list(turn) * turns
    events = np.zeros(len(made), EVENT)
    events["kind"] = int(EventKind.ENQUEUE)
    events["op"], events["value"] = [op for op, _ in made], [size for _, size in made]
    events["seq"] = np.arange(1, len(made) + 1)
    events["time_ns"] = 1_000 * MS + (np.arange(len(made)) * apart_ms * MS).astype(np.int64)
    return events


def rank(slot: int = 0) -> Any:
    """What of a watched rank is looked at."""
    return SimpleNamespace(
        slot=slot,
        groups=RankGroups(numbers={0: 3}, default=3),
        identity=SimpleNamespace(attempt="a1"),
        inferred_step=-1,
        inferred_since_ns=0,
    )


def follow(events: np.ndarray, cuts: list[int], one: Any = None) -> np.ndarray:
    """The events as they come out, in pieces."""
    one, inferred, out = one or rank(), InferredSteps(), []
    for first, last in zip([0, *cuts], [*cuts, len(events)], strict=True):
        part = events[first:last]
        out.append(inferred.add_steps([one], Drained(events=part, ring=np.full(len(part), one.slot, np.uint16))).events)
    return np.asarray(np.concatenate(out))


def steps_of(events: np.ndarray) -> np.ndarray:
    return np.asarray(events[events["kind"] == int(EventKind.STEP)])


def test_a_turn_becomes_a_step_and_its_calls_are_the_steps() -> None:
    out = follow(calls(400), [])
    steps = steps_of(out)
    assert len(steps) > 300
    assert (np.diff(steps["seq"]) == 1).all()
    assert (steps["flags"] == int(StepFlag.INFERRED)).all()
    assert set((steps["time_ns"] - steps["step"]).tolist()) == {200 * MS}
    assert (steps["step"][1:] == steps["time_ns"][:-1]).all()
    one = int(steps["seq"][10])
    assert (out["step"][out["kind"] == int(EventKind.ENQUEUE)] == one).sum() == len(TURN)


@pytest.mark.parametrize("piece", [7, 64, 333])
def test_where_flushes_end_changes_no_number(piece: int) -> None:
    events = calls(400)
    whole = steps_of(follow(events, []))
    cut = steps_of(follow(events, list(range(piece, len(events), piece))))
    assert set(cut["seq"].tolist()) <= set(whole["seq"].tolist())
    assert cut["seq"][-1] == whole["seq"][-1]
    of_whole = dict(zip(whole["seq"].tolist(), whole["step"].tolist(), strict=True))
    assert all(of_whole[seq] == begun for seq, begun in zip(cut["seq"].tolist(), cut["step"].tolist(), strict=True))


def test_sizes_that_vary_leave_the_order_of_operations() -> None:
    events = calls(400)
    events["value"] += np.arange(len(events), dtype=np.uint64) % 13
    events["op"][40:] = np.tile([Op.ALL_REDUCE, Op.BROADCAST], 800)
    assert set(np.diff(steps_of(follow(events, []))["time_ns"]).tolist()) == {100 * MS}


def test_turns_of_milliseconds_are_put_together() -> None:
    lengths = np.diff(steps_of(follow(calls(8000, apart_ms=1.0), []))["time_ns"])
    assert set(lengths.tolist()) == {64 * MS}


def test_another_loop_goes_on_counting() -> None:
    first, second = calls(300), calls(300, before=0, turn=[(Op.ALL_GATHER, 512), (Op.BARRIER, 0)])
    second["seq"] += len(first)
    second["time_ns"] += first["time_ns"][-1]
    steps = steps_of(follow(np.concatenate([first, second]), []))
    assert (np.diff(steps["seq"]) >= 1).all()
    assert {200 * MS, 100 * MS} <= set((steps["time_ns"] - steps["step"]).tolist())


def test_a_start_that_repeats_calls_is_no_loop_yet() -> None:
    """Twenty seconds without an optimizer's step must have passed."""
    assert not len(steps_of(follow(calls(90), [])))


def test_a_ring_with_steps_of_its_own_is_left_alone() -> None:
    events = calls(400)
    events["kind"][200] = int(EventKind.STEP)
    one = rank()
    out = follow(events, [], one)
    assert out.tobytes() == events.tobytes()
    assert one.inferred_step == -1


def test_lost_events_end_it() -> None:
    """Nobody knows any more what the others count."""
    events = calls(400)
    kept = np.concatenate([events[:900], events[905:]])
    steps = steps_of(follow(kept, [900]))
    assert steps["time_ns"].max() <= events["time_ns"][900]


def test_calls_that_repeat_nothing_have_no_period() -> None:
    draw = np.random.default_rng(1)
    assert find_period([(int(value), int(value) % 50) for value in draw.integers(0, 1 << 30, FIRST_LOOK)]) is None
    assert find_period([(1, 1), (2, 1), (1, 1)] * 10) == (3, True)


def test_a_loss_that_is_not_finite_is_told_with_the_calls_before_it() -> None:
    """By it ranks are compared: who had issued fewer calls when it was known was the first."""
    one, inferred = rank(), InferredSteps()
    events = calls(20)
    bad = np.zeros(1, EVENT)
    bad["kind"], bad["time_ns"] = int(EventKind.BAD_LOSS), events["time_ns"][70]
    bad["value"] = np.array([np.inf]).view(bad["value"].dtype)
    for part in (events[:60], np.concatenate((events[60:71], bad, events[71:]))):
        inferred.add_steps([one], Drained(events=part, ring=np.zeros(len(part), np.uint16)))
    (told,) = inferred.take_bad_losses()
    assert (told.calls, told.is_nan, told.time_ns) == (71, False, int(events["time_ns"][70]))
    assert inferred.take_bad_losses() == []
