"""O1 to O6: faults of those who look are one telemetry incident, blame nobody, and page nobody."""

from __future__ import annotations

import pytest

from tests.processors.cluster.shared.fleet import Fleet, jobs_of, joint_of, nodes_blamed, standing
from whichrank.processors.cluster.confidence import load_reliability
from whichrank.telemetry.vocabulary import Kind

#: What such words of a job are worth, as far as it is known how often they are right.
WORTH = load_reliability().probability


@pytest.fixture(params=[False, True], ids=["working copy", "rows alone"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(fresh=request.param)


def test_o1_an_agent_that_dies_under_two_jobs_is_one_telemetry_incident(fleet: Fleet) -> None:
    fleet.harmless()
    for name in ("a", "c"):
        job = fleet.job(name, ["n1-0", f"n{2 if name == 'a' else 3}-0"])
        job.tell(Kind.AGENT_SILENT, 10.0 + (name == "c"), onset=5.0, node="n1-0", step=None)
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.TELEMETRY_FAULT)
    assert (joint["bucket"], joint["severity"], joint["suspects"]) == ("telemetry", "ticket", [])
    assert jobs_of(joint) == {"a", "c"}
    assert "n1-0" in joint["evidence"][0]["shows"]
    assert len(standing(court)) == 1
    assert nodes_blamed(court) == set()


def test_o1_twin_a_node_that_is_lost_with_its_ranks_is_no_telemetry(fleet: Fleet) -> None:
    for name in ("a", "c"):
        job = fleet.job(name, ["n1-0", f"n{2 if name == 'a' else 3}-0"])
        job.tell(Kind.NODE_LOST, 10.0 + (name == "c"), onset=5.0, node="n1-0", step=None)
    court = fleet.run(60.0)
    assert all(document["kind"] != "telemetry_fault" for document in court.pages)
    assert {document["severity"] for document in standing(court)} == {"page"}


def test_o2_input_that_is_lost_for_many_jobs_is_one_incident_of_the_input(fleet: Fleet) -> None:
    fleet.harmless()
    for i in range(6):
        job = fleet.job(f"j{i}", fleet.under(i, 0, 1))
        job.tell(Kind.INPUT_SILENT, 10.0 + i, onset=4.0, step=None)
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.TELEMETRY_FAULT)
    assert len(jobs_of(joint)) == 6
    assert joint["severity"] != "page"
    assert len(standing(court)) == 1


def test_o3_a_clock_that_was_stepped_lowers_what_rests_on_its_order(fleet: Fleet) -> None:
    fleet.harmless()
    fleet.change("n1-0", "clock", "", "stepped by -3.200 s", 8.0)
    job = fleet.job("a", ["n1-0", "n1-1"])
    job.tell(Kind.RANK_DIED, 10.0, onset=9.0, node="n1-0")
    court = fleet.run(60.0)
    (telemetry,) = [d for d in court.pages if d["kind"] == "telemetry_fault"]
    assert (telemetry["severity"], telemetry["state"], telemetry["suspects"]) == ("info", "resolved", [])
    (died,) = [d for d in court.pages if d["kind"] == "rank_died"]
    assert died["confidence"] == pytest.approx(WORTH(0.9 * 0.8, "rank_died"), abs=0.001)
    assert any(row["signal"] == "change.clock" for row in died["evidence"])


def test_o3_twin_a_step_on_another_node_doubts_nothing(fleet: Fleet) -> None:
    fleet.change("n6-0", "clock", "", "stepped by -3.200 s", 8.0)
    fleet.job("a", ["n1-0", "n1-1"]).tell(Kind.RANK_DIED, 10.0, onset=9.0, node="n1-0")
    (died,) = [d for d in fleet.run(60.0).pages if d["kind"] == "rank_died"]
    assert died["confidence"] == pytest.approx(WORTH(0.9, "rank_died"), abs=0.001)


def test_o4_what_comes_twice_or_late_updates_and_opens_nothing(fleet: Fleet) -> None:
    jobs = [fleet.job(f"j{i}", [f"n2-{i}", f"n{4 + i}-0"]) for i in range(2)]
    for leaf in (0, 1, 3):
        fleet.job(f"well{leaf}", fleet.under(leaf, 5, 6))
    for i, job in enumerate(jobs):
        job.tell(Kind.COLLECTIVE_STALLED, 5.0 + i, onset=float(i))
    said = list(fleet.findings)
    fleet.findings += [(at + 40.0, n + 1000, finding) for at, n, finding in said[-8:]]
    court = fleet.run(120.0)
    assert [d["change"] for d in court.revisions].count("opened") == 2
    assert len(standing(court)) == 1


def test_o5_after_an_elastic_restart_the_history_is_the_node_s_and_not_the_rank_s(fleet: Fleet) -> None:
    """Rank 3 fails three times, each time on another node and at another step: neither the rank's place nor a node."""
    job = fleet.job("j", ["n1-0", "n1-1"], at=-9000.0)
    for i, node in enumerate(("n1-0", "n2-0", "n3-0")):
        at = -6000.0 + 3000.0 * i
        job.tell(Kind.RANK_DIED, at, rank=3, node=node, step=100 + 31 * i)
        job.end(at + 5.0)
        job = job.again(at + 60.0, [f"n{i + 2}-0", "n1-1"])
    court = fleet.run(60.0)
    assert {document["kind"] for document in court.pages} == {"rank_died"}


def test_o6_a_log_without_its_first_lines_makes_no_repetition_of_what_follows_everywhere(fleet: Fleet) -> None:
    """Of two jobs only the teardown was read: the same words at other steps, other ranks, on other nodes."""
    for i in range(3):
        job = fleet.job(f"j{i}", [f"n{i}-0", f"n{i + 3}-1"])
        job.tell(Kind.RANK_DIED, 500.0 * i, rank=i, step=10 * i + 3, error="Broken pipe")
    court = fleet.run(1600.0)
    assert {document["kind"] for document in court.pages} == {"rank_died"}
    assert nodes_blamed(court) == set()
