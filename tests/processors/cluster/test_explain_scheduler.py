"""What the scheduler had planned, and was known before, explains an end that is no fault; and what does not."""

from __future__ import annotations

from collections.abc import Mapping
from signal import Signals
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.endings import row_of
from tests.processors.entity.node import Node
from whichrank.diagnosis.scheduler_facts import SchedulerFact, facts_of_kubernetes_node, facts_of_slurm_node
from whichrank.telemetry.evidence_facts import EvidenceFact, How
from whichrank.telemetry.records import Event, Finding, Identity
from whichrank.telemetry.vocabulary import EventName, Kind

PLANNED = ("planned", "planned_stop", "info")


def node_of_four(court: Court, name: str = "n1") -> Node:
    node = Node(name, court)
    for rank in range(4):
        node.rank(rank, f"GPU-{rank}")
    return node


def fact(what: str, job: str = "4711", *, scheduler: str = "slurm", **values: Any) -> SchedulerFact:
    """start, end: seconds after START_S."""
    times = {f"{name}_s": START_S + values.pop(name) for name in ("start", "end") if name in values}
    return SchedulerFact(scheduler=scheduler, what=what, job=job, values={**values, **times})


def tell(node: Node, told: SchedulerFact, *, at: float, over: bool = False, job: str = "j") -> None:
    """As the collector tells it; job: ours, of the rank whose process it was seen at ("": nobody knows it)."""
    who = Identity(cluster="local", node=node.name, job=job if told.job else "", rank=0 if job and told.job else -1)
    found = {"scheduler": told.scheduler, "what": told.what, "job": told.job, "over": over, **told.values}
    node.take(Event(name=EventName.SCHEDULER, identity=who, time_ns=round((START_S + at) * 1e9), attributes=found))


def killed(name: str = "SIGKILL", rank: int = 2, onset: float = 0.0) -> Finding:
    ending = EvidenceFact(how=How.SIGNAL, rank=rank, signal=Signals[name], step=30, phase="data")
    row = row_of("rank.exit", f"rank {rank}", START_S + onset, ending)
    return make_finding(Kind.RANK_DIED, rank, at=onset + 1.0, onset=onset, evidence=[row])


def node_gone(node: str) -> Finding:
    suspect = {"scope": "node", "id": node, "rank": None, "ranks": "0-3", "node": node, "probability": 0.95}
    body: dict[str, Any] = {"suspects": [suspect], "scope": "node", "bucket": "immediate_crash"}
    return make_finding(Kind.NODE_LOST, None, at=4.0, onset=0.0, **body)


def the_incident(court: Court) -> Mapping[str, Any]:
    (document,) = court.pages
    return document


def what_it_is(document: Mapping[str, Any]) -> tuple[str, str, str]:
    return document["bucket"], document["kind"], document["severity"]


def cause_of(document: Mapping[str, Any]) -> str:
    return str((document.get("cause") or {}).get("condition", ""))


def ruled_out(document: Mapping[str, Any]) -> dict[str, str]:
    return {row["condition"]: row["because"] for row in document["ruled_out"] if "condition" in row}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("told", "cause", "scope"),
    [
        (fact("time_limit", end=-3.0), "planned_time_limit", "job"),
        (fact("preemption", state="RUNNING", start=-40.0), "planned_preemption", "job"),
        (fact("state", state="CANCELLED", reason="None"), "planned_cancel", "job"),
        (fact("maintenance", "", name="fabric", start=-3.0, end=7200.0), "maintenance", "node"),
        (fact("preemption", "", scheduler="kubernetes", name="karpenter.sh/disrupted"), "node_preempted", "node"),
    ],
)
def test_what_was_planned_and_known_is_no_fault(
    court: Court, told: SchedulerFact, cause: str, scope: str, is_late: bool
) -> None:
    """is_late: what was known before comes in after the finding."""
    node = node_of_four(court)
    if is_late:
        court.hear(killed())
    tell(node, told, at=-50.0)
    if not is_late:
        court.hear(killed())
    document = the_incident(court)
    assert (cause_of(document), document["scope"]) == (cause, scope)
    assert what_it_is(document) == PLANNED
    assert document["suspects"] == []
    assert document["advice"]["action"] in ("restart", "wait")
    (row,) = [row for row in document["evidence"] if row.get("condition") == cause]
    assert "known 50 s before the onset" in row["shows"]


def test_a_stop_that_was_asked_for_says_why(court: Court) -> None:
    tell(node_of_four(court), fact("time_limit", end=0.0), at=-3000.0)
    court.hear(make_finding(Kind.PLANNED_STOP, None, at=1.0, onset=0.2, scope="job"))
    document = the_incident(court)
    assert cause_of(document) == "planned_time_limit"
    assert what_it_is(document) == PLANNED


def test_a_node_that_goes_as_planned(court: Court) -> None:
    node_of_four(court)
    other = node_of_four(court, "n2")
    tell(other, fact("maintenance", "", name="fabric", start=-2.0, end=7200.0), at=-900.0)
    court.hear(node_gone("n2"))
    document = the_incident(court)
    assert (cause_of(document), document["cause"]["entity"]) == ("maintenance", "n2")
    assert what_it_is(document) == PLANNED


def test_a_job_is_known_by_our_name_as_soon_as_its_ranks_are(court: Court) -> None:
    node = Node("n1", court)
    tell(node, fact("time_limit", end=0.0), at=-200.0, job="")
    for rank in range(4):
        node.rank(rank, f"GPU-{rank}")
    court.hear(killed())
    assert cause_of(the_incident(court)) == "planned_time_limit"


def test_of_several_jobs_the_one_that_it_was_seen_at(court: Court) -> None:
    node = Node("n1", court)
    node.rank(0, pid=900, job="other", at=-150.0)
    tell(node, fact("time_limit", end=0.0), at=-120.0, job="")
    tell(node, fact("time_limit", end=0.0), at=-120.0, job="j")
    node.rank(2, "GPU-2", at=-100.0)
    court.hear(killed())
    assert cause_of(the_incident(court)) == "planned_time_limit"


# --- controls ---------------------------------------------------------------------------------------------------------
def control(court: Court, because: str = "", of: str = "") -> None:
    document = the_incident(court)
    assert "cause" not in document
    assert what_it_is(document) == ("immediate_crash", document["kind"], "page")
    assert document["suspects"]
    if because:
        assert because in ruled_out(document)[of]


@pytest.mark.parametrize(
    "told", [fact("time_limit", end=0.0), fact("preemption", state="PREEMPTED"), fact("state", state="CANCELLED")]
)
def test_what_is_told_only_afterwards_was_no_plan(court: Court, told: SchedulerFact) -> None:
    node = node_of_four(court)
    court.hear(killed())
    tell(node, told, at=4.0)
    document = the_incident(court)
    assert what_it_is(document) == ("immediate_crash", "rank_died", "page")
    assert "cause" not in document
    (because,) = ruled_out(document).values()
    assert "told 4 s after the onset" in because


def test_maintenance_told_afterwards(court: Court) -> None:
    node = node_of_four(court)
    court.hear(node_gone("n1"))
    tell(node, fact("maintenance", "", name="repair", start=0.0, end=7200.0), at=30.0)
    control(court, "told 30 s after the onset", "maintenance")


def test_a_limit_that_is_not_reached_yet(court: Court) -> None:
    tell(node_of_four(court), fact("time_limit", end=300.0), at=-3000.0)
    court.hear(killed())
    control(court, "it was due 300 s after the onset", "planned_time_limit")


def test_a_limit_of_tomorrow_is_not_even_mentioned(court: Court) -> None:
    tell(node_of_four(court), fact("time_limit", end=86_400.0), at=-3000.0)
    court.hear(killed())
    control(court)
    assert ruled_out(the_incident(court)) == {}


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGBUS", "SIGABRT"])
def test_a_program_that_breaks_in_its_time_of_grace(court: Court, signal: str) -> None:
    tell(node_of_four(court), fact("preemption", state="RUNNING", start=-40.0), at=-40.0)
    court.hear(killed(signal))
    control(court, "does not end a rank in this way", "planned_preemption")


def test_what_a_rank_raised_by_itself(court: Court) -> None:
    tell(node_of_four(court), fact("preemption", state="RUNNING", start=-40.0), at=-40.0)
    court.hear(make_finding(Kind.RANK_RAISED, 2, at=1.0, onset=0.0))
    control(court, "such a thing does not do this", "planned_preemption")


def test_a_hang_before_the_limit(court: Court) -> None:
    tell(node_of_four(court), fact("time_limit", end=5.0), at=-3000.0)
    court.hear(make_finding(Kind.RANK_NOT_ENTERED, 2, at=4.0, onset=0.0))
    document = the_incident(court)
    assert (document["bucket"], document["severity"], cause_of(document)) == ("communication_hang", "page", "")


def test_a_process_that_the_kernel_killed_in_its_time_of_grace(court: Court) -> None:
    node = node_of_four(court)
    tell(node, fact("preemption", state="RUNNING", start=-40.0), at=-40.0)
    node.log("Memory cgroup out of memory: Killed process 102 (python3) total-vm:9kB, anon-rss:8kB, UID:0", at=-0.1)
    court.hear(killed())
    document = the_incident(court)
    assert cause_of(document) == "cgroup_oom_kill"
    assert (document["bucket"], document["severity"]) == ("immediate_crash", "page")


def test_the_plan_of_another_job(court: Court) -> None:
    node = node_of_four(court)
    node.rank(0, pid=900, job="other")
    tell(node, fact("time_limit", "4712", end=0.0), at=-3000.0, job="other")
    court.hear(killed())
    control(court)


def test_a_plan_of_nobody_knows_whose_job(court: Court) -> None:
    node = node_of_four(court)
    node.rank(0, pid=900, job="other")
    tell(node, fact("time_limit", "4712", end=0.0), at=-50.0, job="")
    court.hear(killed())
    control(court)


def test_maintenance_of_another_node(court: Court) -> None:
    node_of_four(court)
    other = Node("n2", court)
    tell(other, fact("maintenance", "", name="fabric", start=-2.0, end=7200.0), at=-900.0)
    court.hear(killed())
    control(court)


def test_maintenance_that_was_called_off(court: Court) -> None:
    node = node_of_four(court)
    planned = fact("maintenance", "", name="fabric", start=-2.0, end=7200.0)
    tell(node, planned, at=-900.0)
    tell(node, planned, at=-100.0, over=True)
    court.hear(killed())
    control(court)


def test_maintenance_that_is_over_because_nobody_is_left_to_ask_stays_the_reason(court: Court) -> None:
    """The collector asks while there are ranks: when they are gone, it tells that all is over."""
    node = node_of_four(court)
    planned = fact("maintenance", "", name="fabric", start=-2.0, end=7200.0)
    tell(node, planned, at=-900.0)
    court.hear(killed())
    tell(node, planned, at=8.0, over=True)
    assert what_it_is(the_incident(court)) == PLANNED


def test_a_limit_that_was_put_off(court: Court) -> None:
    node = node_of_four(court)
    tell(node, fact("time_limit", end=-5.0), at=-3000.0)
    tell(node, fact("time_limit", end=3600.0), at=-200.0)
    court.hear(killed())
    control(court)


def test_a_limit_that_is_told_anew_for_the_next_attempt_takes_nothing_back(court: Court) -> None:
    node = node_of_four(court)
    tell(node, fact("time_limit", end=-1.0), at=-3000.0)
    court.hear(killed())
    tell(node, fact("time_limit", end=3600.0), at=60.0)
    document = the_incident(court)
    assert what_it_is(document) == PLANNED
    assert cause_of(document) == "planned_time_limit"


def test_a_cordon_of_this_morning(court: Court) -> None:
    tell(node_of_four(court), fact("maintenance", "", scheduler="kubernetes", name="unschedulable"), at=-7200.0)
    court.hear(killed())
    control(court)


# --- states of nodes --------------------------------------------------------------------------------------------------
def slurm_node(state: str, reason: str = "") -> list[SchedulerFact]:
    said = f" Reason={reason}" if reason else ""
    return list(facts_of_slurm_node(f"NodeName=n1 Arch=x86_64 State={state} ThreadsPerCore=2{said}\n"))


def test_slurm_says_that_a_node_is_down(court: Court) -> None:
    node_of_four(court)
    node = node_of_four(court, "n2")
    court.hear(node_gone("n2"))
    for told in slurm_node("DOWN+NOT_RESPONDING", f"Not responding [slurm@{START_S + 300:.0f}]"):
        tell(node, told, at=330.0)
    document = the_incident(court)
    assert (cause_of(document), document["scope"]) == ("node_down", "node")
    assert document["advice"]["action"] == "restart_without_node"
    assert document["severity"] == "page"
    assert any("Not responding" in row["shows"] for row in document["evidence"])


def test_states_of_a_node_begin_and_end(court: Court) -> None:
    node = node_of_four(court)
    drained, down = slurm_node("MIXED+DRAIN", "gpu check")[0], slurm_node("DOWN*")[0]
    tell(node, drained, at=-60.0)
    tell(node, down, at=-50.0)
    assert set(node.open) == {"node_drain/", "node_down/"}
    assert "gpu check" in node.open["node_drain/"]["text"]
    tell(node, down, at=-40.0, over=True)
    assert set(node.open) == {"node_drain/"}
    not_ready = list(facts_of_kubernetes_node([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]))
    tell(node, not_ready[0], at=-30.0)
    assert "NodeStatusUnknown" in node.open["node_not_ready/"]["text"]


@pytest.mark.parametrize("state", ["MIXED+DRAIN", "ALLOCATED+DRAIN"])
def test_a_drain_ends_nothing(court: Court, state: str) -> None:
    tell(node_of_four(court), slurm_node(state, "Kill task failed [root@1700000000]")[0], at=-5.0)
    court.hear(killed())
    control(court, "such a thing does not do this", "node_drain")


def test_a_healthy_node_is_no_fact() -> None:
    for state in ("IDLE", "ALLOCATED", "MIXED+CLOUD", "ALLOCATED+PLANNED", ""):
        assert slurm_node(state) == []
