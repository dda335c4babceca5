"""What several jobs have lost to one cause is told with its leader, by job, and counted once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.processors.cluster.conftest import START_S
from tests.processors.cluster.shared.fleet import Fleet, Job, joint_of
from whichrank.diagnosis.goodput.interval import Interval, Part, as_body
from whichrank.processors.cluster.charged_accounts import KIND, TENANT, Accounts
from whichrank.telemetry.incident import SCHEMA_PATH, check_document
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.vocabulary import Kind, TimeBucket

S = 1_000_000_000
GPUS = 8


@pytest.fixture(params=[False, True], ids=["working copy", "rows alone"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(fresh=request.param)


def lose(fleet: Fleet, job: Job, at: float, seconds: int, cause: str, number: int = 0) -> None:
    """An interval of this length ends then, all of it charged to a finding."""
    end_ns = round((START_S + at) * S)
    interval = Interval(
        job=job.name,
        number=number,
        begin_ns=end_ns - seconds * S,
        end_ns=end_ns,
        gpus=GPUS,
        parts=(Part(TimeBucket.STRAGGLER_LOSS, seconds * S, cause),),
    )
    fleet.say(f"{job.attempt}/interval/0.{number}", at, {"interval": as_body(interval)}, job=job)


def storm(fleet: Fleet) -> tuple[list[Job], dict[str, str]]:
    """Three jobs wait for what a fourth burdens. Findings by job."""
    readers = [fleet.job(name, fleet.under(leaf, 0, 1, 2, 3)) for leaf, name in enumerate(("a", "c", "d"))]
    writer = fleet.job("b", fleet.under(3, 0, 1))
    for node in fleet.nodes:
        fleet.load(node, -3000.0, rate=20.0)
    for node in writer.nodes:
        fleet.load(node, 20.0, rate=4000.0, since=0.0)
    return readers, {
        job.name: job.tell(Kind.RANK_SLOW, 40.0 + 3 * i, onset=12.0 + 4 * i, node=job.nodes[i], phase="data")
        for i, job in enumerate(readers)
    }


def by_job(document: Any) -> dict[str, float]:
    return {row["id"]: row["cost"].get("gpu_seconds", 0.0) for row in document["jobs"]}


def sums(court: Any) -> dict[str, int]:
    documents: dict[str, list[Any]] = {}
    for document in court.incidents.values():
        documents.setdefault(document["job"]["id"], []).append(read_incident(document))
    return Accounts(court.state.table("accounts"), court.state.table("account_sums")).totals(documents)


@pytest.mark.parametrize("before_they_merge", [False, True])
def test_the_cost_of_a_joint_incident_is_that_of_all_its_jobs(fleet: Fleet, before_they_merge: bool) -> None:
    readers, causes = storm(fleet)
    at = 41.0 + 7.0 if before_they_merge else 150.0
    for i, job in enumerate(readers):
        lose(fleet, job, at, 100 * (i + 1), causes[job.name])
    court = fleet.run(400.0)
    joint = joint_of(court, Kind.STORAGE_OVERLOAD)
    assert joint["cost"] == {"gpu_seconds": 600.0 * GPUS}
    assert by_job(joint) == {"a": 100.0 * GPUS, "c": 200.0 * GPUS, "d": 300.0 * GPUS, "b": 0.0}
    assert check_document(joint) == []
    Draft202012Validator(json.loads(SCHEMA_PATH.read_text())).validate(joint)
    counted = sums(court)
    assert {name: value for name, value in counted.items() if name.startswith(f"{KIND}/")} == {
        f"{KIND}/storage_overload": 600 * GPUS * S
    }
    assert sum(value for name, value in counted.items() if name.startswith(f"{TENANT}/")) == 600 * GPUS * S


def test_what_a_member_goes_on_losing_is_told_with_the_leader(fleet: Fleet) -> None:
    readers, causes = storm(fleet)
    lose(fleet, readers[2], 150.0, 100, causes["d"])
    lose(fleet, readers[2], 600.0, 400, causes["d"], number=1)
    court = fleet.run(700.0)
    leader = joint_of(court, Kind.STORAGE_OVERLOAD)["id"]
    told = [(each["cost"] or {}).get("gpu_seconds") for each in court.revisions if each["id"] == leader]
    assert told[-1] == 500.0 * GPUS
    assert 100.0 * GPUS in told


@pytest.mark.parametrize("are_over", [False, True])
def test_a_cascade_of_preemptions_is_charged_to_its_root(fleet: Fleet, are_over: bool) -> None:
    """Who was pushed out may be over by then: its own incident keeps its cost, and says who is charged with it."""
    small = {f"s{i}": fleet.job(f"s{i}", fleet.under(i, 0, 1, 2)) for i in range(4)}
    large_nodes = [node for i in range(4) for node in fleet.under(i, 0, 1, 2)]
    large = fleet.job("large", [n for n in fleet.nodes if n.startswith("n5")], at=-5000.0)
    for round_, at in enumerate((0.0, 1000.0)):
        large.tell(Kind.RANK_RAISED, at - 60.0, rank=1, step=50 + round_, error="RuntimeError: NCCL error")
        large.end(at - 50.0)
        for name in list(small)[2 * round_ : 2 * round_ + 2]:
            key = small[name].tell(Kind.PLANNED_STOP, at - 20.0, step=None)
            lose(fleet, small[name], at - 6.0, 50, key)
            small[name].end(at - 5.0)
            if are_over:
                small[name].tell(Kind.PLANNED_STOP, at - 4.0, onset=at - 20.0, step=None, key=key, cleared=True)
        large = large.again(at, [n for n in large_nodes if n[1] in "0123"[2 * round_ : 2 * round_ + 2]])
    court = fleet.run(1100.0)
    joint = joint_of(court, Kind.PREEMPTION_CASCADE)
    costs = by_job(joint)
    assert {name: costs[name] for name in small} == dict.fromkeys(small, 50.0 * GPUS)
    assert joint["cost"]["gpu_seconds"] == pytest.approx(200.0 * GPUS)
    own = [each for each in court.incidents.values() if each["job"]["id"] in small]
    assert all((each["cost"] or {}).get("gpu_seconds") == 50.0 * GPUS for each in own)
    led = [each["merged_into"] or each["cost"].get("charged_to") for each in own]
    assert set(led) == {joint["id"]}
    assert any("charged_to" in each["cost"] for each in own) == are_over
    counted = sums(court)
    assert {name: value for name, value in counted.items() if name.startswith(f"{KIND}/")} == {
        f"{KIND}/preemption_cascade": 200 * GPUS * S
    }
