"""J1 to J13 of the catalogue as findings, with what is always there beside, and each with a twin that only looks so."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from tests.processors.cluster.conftest import Court
from tests.processors.cluster.shared.fleet import DAY_S, Fleet, Job, jobs_of, joint_of, nodes_blamed, standing
from whichrank.processors.cluster import case_book
from whichrank.telemetry.incident import SCHEMA_PATH
from whichrank.telemetry.vocabulary import Kind


@pytest.fixture(params=[False, True], ids=["working copy", "rows alone"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(fresh=request.param)


# --- J1, J2: storage ------------------------------------------------------------------------------------------------
def three_readers(fleet: Fleet) -> list[Job]:
    return [fleet.job(name, fleet.under(leaf, 0, 1, 2, 3)) for leaf, name in enumerate(("a", "c", "d"))]


def storm(fleet: Fleet, *, since: float, rate: float = 4000.0) -> Job:
    """Job b opens files without end; everybody's usual rate is known."""
    b = fleet.job("b", fleet.under(3, 0, 1))
    for node in fleet.nodes:
        fleet.load(node, -3000.0, rate=20.0)
    for node in b.nodes:
        fleet.load(node, since + 20.0, rate=rate, since=since)
    return b


def test_j1_a_metadata_storm_is_its_job_s_and_the_readers_are_victims(fleet: Fleet) -> None:
    fleet.harmless()
    readers = three_readers(fleet)
    storm(fleet, since=0.0)
    for i, job in enumerate(readers):
        job.tell(Kind.RANK_SLOW, 40.0 + 3 * i, onset=12.0 + 4 * i, node=job.nodes[i], phase="data")
    court = fleet.run(200.0)
    joint = joint_of(court, Kind.STORAGE_OVERLOAD)
    assert (joint["scope"], joint["suspects"][0]["id"], joint["suspects"][1]["id"]) == ("storage", "lustre1", "b")
    assert (jobs_of(joint), jobs_of(joint, "culprit")) == ({"a", "c", "d"}, {"b"})
    assert joint["advice"]["action"] == "throttle_tenant"
    assert nodes_blamed(court) == set()
    assert len(standing(court)) == 1
    assert any("before the first job waited" in row["shows"] for row in joint["evidence"])
    Draft202012Validator(json.loads(SCHEMA_PATH.read_text())).validate(joint)


def test_a_joint_incident_that_makes_room_is_ended_and_those_it_led_stand_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many incidents of its owner push it out: nothing stays open that nobody keeps, or merged into it."""
    readers = three_readers(fleet)
    storm(fleet, since=0.0)
    for i, job in enumerate(readers):
        job.tell(Kind.RANK_SLOW, 40.0 + 3 * i, onset=12.0 + 4 * i, node=job.nodes[i], phase="data")
    leader = joint_of(fleet.run(200.0), Kind.STORAGE_OVERLOAD)
    fleet.findings.clear()
    fleet.court.owners |= {str(leader["job"]["id"]): "noisy", **{f"many-{n}": "noisy" for n in range(8)}}
    monkeypatch.setattr(case_book, "MAX_INCIDENTS", 6)
    for n in range(8):
        fleet.job(f"many-{n}", fleet.under(2, 5), at=201.0).tell(Kind.RANK_DIED, 205.0 + n, rank=1)
    last = fleet.run(400.0).incidents
    assert last[leader["id"]]["state"] == "resolved"
    led = [document for document in last.values() if document["job"]["id"] in {job.name for job in readers}]
    assert len(led) == 3
    assert all(document["merged_into"] != leader["id"] for document in led)


def test_j1_twin_a_storm_that_came_after_the_stalls_is_not_their_cause(fleet: Fleet) -> None:
    readers = three_readers(fleet)
    storm(fleet, since=90.0)
    for i, job in enumerate(readers):
        job.tell(Kind.RANK_SLOW, 40.0 + 3 * i, onset=12.0 + 4 * i, node=job.nodes[i], phase="data")
    court = fleet.run(200.0)
    assert all("b" not in jobs_of(document, "culprit") for document in court.pages)


def test_j1_twin_ranks_that_are_slow_in_their_own_work_do_not_wait_for_storage(fleet: Fleet) -> None:
    readers = three_readers(fleet)
    storm(fleet, since=0.0)
    for i, job in enumerate(readers):
        job.tell(Kind.RANK_SLOW, 40.0 + 3 * i, onset=12.0 + 4 * i, node=job.nodes[i], phase="forward")
    court = fleet.run(200.0)
    assert {document["kind"] for document in standing(court)} == {"rank_slow"}


def test_j2_stalls_that_follow_each_burst_of_checkpoints_are_the_writer_s(fleet: Fleet) -> None:
    fleet.harmless()
    victims = [fleet.job(name, fleet.under(leaf, 0, 1, 2, 3)) for leaf, name in enumerate(("a", "c"))]
    writer = fleet.job("b", fleet.under(3, 0, 1, 2, 3))
    for node in fleet.nodes:
        fleet.load(node, -3000.0, rate=30.0, operation="write")
    for burst in (0.0, 600.0, 1200.0):
        for node in writer.nodes:
            fleet.load(node, burst + 12.0, rate=9000.0, operation="write", since=burst)
            fleet.load(node, burst + 60.0, rate=9000.0, operation="write", since=burst, until=burst + 40.0)
        for i, job in enumerate(victims):
            job.tell(
                Kind.RANK_SLOW,
                burst + 20.0 + i,
                onset=burst + 5.0 + i,
                node=job.nodes[1],
                phase="data",
                step=int(burst),
            )
            if burst < 1200.0:
                job.well(burst + 50.0)
    court = fleet.run(1300.0)
    open_joint = [d for d in court.pages if d["kind"] == "storage_overload" and d["state"] == "open"]
    assert len(open_joint) == 1
    assert jobs_of(open_joint[0], "culprit") == {"b"}
    assert jobs_of(open_joint[0]) == {"a", "c"}
    assert "write" in open_joint[0]["advice"]["text"]
    assert nodes_blamed(court) == set()


def test_j2_who_was_hit_by_two_bursts_has_one_cause_with_the_others(fleet: Fleet) -> None:
    """A job tells the third burst as one more incident, and then the first one again, as what comes and goes."""
    victims = [fleet.job(name, fleet.under(leaf, 0, 1, 2, 3)) for leaf, name in enumerate(("a", "c", "d"))]
    writer = fleet.job("b", fleet.under(3, 0, 1, 2, 3))
    bursts = (0.0, 42.0, 84.0)
    for node in fleet.nodes:
        fleet.load(node, -3000.0, rate=30.0, operation="write")
    for burst in bursts:
        for node in writer.nodes:
            fleet.load(node, burst + 12.0, rate=9000.0, operation="write", since=burst)
            fleet.load(node, burst + 25.0, rate=9000.0, operation="write", since=burst, until=burst + 15.0)
    first, *others = victims
    for i, job in enumerate(victims):
        job.tell(Kind.SLOW_TOGETHER, 18.0 + i, onset=3.0 + i, phase="data", step=78)
        job.well(33.0 + i)
    stalls = [(burst + 3.0, burst + 17.0) for burst in bursts]
    for i, job in enumerate(others):
        job.tell(Kind.SLOW_TOGETHER, 100.0 + i, onset=4.0 + i, phase="data", step=78, stalls=stalls)
    first.tell(Kind.SLOW_TOGETHER, 103.0, onset=88.0, phase="data", step=114, key="later")
    first.tell(Kind.SLOW_TOGETHER, 118.0, onset=3.0, phase="data", step=78, stalls=stalls)
    court = fleet.run(260.0)
    (document,) = standing(court)
    assert (document["kind"], document["state"]) == ("storage_overload", "open")
    assert (jobs_of(document), jobs_of(document, "culprit")) == ({"a", "c", "d"}, {"b"})


def test_j2_twin_a_checkpoint_that_nobody_waits_for_is_nobody_s_trouble(fleet: Fleet) -> None:
    fleet.job("a", fleet.under(0, 0, 1))
    writer = fleet.job("b", fleet.under(3, 0, 1))
    for node in writer.nodes:
        fleet.load(node, 12.0, rate=9000.0, operation="write", since=0.0)
    assert fleet.run(300.0).revisions == []


# --- J3: a lemon ----------------------------------------------------------------------------------------------------
def history(fleet: Fleet, failures: list[tuple[str, float, str, str]], *, nodes: int = 2, **about: str) -> None:
    """Jobs (name, day, node, error) that ran half a day on ``nodes`` nodes, and failed on this one."""
    for name, day, node, error in failures:
        begin = (day - 0.5) * DAY_S
        others = [n for n in fleet.nodes if n != node][: nodes - 1]
        job = fleet.job(name, [node, *others], at=begin, **about)
        job.tell(Kind.RANK_RAISED, day * DAY_S, node=node, error=error, step=1000 + round(100 * day))
        if day < 0:
            job.tell(Kind.RANK_RAISED, day * DAY_S + 60.0, onset=day * DAY_S, node=node, error=error, cleared=True,
                     step=1000 + round(100 * day))  # fmt: skip
            job.end(day * DAY_S + 30.0)


def busy_fleet(fleet: Fleet) -> None:
    """Everybody else has run well for three weeks."""
    for leaf in range(1, 8):
        fleet.job(f"well-{leaf}", fleet.under(leaf, *range(8)), at=-19 * DAY_S)


ERRORS = ["ValueError: bad", "RuntimeError: CUDA error: launch failure", "OSError: broken", "KeyError: x"]


def test_j3_one_node_in_failed_jobs_of_different_people_is_a_lemon(fleet: Fleet) -> None:
    busy_fleet(fleet)
    failures = [(f"j{i}", -9.0 + 3 * i, "n0-5", error) for i, error in enumerate(ERRORS)]
    history(fleet, failures)
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.LEMON_NODE)
    assert (joint["scope"], [s["node"] for s in joint["suspects"]]) == ("node", ["n0-5"])
    assert jobs_of(joint) == {"j0", "j1", "j2", "j3"}
    assert joint["confidence"] > 0.95
    assert joint["advice"]["action"] == "restart_without_node"


def failed_within_minutes(fleet: Fleet, failures: list[tuple[str, str]]) -> Court:
    """Each (node, error) under a program of its own, on a fleet that has been watched for an hour only."""
    for leaf in range(1, 4):
        fleet.job(f"well-{leaf}", fleet.under(leaf, *range(8)), at=-3600.0)
    for i, (node, error) in enumerate(failures):
        job = fleet.job(f"j{i}", [node, f"n4-{i}"], at=200.0 * i)
        job.tell(Kind.RANK_RAISED, 200.0 * i + 150.0, node=node, error=error, step=100 + i)
        job.end(200.0 * i + 180.0)
    return fleet.run(200.0 * len(failures) + 100.0)


def test_j3_three_programs_failed_on_one_node_and_nobody_else(fleet: Fleet) -> None:
    """No error says of itself that it is the node's."""
    court = failed_within_minutes(fleet, [("n0-5", error) for error in ERRORS[:3]])
    assert [s["node"] for s in joint_of(court, Kind.LEMON_NODE)["suspects"]] == ["n0-5"]


def test_j3_twin_what_fails_in_the_same_words_elsewhere_too_is_not_of_the_node(fleet: Fleet) -> None:
    """A driver is bad, and by chance one node meets it more often: another node failed in these words as well."""
    court = failed_within_minutes(fleet, [(node, ERRORS[1]) for node in ("n0-2", "n0-5", "n0-5", "n0-2", "n0-5")])
    assert all(document["kind"] != "lemon_node" for document in court.revisions)


def test_j3_twin_one_program_that_fails_wherever_it_is_put_makes_no_lemon_of_its_node(fleet: Fleet) -> None:
    """Its owner mends one error after the other, and the scheduler gives the same node each time."""
    busy_fleet(fleet)
    failures = [(f"j{i}", -9.0 + 3 * i, "n0-5", error) for i, error in enumerate(ERRORS)]
    history(fleet, failures, owner="ann", name="tune")
    court = fleet.run(60.0)
    assert all(document["kind"] != "lemon_node" for document in court.revisions)


def test_j3_who_fails_next_on_a_known_lemon_pages_nobody_again(fleet: Fleet) -> None:
    busy_fleet(fleet)
    history(fleet, [(f"j{i}", -9.0 + 3 * i, "n0-5", error) for i, error in enumerate(ERRORS)])
    history(fleet, [("next", 40.0 / DAY_S, "n0-5", "IndexError: y")])
    court = fleet.run(90.0)
    joint = joint_of(court, Kind.LEMON_NODE)
    assert "next" in jobs_of(joint)
    aloud = [d for d in court.revisions if not d.get("hold") and d["state"] != "merged" and d["id"] != joint["id"]]
    assert "next" not in {job["id"] for document in aloud for job in document["jobs"]}


def test_j3_twin_failures_on_a_node_that_runs_everything_are_not_its_fault(fleet: Fleet) -> None:
    """One job on all nodes for weeks: it fails now and then, somewhere; two of four failures were on one node."""
    fleet.job("large", fleet.nodes, at=-19 * DAY_S)
    places = ["n0-5", "n3-1", "n0-5", "n6-2", "n0-5"]
    for i, node in enumerate(places):
        name = f"j{i}"
        history(fleet, [(name, -8.0 + 2 * i, node, ERRORS[i % 4])])
    for i in range(30):
        history(fleet, [(f"k{i}", -18.0 + i / 2, fleet.nodes[7 + i], ERRORS[i % 4])])
    court = fleet.run(60.0)
    assert all(document["kind"] != "lemon_node" for document in court.pages)


# --- J4: the same place again ---------------------------------------------------------------------------------------
def dies(
    job: Job, at: float, *, rank: int = 5, step: int = 300, error: str = "ValueError: token 50257 of sample 77"
) -> None:
    job.tell(Kind.RANK_RAISED, at, rank=rank, step=step, error=error)
    job.end(at + 2.0)


def test_j4_the_same_rank_and_step_on_three_nodes_is_the_application(fleet: Fleet) -> None:
    fleet.harmless()
    first = fleet.job("j", ["n1-0", "n1-1"])
    dies(first, 0.0)
    second = first.again(30.0, ["n2-3", "n1-1"])
    dies(second, 100.0, error="ValueError: token 50257 of sample 78")
    third = second.again(130.0, ["n4-4", "n1-1"])
    dies(third, 200.0)
    court = fleet.run(260.0)
    joint = joint_of(court, Kind.APPLICATION_REPEATS)
    assert (joint["scope"], joint["advice"]["action"]) == ("application", "fix_code")
    assert len(standing(court)) == 1
    assert len(joint["jobs"]) == 3
    assert nodes_blamed(court) == set()
    assert {"node n1-0", "node n2-3", "node n4-4"} <= {row["who"] for row in joint["ruled_out"]}


def test_j4_twin_the_same_error_that_stays_with_one_node_clears_nobody(fleet: Fleet) -> None:
    first = fleet.job("j", ["n1-0", "n1-1"])
    dies(first, 0.0, step=300)
    second = first.again(30.0)
    dies(second, 100.0, step=741)
    court = fleet.run(160.0)
    assert {document["kind"] for document in court.pages} == {"rank_raised"}


def test_j4_twin_another_step_on_another_node_is_no_repetition(fleet: Fleet) -> None:
    first = fleet.job("j", ["n1-0", "n1-1"])
    dies(first, 0.0, step=300)
    dies(first.again(30.0, ["n2-3", "n1-1"]), 100.0, step=950)
    assert {document["kind"] for document in fleet.run(160.0).pages} == {"rank_raised"}


# --- J5: no room ----------------------------------------------------------------------------------------------------
NO_SPACE = "OSError: [Errno 28] No space left on device: '/lustre/ckpt'"


def test_j5_no_room_in_several_jobs_is_the_file_system(fleet: Fleet) -> None:
    fleet.harmless()
    for i, leaf in enumerate((0, 2, 5)):
        job = fleet.job(f"j{i}", fleet.under(leaf, 0, 1))
        job.tell(Kind.RANK_RAISED, 5.0 * i, node=job.nodes[0], phase="checkpoint", error=NO_SPACE)
    fleet.job("idle-writer", fleet.under(6, 0, 1))
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.STORAGE_FULL)
    assert (joint["bucket"], joint["scope"], joint["advice"]["action"]) == ("capacity", "storage", "raise_quota")
    assert jobs_of(joint) == {"j0", "j1", "j2"}
    assert len(standing(court)) == 1


def test_j5_twin_two_jobs_on_one_node_s_own_full_disk(fleet: Fleet) -> None:
    for name in ("j0", "j1"):
        job = fleet.job(name, ["n0-0"])
        job.tell(Kind.RANK_RAISED, 5.0, node="n0-0", phase="checkpoint", error=NO_SPACE.replace("lustre", "scratch"))
    assert all(document["kind"] != "storage_full" for document in fleet.run(60.0).pages)


# --- J6, J7: switches -----------------------------------------------------------------------------------------------
def spread(fleet: Fleet) -> list[Job]:
    """Jobs over several leaves each; a, c and x have nodes under leaf 2."""
    return [
        fleet.job("a", [*fleet.under(1, 0, 1), *fleet.under(2, 0, 1)]),
        fleet.job("c", [*fleet.under(2, 2, 3), *fleet.under(4, 0, 1, 2, 3)]),
        fleet.job("e", [*fleet.under(3, 0, 1), *fleet.under(5, 0, 1)]),
        fleet.job("f", [*fleet.under(0, 0, 1), *fleet.under(6, 0, 1)]),
    ]


def test_j6_slow_ranks_of_two_jobs_under_one_leaf_are_the_leaf(fleet: Fleet) -> None:
    fleet.harmless()
    a, c, _, _ = spread(fleet)
    a.tell(Kind.RANK_SLOW, 30.0, onset=5.0, node="n2-1", phase="backward")
    c.tell(Kind.RANK_SLOW, 38.0, onset=7.0, node="n2-2", phase="backward")
    court = fleet.run(240.0)
    joint = joint_of(court, Kind.SWITCH_FAULT)
    assert (joint["scope"], joint["suspects"][0]["id"], jobs_of(joint)) == ("switch", "leaf2", {"a", "c"})
    assert {"node n2-1", "node n2-2"} <= {row["who"] for row in joint["ruled_out"]}
    assert len(standing(court)) == 1
    assert nodes_blamed(court) == set()


def test_j6_twin_two_slow_ranks_where_many_others_are_well(fleet: Fleet) -> None:
    """Six more jobs cross the same leaf without a hitch: it is two bad nodes."""
    a, c, _, _ = spread(fleet)
    for i in range(4):
        fleet.job(f"well{i}", [f"n2-{4 + i}", f"n7-{4 + i}"])
    a.tell(Kind.RANK_SLOW, 30.0, onset=5.0, node="n2-1", phase="backward")
    c.tell(Kind.RANK_SLOW, 38.0, onset=7.0, node="n2-2", phase="backward")
    court = fleet.run(240.0)
    assert {document["kind"] for document in standing(court)} == {"rank_slow"}
    assert len(standing(court)) == 2


def test_j6_twin_each_has_a_reason_of_its_own(fleet: Fleet) -> None:
    a, c, _, _ = spread(fleet)
    for job, node in ((a, "n2-1"), (c, "n2-2")):
        fleet.condition("gpu_clock_locked", node, 4.0, job=job, device=f"GPU-{node}")
        job.tell(Kind.RANK_SLOW, 30.0, onset=5.0, node=node, phase="backward", gpu=f"GPU-{node}")
    court = fleet.run(240.0)
    assert {document["kind"] for document in standing(court)} == {"rank_slow"}


def test_j7_two_jobs_that_disturb_each_other_over_a_spine_need_no_broken_switch(fleet: Fleet) -> None:
    fleet.harmless()
    old = fleet.job("a", [*fleet.under(2, 0, 1), *fleet.under(3, 0, 1)])
    for i in range(3):
        fleet.job(f"well{i}", [f"n2-{4 + i}", f"n3-{4 + i}"])
    new = fleet.job("c", [*fleet.under(2, 2, 3), *fleet.under(3, 2, 3)], at=0.0)
    old.tell(Kind.SLOW_TOGETHER, 60.0, onset=20.0)
    new.tell(Kind.SLOW_TOGETHER, 66.0, onset=22.0)
    court = fleet.run(200.0)
    joint = joint_of(court, Kind.LINK_CONTENTION)
    assert (joint["suspects"][0]["id"], jobs_of(joint)) == ("spine1", {"a", "c"})
    assert nodes_blamed(court) == set()
    assert len(standing(court)) == 1


def test_j7_clears_when_one_of_them_ends(fleet: Fleet) -> None:
    test_j7_two_jobs_that_disturb_each_other_over_a_spine_need_no_broken_switch(fleet)
    court = fleet.court
    fleet.findings.clear()
    old = Job.__new__(Job)
    old.__dict__.update(
        fleet=fleet, name="a", attempt="a1", begin=-7200.0, nodes=[f"n2-{i}" for i in (0, 1)] + ["n3-0", "n3-1"]
    )
    old.about = {"run": "run-a", "owner": "owner-a"}
    new = Job.__new__(Job)
    new.__dict__.update(fleet=fleet, name="c", attempt="a1", begin=0.0, nodes=["n2-2", "n2-3", "n3-2", "n3-3"])
    new.about = {"run": "run-c", "owner": "owner-c"}
    new.tell(Kind.SLOW_TOGETHER, 400.0, onset=22.0, cleared=True)
    old.tell(Kind.SLOW_TOGETHER, 420.0, onset=20.0, cleared=True)
    fleet.run(500.0)
    assert joint_of(court, Kind.LINK_CONTENTION)["state"] == "resolved"


def test_j7_twin_a_newcomer_that_shares_no_spine(fleet: Fleet) -> None:
    old = fleet.job("a", [*fleet.under(0, 0, 1), *fleet.under(1, 0, 1)])
    new = fleet.job("c", [*fleet.under(4, 2, 3), *fleet.under(5, 2, 3)], at=0.0)
    for i in range(3):
        fleet.job(f"well{i}", [f"n2-{4 + i}", f"n3-{4 + i}"])
    old.tell(Kind.SLOW_TOGETHER, 60.0, onset=20.0)
    new.tell(Kind.SLOW_TOGETHER, 66.0, onset=22.0)
    assert {document["kind"] for document in standing(fleet.run(200.0))} == {"slow_together"}


# --- J8: a rollout --------------------------------------------------------------------------------------------------
def rollout(fleet: Fleet, *, changed: int = 12) -> list[str]:
    """A driver goes to the first nodes, one every ten minutes, from three hours ago on."""
    nodes = fleet.nodes[:changed]
    for i, node in enumerate(nodes):
        fleet.change(node, "nvidia_driver", "550", "560", -3 * 3600.0 + 600.0 * i)
    return nodes


def fails_on(fleet: Fleet, nodes: list[str], times: list[float], errors: list[str] | None = None) -> None:
    for i, (node, at) in enumerate(zip(nodes, times, strict=True)):
        job = fleet.job(f"j{i}", [node, fleet.nodes[40 + i]], at=-6 * 3600.0)
        job.tell(Kind.RANK_DIED, at, node=node, step=500 + 7 * i, error=(errors or ERRORS)[i % 4])


def test_j8_failures_that_follow_a_driver_are_the_rollout_and_no_node_s(fleet: Fleet) -> None:
    busy = [fleet.job(f"well{leaf}", fleet.under(leaf, *range(6))) for leaf in (3, 4)]
    nodes = rollout(fleet)
    fails_on(fleet, [nodes[i] for i in (0, 2, 5, 7, 9)], [-7000.0, -5000.0, -3000.0, -1000.0, 0.0])
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.ROLLOUT_FAULT)
    assert (joint["scope"], joint["suspects"][0]["id"], joint["advice"]["action"]) == ("cluster", "560", "roll_back")
    assert jobs_of(joint) == {f"j{i}" for i in range(5)}
    assert nodes_blamed(court) == set()
    assert len(standing(court)) == 1
    assert busy


def test_j8_twin_failures_on_nodes_that_were_not_changed(fleet: Fleet) -> None:
    rollout(fleet)
    fails_on(fleet, [fleet.nodes[i] for i in (20, 25, 30, 3, 35)], [-7000.0, -5000.0, -3000.0, -1000.0, 0.0])
    assert all(document["kind"] != "rollout_fault" for document in fleet.run(60.0).pages)


def test_j8_twin_failures_before_their_node_was_changed(fleet: Fleet) -> None:
    nodes = fleet.nodes[:12]
    fails_on(fleet, [nodes[i] for i in (0, 2, 5, 7, 9)], [-7000.0, -5000.0, -3000.0, -1000.0, 0.0])
    for node in nodes:
        fleet.change(node, "nvidia_driver", "550", "560", 20.0)
    assert all(document["kind"] != "rollout_fault" for document in fleet.run(60.0).pages)


# --- J9: silent corruption ------------------------------------------------------------------------------------------
def held(fleet: Fleet, name: str, nodes: list[str], day: float, *, bad: bool) -> None:
    job = fleet.job(name, nodes, at=day * DAY_S)
    if bad:
        at = day * DAY_S + 7200.0
        job.tell(Kind.NUMERIC_ALL, at, step=900 + int(10 * abs(day)))
        if day < -0.2:
            job.well(at + 600.0)
    if day < -0.2:
        job.end(day * DAY_S + 20_000.0)


def test_j9_all_who_held_one_node_go_wrong_in_their_numbers(fleet: Fleet) -> None:
    for i in range(14):
        held(fleet, f"well{i}", [fleet.nodes[8 + i], fleet.nodes[9 + i]], -15.0 + i, bad=False)
    for i, other in enumerate(("n1-1", "n2-5", "n4-4", "n6-0")):
        held(fleet, f"j{i}", ["n0-3", other], -12.0 + 4 * i - 0.0833 * (i == 3), bad=True)
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.SILENT_CORRUPTION)
    assert (joint["scope"], [s["node"] for s in joint["suspects"]]) == ("node", ["n0-3"])
    assert jobs_of(joint) == {"j0", "j1", "j2", "j3"}


def test_j9_twin_spikes_that_share_no_node(fleet: Fleet) -> None:
    for i in range(14):
        held(fleet, f"well{i}", [fleet.nodes[8 + i], fleet.nodes[9 + i]], -15.0 + i, bad=False)
    for i, node in enumerate(("n0-3", "n2-5", "n4-4", "n6-0")):
        held(fleet, f"j{i}", [node, fleet.nodes[50 + i]], -12.0 + 4 * i - 0.0833 * (i == 3), bad=True)
    assert {document["kind"] for document in fleet.run(60.0).pages} == {"numeric_all"}


# --- J10: power and cooling -----------------------------------------------------------------------------------------
def throttled_rack(fleet: Fleet, nodes: list[str], elsewhere: list[str]) -> list[Job]:
    jobs = [
        fleet.job("a", [*fleet.under(1, 0, 1), *fleet.under(4, 0, 1)]),
        fleet.job("c", [*fleet.under(1, 2, 3), *fleet.under(5, 0, 1)]),
        fleet.job("e", [*fleet.under(2, 0, 1), *fleet.under(6, 0, 1)]),
    ]
    for i, node in enumerate([*nodes, *elsewhere]):
        job = next((j for j in jobs if node in j.nodes), None)
        fleet.condition("gpu_throttled", node, float(i), device=f"GPU-{node}", job=job)
    return jobs


def test_j10_throttling_in_one_rack_is_its_power_or_cooling(fleet: Fleet) -> None:
    fleet.harmless()
    a, c, _ = throttled_rack(fleet, fleet.under(1, 0, 1, 2, 3), [])
    a.tell(Kind.RANK_SLOW, 40.0, onset=10.0, node="n1-0", phase="forward", gpu="GPU-n1-0")
    c.tell(Kind.RANK_SLOW, 45.0, onset=14.0, node="n1-3", phase="forward", gpu="GPU-n1-3")
    court = fleet.run(240.0)
    joint = joint_of(court, Kind.POWER_COOLING)
    assert joint["scope"] == "cluster"
    assert jobs_of(joint) == {"a", "c"}
    assert joint["suspects"][0]["id"] in ("rack1a", "pdu1a")
    assert nodes_blamed(court) == set()


def test_j10_two_jobs_that_are_slow_as_a_whole_suspect_nobody_and_stand_under_one_power_supply(fleet: Fleet) -> None:
    fleet.harmless()
    a, c, _ = throttled_rack(fleet, fleet.under(1, 0, 1, 2, 3), [])
    a.tell(Kind.SLOW_TOGETHER, 40.0, onset=10.0, rank=None)
    c.tell(Kind.SLOW_TOGETHER, 45.0, onset=14.0, rank=None)
    court = fleet.run(240.0)
    assert jobs_of(joint_of(court, Kind.POWER_COOLING)) == {"a", "c"}
    assert not [d for d in court.revisions if d["job"]["id"] in ("a", "c") and d["scope"] in ("node", "gpu")]


def test_j10_twin_throttling_everywhere_is_no_rack(fleet: Fleet) -> None:
    jobs = throttled_rack(fleet, fleet.under(1, 0, 3), ["n4-0", "n5-1", "n2-0", "n6-1"])
    for i, (job, node) in enumerate(zip(jobs, ("n1-0", "n1-3", "n2-0"), strict=True)):
        job.tell(Kind.RANK_SLOW, 40.0 + i, onset=10.0 + i, node=node, phase="forward", gpu=f"GPU-{node}")
    assert all(document["kind"] != "power_cooling" for document in fleet.run(240.0).pages)


# --- J11: a service -------------------------------------------------------------------------------------------------
RESOLUTION = "RuntimeError: Temporary failure in name resolution"


def test_j11_jobs_that_fail_together_while_they_start_are_a_service_s_victims(fleet: Fleet) -> None:
    fleet.harmless()
    for leaf in (5, 6):
        fleet.job(f"runs{leaf}", fleet.under(leaf, *range(4)))
    for i, leaf in enumerate((0, 1, 3, 4)):
        job = fleet.job(f"j{i}", fleet.under(leaf, 0, 1), at=-20.0)
        job.tell(Kind.RANK_RAISED, 2.0 * i, rank=0, phase="init", step=None, error=RESOLUTION)
    court = fleet.run(90.0)
    joint = joint_of(court, Kind.SERVICE_OUTAGE)
    assert (joint["scope"], jobs_of(joint)) == ("service", {"j0", "j1", "j2", "j3"})
    assert len(standing(court)) == 1
    assert nodes_blamed(court) == set()


def test_j11_twin_others_start_well_at_the_same_time(fleet: Fleet) -> None:
    for i, leaf in enumerate((0, 1)):
        job = fleet.job(f"j{i}", fleet.under(leaf, 0, 1), at=-20.0)
        job.tell(Kind.RANK_RAISED, 2.0 * i, rank=0, phase="init", step=None, error=RESOLUTION)
    for i in range(5):
        fleet.job(f"starts{i}", fleet.under(2 + i, 0, 1), at=-5.0)
    court = fleet.run(150.0)
    assert {document["kind"] for document in standing(court)} == {"rank_raised"}


# --- J12: a cascade of preemptions ----------------------------------------------------------------------------------
def test_j12_those_who_are_pushed_out_again_and_again_are_the_large_job_s_victims(fleet: Fleet) -> None:
    fleet.harmless()
    small = {f"s{i}": fleet.job(f"s{i}", fleet.under(i, 0, 1, 2)) for i in range(4)}
    large_nodes = [node for i in range(4) for node in fleet.under(i, 0, 1, 2)]
    large = fleet.job("large", [n for n in fleet.nodes if n.startswith("n5")], at=-5000.0)
    for round_, at in enumerate((0.0, 1000.0)):
        large.tell(Kind.RANK_RAISED, at - 60.0, rank=1, step=50 + round_, error="RuntimeError: NCCL error")
        large.end(at - 50.0)
        for name in list(small)[2 * round_ : 2 * round_ + 2]:
            small[name].tell(Kind.PLANNED_STOP, at - 20.0, step=None)
            small[name].end(at - 5.0)
        large = large.again(at, [n for n in large_nodes if n[1] in "0123"[2 * round_ : 2 * round_ + 2]])
    court = fleet.run(1100.0)
    joint = joint_of(court, Kind.PREEMPTION_CASCADE)
    assert jobs_of(joint, "culprit") == {"large"}
    assert jobs_of(joint) == {"s0", "s1", "s2", "s3"}


def test_j12_twin_stops_whose_nodes_nobody_took(fleet: Fleet) -> None:
    small = [fleet.job(f"s{i}", fleet.under(i, 0, 1, 2)) for i in range(4)]
    large = fleet.job("large", fleet.under(5, *range(8)), at=-5000.0).end(-60.0)
    large.again(0.0).end(900.0).again(1000.0)
    for i, job in enumerate(small):
        at = -20.0 if i < 2 else 980.0
        job.tell(Kind.PLANNED_STOP, at, step=None)
        job.end(at + 10.0)
    assert all(document["kind"] != "preemption_cascade" for document in fleet.run(1100.0).pages)


# --- J13: maintenance -----------------------------------------------------------------------------------------------
def all_stall(fleet: Fleet, at: float) -> list[Job]:
    jobs = [fleet.job(f"j{i}", [*fleet.under(i, 0, 1), *fleet.under(i + 1, 2, 3)]) for i in range(6)]
    for i, job in enumerate(jobs):
        job.tell(Kind.COLLECTIVE_STALLED, at + 5.0 + i / 3, onset=at + i / 10)
    return jobs


def test_j13_a_stall_of_all_jobs_in_announced_maintenance_pages_nobody(fleet: Fleet) -> None:
    fleet.plan("fabric maintenance", -60.0, 120.0, where={"fabric": ["*"]})
    jobs = all_stall(fleet, 0.0)
    for i, job in enumerate(jobs):
        job.well(20.0 + i)
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.PLANNED_MAINTENANCE)
    assert (joint["severity"], joint["bucket"], joint["state"]) == ("info", "planned", "resolved")
    assert jobs_of(joint) == {f"j{i}" for i in range(6)}
    assert standing(court) == []


def test_j13_what_outlasts_its_maintenance_is_raised_again(fleet: Fleet) -> None:
    fleet.plan("fabric maintenance", -60.0, 60.0, where={"fabric": ["*"]})
    jobs = all_stall(fleet, 0.0)
    for job in jobs[1:]:
        job.well(40.0)
    court = fleet.run(300.0)
    left = [document for document in court.pages if document["state"] == "open"]
    assert [(d["job"]["id"], d["severity"], d["bucket"]) for d in left] == [("j0", "page", "communication_hang")]


def test_j13_twin_the_same_without_an_announcement_is_one_page(fleet: Fleet) -> None:
    all_stall(fleet, 0.0)
    court = fleet.run(60.0)
    joint = joint_of(court, Kind.FABRIC_STALL)
    assert (joint["severity"], joint["state"], len(standing(court))) == ("page", "open", 1)


def test_j13_twin_maintenance_that_is_told_afterwards_explains_nothing(fleet: Fleet) -> None:
    fleet.plan("fabric maintenance", -60.0, 120.0, told=30.0, where={"fabric": ["*"]})
    all_stall(fleet, 0.0)
    assert joint_of(fleet.run(60.0), Kind.FABRIC_STALL)["severity"] == "page"


def test_j3_two_jobs_that_failed_where_checks_failed_as_well_make_a_lemon(fleet: Fleet) -> None:
    busy_fleet(fleet)
    history(fleet, [(f"j{i}", -9.0 + 9 * i, "n0-5", error) for i, error in enumerate(ERRORS[:2])])
    for day in (-7.0, -4.0):
        fleet.condition("check_gpu_lost", "n0-5", day * DAY_S, device="GPU 5", source="check.gpu", explains=())
        until = (day + 0.1) * DAY_S
        fleet.condition("check_gpu_lost", "n0-5", day * DAY_S, device="GPU 5", source="check.gpu", explains=(),
                        until=until)  # fmt: skip
    joint = joint_of(fleet.run(60.0), Kind.LEMON_NODE)
    assert [s["node"] for s in joint["suspects"]] == ["n0-5"]
    assert any("check_gpu_lost" in row["shows"] for row in joint["evidence"])


def test_j3_twin_checks_alone_or_of_services_make_no_lemon(fleet: Fleet) -> None:
    busy_fleet(fleet)
    history(fleet, [("j0", 0.0, "n0-5", ERRORS[0]), ("j1", -9.0, "n0-6", ERRORS[1]), ("j2", -5.0, "n0-6", ERRORS[2])])
    for day in range(-10, 0):
        fleet.condition("check_gpu_lost", "n0-5", day * DAY_S, device="GPU 5", source="check.gpu", explains=())
        fleet.condition("site_motd", "n0-6", day * DAY_S, device="", source="site.motd", explains=(), domain="service")
    assert all(document["kind"] != "lemon_node" for document in fleet.run(60.0).revisions)
