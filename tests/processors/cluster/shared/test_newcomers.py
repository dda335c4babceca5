"""A job that is slower since another one began: named by its spine where that can be told, and by nobody's hardware."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processors.cluster.shared.fleet import Fleet, Job, joint_of, nodes_blamed, standing
from whichrank.telemetry.vocabulary import Kind


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def two_jobs(fleet: Fleet, *, leaf: int = 2, began: float = 0.0) -> Job:
    """The older of them; the other stands beside it under the same two leaves, or others."""
    fleet.harmless()
    old = fleet.job("a", [*fleet.under(2, 0, 1), *fleet.under(3, 0, 1)])
    fleet.job("c", [*fleet.under(leaf, 2, 3), *fleet.under(leaf + 1, 2, 3)], at=began)
    return old


def told(fleet: Fleet, old: Job, **more: Any) -> set[str]:
    old.tell(Kind.SLOW_TOGETHER, 90.0, onset=20.0, **{"phase": "exchange", **more})
    return {document["kind"] for document in standing(fleet.run(300.0))}


def test_the_spine_that_both_send_over_is_named_and_nothing_is_replaced(fleet: Fleet) -> None:
    assert told(fleet, two_jobs(fleet)) == {"link_contention"}
    joint = joint_of(fleet.court, Kind.LINK_CONTENTION)
    assert [suspect["id"] for suspect in joint["suspects"]] == ["spine1"]
    assert {row["id"]: row["role"] for row in joint["jobs"]} == {"a": "victim", "c": "victim"}
    assert joint["advice"]["action"] == "wait"
    assert nodes_blamed(fleet.court) == set()


def test_a_newcomer_over_another_spine_is_not_its_cause(fleet: Fleet) -> None:
    assert told(fleet, two_jobs(fleet, leaf=4)) == {"slow_together"}


def test_one_that_began_long_before_is_not_its_cause(fleet: Fleet) -> None:
    assert told(fleet, two_jobs(fleet, began=-900.0)) == {"slow_together"}


def test_one_that_began_after_it_is_not_its_cause(fleet: Fleet) -> None:
    assert told(fleet, two_jobs(fleet, began=50.0)) == {"slow_together"}


def test_what_waits_for_data_is_not_slow_in_its_exchange(fleet: Fleet) -> None:
    assert told(fleet, two_jobs(fleet), phase="data") == {"slow_together"}


def test_of_two_newcomers_none_is_named(fleet: Fleet) -> None:
    old = two_jobs(fleet)
    fleet.job("e", [*fleet.under(2, 4, 5), *fleet.under(3, 4, 5)], at=5.0)
    assert told(fleet, old) == {"slow_together"}
