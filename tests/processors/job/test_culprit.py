"""Whose affair it is that several ranks are slow: a node's, a part's that they play, or nothing that they share."""

from __future__ import annotations

import pytest

from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.rank_state import RankFacts
from whichrank.processors.job.topology.culprit import have_something_in_common, whose_slowness
from whichrank.telemetry.records import Group
from whichrank.telemetry.vocabulary import Scope

RANKS, PER_NODE = 16, 4


def job() -> JobState:
    """16 ranks on four nodes; groups of eight hold the experts 0 to 3, each on two ranks that lie side by side."""
    state = JobState(job="j")
    for rank in range(RANKS):
        state.ranks[rank] = RankFacts(node=f"n{rank // PER_NODE}")
    for name, ranks in (("world", "0-15"), ("experts-0", "0-7"), ("experts-1", "8-15")):
        state.groups.add(Group(uid=name, name=name, ranks=ranks))
    return state


@pytest.mark.parametrize(
    ("ranks", "common"),
    [
        ((4, 5, 6, 7), True),  # a node
        (tuple(range(8)), True),  # a group, and two nodes
        ((2, 3, 10, 11), True),  # the expert on the second pair of both groups
        ((2, 3, 9, 11), False),
        ((1, 6, 9, 12, 15), False),
        ((2, 3), False),  # the expert's hosts in one group, and not in the other
    ],
)
def test_ranks_that_are_slow_together_share_something_or_nothing(ranks: tuple[int, ...], *, common: bool) -> None:
    assert have_something_in_common(job(), ranks) is common


def test_who_has_the_same_place_in_each_group_plays_a_part() -> None:
    found = whose_slowness(job(), (2, 3, 10, 11), always=False)
    assert (found.scope, found.ranks, found.like) == (Scope.APPLICATION, (2, 3, 10, 11), "experts-0")


def test_who_shares_nothing_is_slow_by_himself() -> None:
    assert whose_slowness(job(), (2, 9), always=False).scope is Scope.RANK
