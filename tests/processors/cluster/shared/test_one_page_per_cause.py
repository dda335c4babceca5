"""Nobody is called twice for one cause, and everybody is called for what is none of another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S
from tests.processors.cluster.shared.fleet import DAY_S, FastCourt, Fleet, Job, joint_of
from whichrank.processors.cluster.shared.waiting import HOLD_S
from whichrank.telemetry.vocabulary import Kind

RESOLUTION = "RuntimeError: Temporary failure in name resolution"
NO_QUOTA = "OSError: [Errno 122] Disk quota exceeded: '/lustre/ckpt'"
ERRORS = ["ValueError: bad", "RuntimeError: CUDA error: launch failure", "OSError: broken", "KeyError: x"]
HOUR_S = 3600.0


@pytest.fixture(params=[False, True], ids=["working copy", "rows alone"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(fresh=request.param)


def pages(court: FastCourt) -> list[str]:
    """Jobs whose incidents have called somebody, in order: once for each incident."""
    called: dict[str, str] = {}
    for document in court.revisions:
        is_out = document["state"] == "open" and not document.get("hold")
        if is_out and document["severity"] == "page":
            called.setdefault(document["id"], document["job"]["id"])
    return list(called.values())


def longest_hold_s(court: FastCourt) -> float:
    waits = [(d["hold"]["until"], d["times"]["detected"]) for d in court.revisions if d.get("hold")]
    return max((until - detected for until, detected in waits), default=0.0)


def starts_in_vain(fleet: Fleet, name: str, leaf: int, at: float) -> Job:
    job = fleet.job(name, fleet.under(leaf, 0, 1), at=at - 22.0)
    job.tell(Kind.RANK_RAISED, at, rank=0, phase="init", step=None, error=RESOLUTION)
    return job.end(at + 1.0)


# --- what is shared now ---------------------------------------------------------------------------------------------
def test_who_is_hit_a_quarter_minute_later_by_what_has_hit_another_waits_for_both_to_be_one(fleet: Fleet) -> None:
    for leaf in (5, 6):
        fleet.job(f"runs{leaf}", fleet.under(leaf, *range(4)))
    starts_in_vain(fleet, "a", 0, 0.0)
    starts_in_vain(fleet, "b", 1, 15.0)
    court = fleet.run(90.0)
    assert joint_of(court, Kind.SERVICE_OUTAGE)["job"]["id"] == "a"
    assert pages(court) == ["a"]
    assert longest_hold_s(court) <= HOLD_S


def test_twin_who_is_hit_by_something_else_in_that_time_waits_for_nothing(fleet: Fleet) -> None:
    starts_in_vain(fleet, "a", 0, 0.0)
    fleet.job("b", fleet.under(1, 0, 1)).tell(Kind.RANK_RAISED, 15.0, node="n1-0", phase="forward", error="KeyError: x")
    court = fleet.run(90.0)
    assert pages(court) == ["a", "b"]
    assert longest_hold_s(court) == 0.0


def test_twin_what_could_be_of_one_cause_and_is_not_pages_twice_within_the_time_of_a_hold(fleet: Fleet) -> None:
    """Half a minute apart two jobs lose a rank under one leaf, where many others are well."""
    for i in range(6):
        fleet.job(f"well{i}", [f"n2-{2 + i}", f"n7-{2 + i}"], at=-HOUR_S)
    for i in range(2):
        job = fleet.job(f"j{i}", [f"n2-{i}", f"n4-{i}"])
        error = "RuntimeError: NCCL error: unhandled system error"
        job.tell(Kind.RANK_DIED, 5.0 + 50.0 * i, node=f"n2-{i}", error=error, step=10 + i, phase="backward")
    court = fleet.run(120.0)
    assert pages(court) == ["j0", "j1"]
    assert 0.0 < longest_hold_s(court) <= HOLD_S


def test_a_victim_that_is_restarted_in_vain_is_no_second_page(fleet: Fleet) -> None:
    for leaf in (5, 6):
        fleet.job(f"runs{leaf}", fleet.under(leaf, *range(4)))
    jobs = [fleet.job(name, fleet.under(leaf, 0, 1)) for leaf, name in enumerate(("a", "b"))]
    for i, job in enumerate(jobs):
        job.tell(Kind.RANK_RAISED, 4.0 * i, rank=0, error=NO_QUOTA, step=40)
        job.end(4.0 * i + 1.0)
    again = jobs[0].again(30.0)
    again.tell(Kind.RANK_RAISED, 75.0, rank=12, error=NO_QUOTA, step=40)
    court = fleet.run(160.0)
    assert len(joint_of(court, Kind.STORAGE_FULL)["jobs"]) == 3
    assert pages(court) == ["a"]


# --- what shows over days -------------------------------------------------------------------------------------------
def fails(fleet: Fleet, name: str, nodes: list[str], at: float, error: str) -> None:
    job = fleet.job(name, nodes, at=at - 150.0)
    job.tell(Kind.RANK_RAISED, at, node=nodes[0], error=error, step=100 + int(at))
    job.end(at + 30.0)


def test_who_shows_that_a_node_is_a_lemon_is_not_paged_beside_it(fleet: Fleet) -> None:
    for leaf in range(1, 4):
        fleet.job(f"well-{leaf}", fleet.under(leaf, *range(8)), at=-HOUR_S)
    for i in range(4):
        fails(fleet, f"j{i}", ["n0-5", f"n4-{i}"], 200.0 * i, ERRORS[i])
    court = fleet.run(900.0)
    assert joint_of(court, Kind.LEMON_NODE)["suspects"][0]["node"] == "n0-5"
    assert pages(court) == ["j0", "j1"]


def rolled_out(fleet: Fleet) -> FastCourt:
    for leaf in (3, 4):
        fleet.job(f"well{leaf}", fleet.under(leaf, *range(6)))
    for i, node in enumerate(fleet.nodes[:12]):
        fleet.change(node, "nvidia_driver", "550", "560", -3 * HOUR_S + 600.0 * i)
    for i, place in enumerate((0, 2, 5, 7, 9)):
        job = fleet.job(f"j{i}", [fleet.nodes[place], fleet.nodes[40 + i]], at=-6 * HOUR_S)
        job.tell(Kind.RANK_DIED, 1000.0 * (i - 5), node=fleet.nodes[place], step=500 + 7 * i, error=ERRORS[i % 4])
    return fleet.run(60.0)


def test_who_fails_next_of_a_rollout_that_is_known_is_no_page_though_its_node_is_another(fleet: Fleet) -> None:
    court = rolled_out(fleet)
    known = next(i for i, d in enumerate(court.revisions) if d["kind"] == "rollout_fault")
    called_before = {d["job"]["id"] for d in court.revisions[:known] if not d.get("hold")}
    assert len(joint_of(court, Kind.ROLLOUT_FAULT)["jobs"]) == 5
    assert set(pages(court)) == called_before < {f"j{i}" for i in range(5)}


# --- what outlasts its jobs -----------------------------------------------------------------------------------------
def computes_wrongly(fleet: Fleet, name: str, nodes: list[str], at: float, *, lasts_s: float = 60.0) -> None:
    job = fleet.job(name, nodes, at=at - 300.0)
    job.tell(Kind.NUMERIC_FIRST_RANK, at, node="n0-3", step=900 + int(at))
    job.well(at + lasts_s)
    job.end(at + lasts_s + 30.0)


def corrupted(fleet: Fleet, *more_s: float) -> FastCourt:
    """Three jobs on one node within twenty minutes, and one at each of these times."""
    for i in range(14):
        fleet.job(f"well{i}", [fleet.nodes[8 + i], fleet.nodes[9 + i]], at=-DAY_S)
    times = (0.0, 500.0, 1000.0, *more_s)
    for i, at in enumerate(times):
        computes_wrongly(fleet, f"j{i}", ["n0-3", f"n4-{i}"], at)
    return fleet.run(max(times) + 2 * HOUR_S)


def told_of(court: FastCourt, kind: Kind) -> list[tuple[str, str]]:
    told: dict[tuple[str, str], None] = {}
    for document in court.revisions:
        if document["kind"] == kind.value and document["state"] != "merged":
            told[document["job"]["id"], document["state"]] = None
    return list(told)


def test_a_gpu_that_corrupts_one_job_after_the_other_is_one_incident_between_them(fleet: Fleet) -> None:
    court = corrupted(fleet, 2000.0, 4000.0)
    assert pages(court) == ["j0", "j1", "j2"]
    assert told_of(court, Kind.SILENT_CORRUPTION) == [("j2", "open"), ("j2", "resolved")]
    joint = joint_of(court, Kind.SILENT_CORRUPTION)
    assert {job["id"] for job in joint["jobs"]} == {f"j{i}" for i in range(5)}
    assert joint["times"]["resolved"] == START_S + 4060.0
    last = [document for document in court.revisions if document["id"] == joint["id"]][-1]
    assert last["change"] == "resolved"


def called_wrong(fleet: Fleet, incident: str, at: float) -> None:
    label = {"incident": incident, "cause": "", "wrong": True, "by": "p", "time": START_S + at}
    fleet.say(f"label/{incident}", at, {"label": label})


def test_who_is_harmed_after_a_person_called_the_verdict_wrong_is_a_page(fleet: Fleet) -> None:
    joint = joint_of(corrupted(fleet), Kind.SILENT_CORRUPTION)
    again = Fleet()
    called_wrong(again, joint["id"], 1500.0)
    assert pages(corrupted(again, 2000.0)) == ["j0", "j1", "j2", "j3"]


def test_what_begins_again_after_an_hour_in_which_all_was_well_is_a_page_of_its_own(fleet: Fleet) -> None:
    court = corrupted(fleet, 1000.0 + 60.0 + HOUR_S + 60.0)
    assert pages(court) == ["j0", "j1", "j2", "j3"]


def test_a_known_bad_node_s_incident_survives_the_loss_of_working_copies() -> None:
    def seen(court: FastCourt) -> list[Mapping[str, Any]]:
        return [dict(document) for document in court.revisions]

    assert seen(corrupted(Fleet(fresh=True), 2000.0)) == seen(corrupted(Fleet(), 2000.0))


# --- the same end after a restart -----------------------------------------------------------------------------------
def ends_again(
    fleet: Fleet, *, first: Mapping[str, Any] | None = None, second: Mapping[str, Any] | None = None, well: bool = False
) -> FastCourt:
    """A job ends, and after its restart on the same nodes again; second, first: what is not the same."""
    same: dict[str, Any] = {"node": "n1-0", "error": "ValueError: a bad record", "step": 33}
    job = fleet.job("a", ["n1-0", "n1-1"], at=0.0)
    job.tell(Kind.RANK_RAISED, 40.0, **{**same, **(first or {})})
    job.end(42.0)
    again = job.again(60.0)
    if well:
        job.well(90.0)
    again.tell(Kind.RANK_RAISED, 100.0, **{**same, "step": 8, **(second or {})})
    return fleet.run(200.0)


def test_a_job_that_ends_as_before_while_people_know_of_it_is_a_ticket(fleet: Fleet) -> None:
    court = ends_again(fleet)
    assert pages(court) == ["a"]
    first, second = court.pages
    assert (first["severity"], second["severity"], second["state"]) == ("page", "ticket", "open")
    assert (second["kind"], second["advice"]) == (first["kind"], second["advice"])
    (row,) = [row for row in second["evidence"] if row["signal"] == "history.same_end"]
    assert row["value"] == first["id"]


def test_after_a_person_called_the_first_wrong_the_same_end_is_a_page(fleet: Fleet) -> None:
    first = ends_again(fleet).pages[0]["id"]
    again = Fleet()
    called_wrong(again, first, 70.0)
    assert pages(ends_again(again)) == ["a", "a"]


def test_the_evidence_of_it_stays_one_row_whatever_is_told_later(fleet: Fleet) -> None:
    ends_again(fleet)
    fleet.findings.clear()
    fleet.condition("memory_short", "n1-0", 210.0, device_kind="memory", device="", explains=["rank_raised"])
    court = fleet.run(300.0)
    last = court.incidents[court.pages[1]["id"]]
    assert last["revision"] > 1
    assert [row["signal"] for row in last["evidence"]].count("history.same_end") == 1


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"second": {"error": "KeyError: x"}}, id="another error"),
        pytest.param({"second": {"rank": 4}}, id="another rank"),
        pytest.param({"second": {"error": ""}, "first": {"error": ""}}, id="nothing is known of how"),
        pytest.param({"well": True}, id="the job has got past it"),
    ],
)
def test_twin_what_is_not_the_same_end_or_no_longer_open_is_a_page(fleet: Fleet, changed: dict[str, Any]) -> None:
    assert pages(ends_again(fleet, **changed)) == ["a", "a"]


def test_the_same_rank_on_another_node_at_another_step_is_a_page(fleet: Fleet) -> None:
    job = fleet.job("a", ["n1-0", "n1-1"], at=0.0)
    job.tell(Kind.RANK_RAISED, 40.0, node="n1-0", error="ValueError: a bad record", step=33)
    job.end(42.0)
    job.again(60.0, ["n2-0", "n1-1"]).tell(
        Kind.RANK_RAISED, 100.0, node="n2-0", error="ValueError: a bad record", step=8
    )
    assert pages(fleet.run(200.0)) == ["a", "a"]


def test_another_job_of_the_same_program_is_a_page_though_it_ends_the_same(fleet: Fleet) -> None:
    for name, node in (("a", "n1-0"), ("b", "n3-0")):
        job = fleet.job(name, [node, f"{node[:-1]}1"], at=0.0)
        job.tell(Kind.RANK_RAISED, 40.0 if name == "a" else 100.0, node=node, error="ValueError: bad", step=33)
    assert pages(fleet.run(200.0)) == ["a", "b"]
