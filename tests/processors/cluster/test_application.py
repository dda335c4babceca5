"""A hang without any fault of its node is of the program; and where that must not be said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.cluster.conftest import Court, make_finding
from tests.processors.entity.node import Node
from whichrank.processors.cluster.application import NEEDED, SETTLES_S
from whichrank.telemetry.records import Finding
from whichrank.telemetry.vocabulary import EventName, Kind

DETECTED, SETTLED = 4.0, 4.0 + SETTLES_S + 0.1


def watched_node(court: Court, blind: tuple[str, ...] = (), name: str = "n1") -> Node:
    node = Node(name, court)
    for rank in range(4):
        node.rank(rank, f"GPU-{rank}")
    watch(node, at=-50.0, blind=blind)
    return node


def watch(node: Node, *, at: float, blind: tuple[str, ...] = ()) -> None:
    sees = {name: float(name not in blind) for name in NEEDED}
    node.measure("whichrank.collector.watching", sees, at=at, attribute="whichrank.collector")


def hang(kind: Kind = Kind.RANK_NOT_ENTERED, line: int | None = 88, *, cleared: bool = False) -> Finding:
    found = make_finding(kind, 2, at=DETECTED, onset=0.0)
    where = {"file": "/jobs/train.py", "line": line, "phase": "forward"}
    suspects = [{**suspect, "where": where} for suspect in found.body["suspects"]]
    return replace(found, body={**found.body, "suspects": suspects}, cleared=cleared)


def last(court: Court) -> Mapping[str, Any]:
    return court.revisions[-1]


def test_the_same_hang_without_a_fault_of_the_node_names_the_program(court: Court) -> None:
    watched_node(court)
    court.hear(hang())
    court.pass_time(SETTLED - 1.0)
    assert "cause" not in last(court)
    assert last(court)["scope"] == "rank"
    court.pass_time(SETTLED)
    document = last(court)
    assert (document["scope"], document["cause"]["domain"]) == ("application", "application")
    assert (document["cause"]["device_kind"], document["cause"]["device"]) == ("code", "train.py:88")
    assert (document["advice"]["action"], document["advice"]["by"]) == ("fix_code", "human")
    assert "train.py:88" in document["advice"]["text"]
    (row,) = [row for row in document["evidence"] if row["signal"] == "node.no_node_fault"]
    assert "no fault of n1 was seen" in row["shows"]
    assert "kernel log" in row["shows"]
    assert [suspect["rank"] for suspect in document["suspects"]] == [2]
    assert [document["change"] for document in court.revisions] == ["opened", "updated"]


@pytest.mark.parametrize("blind", sorted(NEEDED))
def test_not_where_something_is_not_looked_at(court: Court, blind: str) -> None:
    watched_node(court, (blind,))
    court.hear(hang())
    court.pass_time(SETTLED)
    assert "cause" not in last(court)


def test_not_where_nobody_looks(court: Court) -> None:
    court.hear(hang())
    court.pass_time(SETTLED)
    assert "cause" not in last(court)


def test_not_where_the_agent_has_fallen_silent(court: Court) -> None:
    node = watched_node(court)
    node.pass_time(0.0)
    court.hear(hang())
    court.pass_time(SETTLED)
    assert "cause" not in last(court)


def test_not_without_a_line_of_code(court: Court) -> None:
    watched_node(court)
    court.hear(hang(line=None))
    court.pass_time(SETTLED)
    assert "cause" not in last(court)
    court.hear(hang())  # the stack comes late
    assert last(court)["cause"]["device"] == "train.py:88"


@pytest.mark.parametrize("kind", [Kind.RANK_STOPPED, Kind.RANK_DIED, Kind.RANK_SLOW, Kind.RANK_NEVER_JOINED])
def test_not_of_what_may_come_from_outside(court: Court, kind: Kind) -> None:
    watched_node(court)
    court.hear(hang(kind))
    court.pass_time(SETTLED)
    assert "cause" not in last(court)


@pytest.mark.parametrize("at", [-600.0, -0.8, 7.0])
def test_not_beside_a_fault_of_the_node(court: Court, at: float) -> None:
    """Another rank's GPU is not the cause; that the node is well, nobody says."""
    node = watched_node(court)
    court.hear(hang())
    node.xid(79, 3, at=at)
    court.pass_time(SETTLED)
    assert "cause" not in last(court)


def test_what_is_harmless_does_not_matter(court: Court) -> None:
    node = watched_node(court)
    node.kernel("ecc_corrected", at=-1.0, device_kind="memory", domain="hardware", severity="info", text="corrected")
    court.hear(hang())
    court.pass_time(SETTLED)
    assert last(court)["scope"] == "application"


def test_a_fault_of_another_node_does_not_matter(court: Court) -> None:
    watched_node(court)
    other = Node("n2", court)
    other.rank(7, "GPU-7")
    other.xid(79, 7, at=-0.8)
    court.hear(hang())
    court.pass_time(SETTLED)
    assert last(court)["scope"] == "application"


def test_a_fault_that_is_told_later_takes_it_back(court: Court) -> None:
    node = watched_node(court)
    court.hear(hang())
    court.pass_time(SETTLED)
    node.tell(EventName.PROBE_LATE, at=30.0, mount="/data", operation="stat", age_s=30.5)
    document = last(court)
    assert (document["scope"], document["cause"]["device"]) == ("storage", "/data")
    assert document["advice"]["action"] != "fix_code"
    assert not [row for row in document["evidence"] if row["signal"] == "node.no_node_fault"]


def test_it_stays_when_the_job_is_over_and_nobody_looks_any_more(court: Court) -> None:
    node = watched_node(court)
    court.hear(hang())
    court.pass_time(SETTLED)
    node.pass_time(200.0)
    court.hear(hang(cleared=True))
    assert (last(court)["state"], last(court)["scope"]) == ("resolved", "application")


def test_one_that_ended_before_is_left_as_it_is(court: Court) -> None:
    watched_node(court)
    court.hear(hang())
    court.hear(hang(cleared=True))
    court.pass_time(SETTLED)
    assert "cause" not in last(court)
