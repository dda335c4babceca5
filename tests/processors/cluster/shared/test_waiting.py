"""What names hardware, and may be what several jobs have, is held back until that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.processors.cluster.conftest import START_S
from tests.processors.cluster.shared.fleet import FastCourt, Fleet, joint_of
from whichrank.telemetry.vocabulary import Kind


def link_down(fleet: Fleet, node: str, at: float, job: Any, **more: Any) -> None:
    fleet.condition(
        "port_down", node, at, device_kind="nic", device="mlx5_1", job=job, scope="link", action="replace_link",
        explains=["collective_stalled", "rank_slow"], **more,
    )  # fmt: skip


def said_aloud(court: FastCourt) -> list[Mapping[str, Any]]:
    """Revisions on which somebody may act."""
    return [d for d in court.revisions if not d.get("hold") and d["state"] != "merged"]


def blamed(court: FastCourt) -> set[str]:
    return {s["node"] for d in said_aloud(court) if d["scope"] in ("node", "gpu", "link") for s in d["suspects"]}


def with_others() -> Fleet:
    """Jobs that cross leaf 2, and are well."""
    fleet = Fleet()
    fleet.job("well", ["n2-6", "n6-0"])
    for leaf in (0, 1, 3, 7):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    return fleet


def two_jobs_under_one_leaf(fleet: Fleet) -> list[Any]:
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{4 + i}-0"]) for i in range(2)]
    for i, job in enumerate(jobs):
        link_down(fleet, f"n2-{i}", 1.0 + i, job)
        job.tell(Kind.COLLECTIVE_STALLED, 4.0 + 2.5 * i, onset=1.2)
    return jobs


def test_of_a_leaf_s_outage_no_port_is_blamed_not_even_by_the_first_job() -> None:
    fleet = Fleet()
    for leaf in (0, 1, 3, 7):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    two_jobs_under_one_leaf(fleet)
    court = fleet.run(90.0)
    assert joint_of(court, Kind.SWITCH_FAULT)["suspects"][0]["id"] == "leaf2"
    assert blamed(court) == set()
    first = court.revisions[0]
    assert (first["scope"], first["hold"]["until"]) == ("link", START_S + 9.0)


def test_a_port_that_nobody_else_has_is_blamed_five_seconds_later() -> None:
    fleet = with_others()
    job = fleet.job("a", ["n2-0", "n4-0"])
    link_down(fleet, "n2-0", 1.0, job)
    job.tell(Kind.COLLECTIVE_STALLED, 4.0, onset=1.2)
    court = fleet.run(90.0)
    held, out = court.revisions
    assert (held["hold"]["until"], out.get("hold")) == (START_S + 9.0, None)
    assert blamed(court) == {"n2-0"}


def test_a_node_that_no_other_job_is_near_is_blamed_at_once() -> None:
    fleet = Fleet()
    fleet.job("a", ["n2-0", "n4-0"]).tell(Kind.COLLECTIVE_STALLED, 4.0, onset=1.2)
    court = fleet.run(90.0)
    assert [d.get("hold") for d in court.revisions] == [None]


def test_a_ticket_that_names_a_node_waits_a_minute_for_others_whose_pace_is_known_later() -> None:
    fleet = Fleet()
    for leaf in (0, 1, 3, 7):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{4 + i}-0"]) for i in range(2)]
    for i, job in enumerate(jobs):
        link_down(fleet, f"n2-{i}", 1.0, job)
        job.tell(Kind.RANK_SLOW, 40.0 + 30.0 * i, onset=2.0, node=f"n2-{i}", phase="exchange")
    court = fleet.run(200.0)
    assert joint_of(court, Kind.SWITCH_FAULT)["suspects"][0]["id"] == "leaf2"
    assert blamed(court) == set()


def test_what_begins_to_name_hardware_later_is_held_from_then_on() -> None:
    fleet = with_others()
    job = fleet.job("a", ["n2-0", "n4-0"])
    job.tell(Kind.RANK_SLOW, 40.0, onset=2.0, node="n2-0", phase="exchange")
    link_down(fleet, "n2-0", 45.0, job, lag_s=60.0)
    court = fleet.run(200.0)
    assert [(d["scope"], d.get("hold") is not None) for d in court.revisions] == [
        ("rank", False), ("link", True), ("link", False)
    ]  # fmt: skip


def test_the_same_end_on_another_node_is_no_second_page() -> None:
    """The second attempt's own page is held until it has merged into the first one's."""
    fleet = Fleet()
    job = fleet.job("a", ["n1-0", "n1-1"], at=0.0)
    job.tell(Kind.RANK_RAISED, 40.0, node="n1-0", error="ValueError: a bad record", step=33)
    job.end(42.0)
    again = job.again(60.0, ["n1-2", "n1-1"])
    again.tell(Kind.RANK_RAISED, 100.0, node="n1-2", error="ValueError: a bad record", step=33)
    again.end(102.0)
    court = fleet.run(200.0)
    pages = {d["id"] for d in said_aloud(court) if d["severity"] == "page"}
    assert len(pages) == 1
    assert joint_of(court, Kind.APPLICATION_REPEATS)["id"] in pages


def test_the_same_end_on_the_same_node_is_told_after_a_moment() -> None:
    fleet = Fleet()
    job = fleet.job("a", ["n1-0", "n1-1"], at=0.0)
    job.tell(Kind.RANK_RAISED, 40.0, node="n1-0", error="ValueError: a bad record", step=33)
    job.end(42.0)
    again = job.again(60.0)
    again.tell(Kind.RANK_RAISED, 100.0, node="n1-0", error="ValueError: a bad record", step=33)
    court = fleet.run(200.0)
    assert len({d["id"] for d in said_aloud(court)}) == 2


def lost(fleet: Fleet, job: Any, at: float, *nodes: str) -> None:
    """The job operator's finding names all nodes that went together."""
    job.tell(Kind.NODE_LOST, at, onset=at - 3.0, node=nodes[0])
    (_, _, finding) = fleet.findings[-1]
    body = cast(dict[str, Any], finding.body)
    (first,) = body["suspects"]
    body["suspects"] = [{**first, "id": node, "node": node} for node in nodes]
    body["scope"] = "node"


@pytest.mark.parametrize("company", [False, True])
def test_nodes_of_one_job_that_are_lost_together_are_the_power_unit_s(*, company: bool) -> None:
    """A rack of four nodes, three of which the job has, and two of which are gone at once, with its power unit."""
    fleet = Fleet(labels=False)
    for node in fleet.nodes:
        fleet.topology(node, {**fleet.labels[node], "rack": fleet.labels[node]["leaf"]})
    if company:
        for leaf in (0, 1, 3, 7):
            fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    job = fleet.job("a", ["n2-0", "n2-1", "n2-6", *fleet.under(5, 0, 1, 2), *fleet.under(6, 0, 1)])
    lost(fleet, job, 5.0, "n2-0", "n2-1")
    court = fleet.run(60.0)
    assert blamed(court) == set()
    (incident,) = [d for d in court.incidents.values() if d["state"] == "open"]
    assert incident["advice"]["action"] != "restart_without_node"
    assert incident["suspects"][0]["id"] == "pdu2a"


def test_nodes_that_share_nothing_stay_two_nodes() -> None:
    fleet = Fleet()
    job = fleet.job("a", ["n2-0", "n3-0", *fleet.under(5, 0, 1, 2)])
    lost(fleet, job, 5.0, "n2-0", "n3-0")
    court = fleet.run(60.0)
    assert blamed(court) == {"n2-0", "n3-0"}
    assert [d.get("hold") for d in court.revisions] == [None]
