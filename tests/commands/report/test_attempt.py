"""Where an attempt stood in its last step, from what was last seen of each rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from whichrank.commands.report.attempt import AttemptRows
from whichrank.telemetry.records import Block, Group, Identity
from whichrank.telemetry.tables import GROUP_PROGRESS, PROGRESS
from whichrank.telemetry.vocabulary import EventName

WORLD = (Group(uid="world", name="world", ranks="0-3", size=4, backend="gloo", is_default=True),)
STEP_BEGAN_S = 9.0


def look(attempt: AttemptRows, at_s: float, ranks: Sequence[int], *, waiting: Sequence[int] = ()) -> None:
    """The agent looks at these ranks, in a step that began at STEP_BEGAN_S."""
    progress, groups = np.zeros(len(ranks), PROGRESS), np.zeros(len(ranks), GROUP_PROGRESS)
    progress["rank"] = groups["rank"] = ranks
    progress["step"], progress["read_ns"] = 7, at_s * 1e9
    progress["step_age_ns"] = (at_s - STEP_BEGAN_S) * 1e9
    is_waiting = np.isin(ranks, waiting)
    groups["open"], groups["started"] = is_waiting, -1
    groups["open_age_ns"] = np.where(is_waiting, progress["step_age_ns"], 0)
    for name, rows in ((EventName.BLOCK_PROGRESS, progress), (EventName.BLOCK_GROUP_PROGRESS, groups)):
        attempt.take(Block(name=name, identity=Identity(), rows=rows, groups=WORLD, time_ns=int(at_s * 1e9)))


@pytest.fixture
def attempt() -> AttemptRows:
    made = AttemptRows(number=0)
    made.belongs(np.arange(4), 0, 0)
    return made


def test_who_is_stopped_is_the_one_who_works_although_it_outlives_the_others(attempt: AttemptRows) -> None:
    look(attempt, 12.0, [0, 1, 2, 3], waiting=[0, 2, 3])
    for rank in (0, 2, 3):
        attempt.end_rank(rank, 12.1)
    for at_s in (13.0, 14.0, 15.0, 16.0):
        look(attempt, at_s, [1])
    look(attempt, 9.2, [1], waiting=[1])  # its ring, read after its end
    stood = attempt.standing()
    assert stood is not None
    assert stood.begin_s == pytest.approx(STEP_BEGAN_S)
    np.testing.assert_allclose(stood.own_s, [0, 3, 0, 0], atol=1e-6)
    np.testing.assert_allclose(stood.waited_s, [3, 0, 3, 3], atol=1e-6)


def test_who_had_ended_long_before_the_others_says_so(attempt: AttemptRows) -> None:
    look(attempt, 10.0, [0, 1, 2, 3])
    attempt.end_rank(1, 10.1)
    look(attempt, 12.0, [0, 2, 3], waiting=[0, 2, 3])
    stood = attempt.standing()
    assert stood is not None
    assert np.isinf(stood.own_s).tolist() == [False, True, False, False]


def test_looks_at_other_moments_are_put_to_one(attempt: AttemptRows) -> None:
    look(attempt, 12.0, [0, 1], waiting=[0])
    look(attempt, 12.8, [2, 3], waiting=[2, 3])
    stood = attempt.standing()
    assert stood is not None
    np.testing.assert_allclose(stood.waited_s[[0, 2, 3]], 3.4, atol=1e-6)
    np.testing.assert_allclose(stood.own_s[1], 3.4, atol=1e-6)
