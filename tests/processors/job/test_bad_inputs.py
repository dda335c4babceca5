"""Of all ranks that fed a NaN into an operation, the first is the one that had it from nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.job.synthetic_job import MemoryContext, SyntheticJob, drive
from whichrank.telemetry.vocabulary import EventName

Happening = tuple[float, EventName, int, dict[str, Any]]
BAD_STEP = 20
WORLD = "a1-world"


def checks(rank: int) -> Happening:
    values = {"pid": 4000 + rank, "world_size": 4, "local_rank": rank, "checks_inputs": True}
    return 0.01, EventName.RANK_STARTED, rank, values


def fed(rank: int, seq: int, *, step: int = BAD_STEP, before: int | None = None, at_s: float = 1.0) -> Happening:
    """before: the newest collective of the group that it had issued by then."""
    values: dict[str, Any] = {"group": WORLD, "seq": seq, "point_to_point": False, "peer": -1, "step": step}
    known = {"groups_before": (WORLD,), "seqs_before": (seq - 1 if before is None else before,)}
    return at_s, EventName.RANK_BAD_INPUT, rank, {**values, **known}


def sent(rank: int, seq: int, peer: int) -> Happening:
    at_s, name, _, values = fed(rank, seq, before=70)
    return at_s, name, rank, {**values, "point_to_point": True, "peer": peer}


def judged(*events: Happening, checked: int = 4) -> Mapping[str, Any]:
    """All ranks' losses are bad in one step."""
    context: MemoryContext = drive(
        SyntheticJob(
            steps=40,
            numbers=lambda rank, step: (math.nan if step >= BAD_STEP else 1.0, 1.0),
            events=[*(checks(rank) for rank in range(checked)), *events],
        ).records()
    )
    (body,) = [item.body for item in context.final().values() if item.body["bucket"] == "numeric"]
    return body


def named(body: Mapping[str, Any]) -> tuple[str, list[int]]:
    return body["kind"], [item["rank"] for item in body["suspects"]]


FOLLOWERS = [fed(rank, 82) for rank in (0, 1, 3)]


@pytest.mark.parametrize("at_s", [1.0, 9.0])
def test_who_fed_it_first_is_named_whenever_that_is_told(at_s: float) -> None:
    body = judged(*FOLLOWERS, fed(2, 81, at_s=at_s))
    assert named(body) == ("numeric_first_rank", [2])
    (row,) = [row for row in body["evidence"] if row["signal"] == "collectives.inputs"]
    assert "rank 2 fed a NaN into collective 81 of group world in step 20" in row["shows"]
    assert [item["ranks"] for item in body["ruled_out"]] == ["0-1,3"]


def test_what_was_fed_in_the_step_before_shows_in_this_one() -> None:
    assert named(judged(*FOLLOWERS, fed(2, 80, step=BAD_STEP - 1))) == ("numeric_first_rank", [2])


def test_a_receiver_has_it_from_its_sender() -> None:
    assert named(judged(fed(0, 82), fed(3, 82), sent(1, 5, peer=2), fed(2, 81))) == ("numeric_first_rank", [1])


def test_of_two_that_had_it_from_nobody_both_are_named() -> None:
    assert named(judged(fed(0, 82), fed(1, 82), fed(2, 81), fed(3, 81))) == ("numeric_first_rank", [2, 3])


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([fed(rank, 81) for rank in range(4)], id="all at one call"),
        pytest.param([*FOLLOWERS, fed(2, 40, step=10)], id="fed earlier, and nothing was bad"),
        pytest.param([fed(rank, 90, step=BAD_STEP + 1) for rank in range(3)], id="after the loss"),
        pytest.param([], id="nothing told"),
    ],
)
def test_nobody_is_named_where_it_cannot_be_said(events: list[Happening]) -> None:
    assert named(judged(*events)) == ("numeric_all", [])


def test_a_rank_that_does_not_look_may_be_the_one() -> None:
    assert named(judged(*FOLLOWERS, fed(2, 81), checked=3)) == ("numeric_all", [])


@pytest.mark.parametrize("change", [{"group": "other"}, {"seq": "x"}, {"seqs_before": ()}, {"groups_before": 3}])
def test_what_cannot_be_read_is_passed_over(change: dict[str, Any]) -> None:
    at_s, name, rank, values = fed(2, 81)
    assert named(judged(*FOLLOWERS, (at_s, name, rank, {**values, **change}))) != ("numeric_first_rank", [2])
