"""Many jobs at one time: one page with its victims, pages that wait, and what all of it costs."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.cluster_operator import cost_ms
from tests.processors.cluster.conftest import START_S
from tests.processors.cluster.shared.fleet import Fleet, jobs_of, joint_of, standing
from whichrank.telemetry.vocabulary import Kind, Severity

MANY = 300


def outage(fleet: Fleet, jobs: int, *, over_s: float = 6.0) -> None:
    """The whole fabric stops; every job tells it when its own patience is over."""
    draw = random.Random(7)
    for i in range(jobs):
        nodes = [fleet.nodes[i % len(fleet.nodes)], fleet.nodes[(i * 7 + 3) % len(fleet.nodes)]]
        job = fleet.job(f"j{i:03}", sorted(set(nodes)))
        job.tell(Kind.COLLECTIVE_STALLED, 4.0 + draw.uniform(0.0, over_s), onset=draw.uniform(0.0, 1.0))


def pages_sent(court: Any, until: float) -> list[str]:
    """What a person is paged about: each incident once, when its page does not wait, unless it has merged by then."""
    sent: dict[str, float] = {}
    first: dict[str, float] = {}
    last: dict[str, dict[str, Any]] = {}
    for document in court.revisions:
        id_ = document["id"]
        last[id_] = document
        waits = document.get("hold") is not None
        if document["severity"] == Severity.PAGE.value and document["state"] == "open" and not waits:
            sent.setdefault(id_, document["times"]["detected"])
        first.setdefault(id_, document["times"]["detected"])
    return sorted(sent)


def test_an_outage_over_300_jobs_is_one_page_with_its_victims() -> None:
    fleet = Fleet(leaves=16, nodes_per_leaf=16)
    outage(fleet, MANY)
    court = fleet.run(90.0)
    joint = joint_of(court, Kind.FABRIC_STALL)
    assert len(jobs_of(joint)) == MANY
    assert len(standing(court)) == 1
    assert pages_sent(court, 90.0) == [joint["id"]]
    assert {d["merged_into"] for d in court.incidents.values() if d["state"] == "merged"} == {joint["id"]}


def test_of_a_leaf_s_outage_the_jobs_that_do_not_cross_it_are_no_part() -> None:
    fleet = Fleet(leaves=16, nodes_per_leaf=16)
    for i in range(60):
        leaf = i % 4
        job = fleet.job(f"j{i:03}", [f"n{leaf}-{i // 4}", f"n{8 + i % 8}-{i // 8}"])
        if leaf == 2:
            job.tell(Kind.COLLECTIVE_STALLED, 4.0 + i / 20, onset=0.1)
    court = fleet.run(90.0)
    joint = joint_of(court, Kind.SWITCH_FAULT)
    assert (joint["suspects"][0]["id"], len(jobs_of(joint))) == ("leaf2", 15)
    assert len(pages_sent(court, 90.0)) == 1


def test_a_job_that_is_alone_in_its_trouble_waits_for_nothing() -> None:
    fleet = Fleet()
    for i in range(5):
        fleet.job(f"well{i}", fleet.under(i, 4, 5))
    job = fleet.job("a", fleet.under(1, 0, 1))
    job.tell(Kind.RANK_DIED, 10.0, node="n1-0", error="")
    court = fleet.run(120.0)
    assert [(d["change"], d.get("hold")) for d in court.revisions] == [("opened", None)]


def test_two_unrelated_jobs_at_one_time_are_two_pages_and_the_second_waits_20_s_at_most() -> None:
    fleet = Fleet()
    for leaf, at in ((1, 10.0), (5, 14.0)):
        fleet.job(f"j{leaf}", fleet.under(leaf, 0, 1)).tell(
            Kind.RANK_DIED, at, node=f"n{leaf}-0", step=leaf, phase="forward"
        )
    court = fleet.run(120.0)
    first, second, released = court.revisions
    assert (first.get("hold"), second["hold"]["until"]) == (None, START_S + 34.0)
    assert (released["id"], released["change"], released.get("hold")) == (second["id"], "updated", None)
    assert len(pages_sent(court, 120.0)) == 2
    assert court.timers == {} or min(court.timers.values()) > (START_S + 120.0) * 1e9


def test_a_cause_that_turns_out_to_be_none_gives_its_incidents_back() -> None:
    """Two jobs under one leaf; then it shows that six others cross it and are well all along."""
    fleet = Fleet()
    for i in range(4):
        fleet.job(f"well{i}", [f"n2-{4 + i}", f"n7-{4 + i}"], at=-3600.0)
    for i, node in enumerate(("n2-0", "n2-1")):
        job = fleet.job(f"j{i}", [node, f"n4-{i}"])
        job.tell(Kind.RANK_DIED, 5.0 + i, node=node, error="RuntimeError: NCCL error", step=10 + i, phase="backward")
    court = fleet.run(300.0)
    assert {d["state"] for d in court.pages} == {"open"}
    assert len(court.pages) == 2
    assert {d["kind"] for d in court.pages} == {"rank_died"}


def test_a_late_victim_joins_and_the_joint_incident_ends_with_the_last() -> None:
    fleet = Fleet()
    for leaf in (0, 1, 3, 7):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{4 + i}-0"]) for i in range(3)]
    for i, job in enumerate(jobs):
        job.tell(Kind.COLLECTIVE_STALLED, 5.0 + 12 * i, onset=float(i))
    jobs[0].well(80.0)
    court = fleet.run(70.0)
    joint = joint_of(court, Kind.SWITCH_FAULT)
    assert jobs_of(joint) == {"j0", "j1", "j2"}
    assert joint["state"] == "open"
    fleet.findings.clear()
    for i, job in enumerate(jobs[1:]):
        job.well(90.0 + 10 * i)
    fleet.run(95.0)
    assert joint_of(court, Kind.SWITCH_FAULT)["state"] == "open"
    fleet.run(120.0)
    joint = joint_of(court, Kind.SWITCH_FAULT)
    assert (joint["state"], joint["times"]["resolved"]) == ("resolved", START_S + 100.0)
    assert all(d["state"] != "open" for d in court.pages)


def mixed(fresh: bool = False) -> Fleet:
    """A leaf's fault, a lone crash, a repeated step, changes, and things that are told twice."""
    fleet = Fleet(4, 8, fresh=fresh)
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{i % 2}-{i}"]) for i in range(4)]
    for i, job in enumerate(jobs):
        job.tell(Kind.COLLECTIVE_STALLED, 5.0 + i, onset=float(i) / 4)
    lone = fleet.job("lone", ["n3-0", "n3-1"])
    lone.tell(Kind.RANK_RAISED, 6.5, node="n3-0", error="ValueError: x", step=77)
    lone.end(8.0)
    again = lone.again(20.0, ["n3-4", "n3-1"])
    again.tell(Kind.RANK_RAISED, 40.0, node="n3-4", error="ValueError: x", step=77)
    fleet.change("n3-4", "nvidia_driver", "550", "560", 2.0)
    for job in jobs:
        job.well(60.0)
    fleet.findings += [(at + 0.5, 10_000 + n, f) for at, n, f in fleet.findings[-6:]]
    return fleet


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_what_is_said_does_not_depend_on_where_batches_end_or_on_working_copies(sizes: list[int]) -> None:
    def said(fleet: Fleet, batches: list[int]) -> list[bytes]:
        return fleet.run(200.0, batches=batches).lines

    assert said(mixed(), sizes) == said(mixed(fresh=True), [1]) != []


def test_a_lost_state_goes_on_from_what_was_published() -> None:
    fleet = Fleet()
    for leaf in (0, 1, 3, 7):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{4 + i}-0"]) for i in range(3)]
    for i, job in enumerate(jobs):
        job.tell(Kind.COLLECTIVE_STALLED, 5.0 + i, onset=float(i))
    court = fleet.run(60.0)
    before = joint_of(court, Kind.SWITCH_FAULT)
    court.lose_state()
    for finding in [f for _, _, f in sorted(fleet.findings, key=lambda each: each[:2])]:
        court.take([finding])
    after = joint_of(court, Kind.SWITCH_FAULT)
    assert after["id"] == before["id"]
    assert [d["change"] for d in court.revisions].count("opened") == 3


def test_a_finding_costs_little_more_in_a_cluster_ten_times_as_large() -> None:
    """What it costs in milliseconds says ``python -m benchmarks.cluster_operator``; here only that looks do not grow
    with all jobs and all incidents that were ever told (that would be ten times)."""
    small_ms = max(cost_ms(30, 5), cost_ms(30, 5))
    assert cost_ms(300, 5) < 5.0 * small_ms
