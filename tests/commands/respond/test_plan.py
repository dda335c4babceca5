"""From the advice to acts: what is never done, whatever the document says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.respond.parts import GPU_CAUSE, incident
from whichrank.commands.respond.breaker import Limits, why_open
from whichrank.commands.respond.planning.acts import ActionPlan, HookOperation, Refusal, Why
from whichrank.commands.respond.planning.plan import Policy, plan
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.vocabulary import Action, Bucket, Kind, Scope

SLURM = frozenset({HookOperation.DRAIN_NODE, HookOperation.RESTART_JOB, HookOperation.UNDRAIN_NODE})
TELL = frozenset({HookOperation.TELL})
POLICY = Policy(
    actions=frozenset({"retry", "restart", "restart_without_node", "drain_after_job"}),
    scopes=frozenset(scope.value for scope in Scope),
    confidence=0.9,
    max_age_s=900.0,
    hooks={
        "webhook": TELL,
        "slurm": SLURM,
        "kubernetes": SLURM - {HookOperation.RESTART_JOB} | {HookOperation.MARK_JOB},
    },
)


def refused(age_s: float = 1.0, policy: Policy = POLICY, **fields: Any) -> Why:
    found = plan(read_incident(incident(**fields)), policy, age_s=age_s)
    assert isinstance(found, Refusal), found
    return found.why


def steps(**fields: Any) -> list[tuple[str, str, str]]:
    found = plan(read_incident(incident(**fields)), POLICY, age_s=1.0)
    assert isinstance(found, ActionPlan), found
    return [(act.hook, act.operation.value, act.target) for act in found.acts]


def test_every_hook_takes_the_node_out_before_any_starts_the_job_again_and_telling_comes_last() -> None:
    assert steps() == [
        ("slurm", "drain_node", "node-1"),
        ("kubernetes", "drain_node", "node-1"),
        ("slurm", "restart_job", "1001"),
        ("kubernetes", "mark_job", "1001"),
        ("webhook", "tell", f"{1:016x}"),
    ]
    assert [step[1] for step in steps(action="drain_after_job")] == ["drain_node", "drain_node", "mark_job", "tell"]
    assert [step[1] for step in steps(action="retry")] == ["restart_job", "mark_job", "tell"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"by": "human"}, Why.HUMAN),
        ({"advice": None}, Why.HUMAN),
        ({"action": "wait"}, Why.NOTHING_TO_DO),
        ({"action": "replace_link"}, Why.ACTION_NOT_ALLOWED),
        ({"scope": "application"}, Why.OF_PROGRAM),
        ({"kind": "desync"}, Why.OF_PROGRAM),
        ({"cause": {**GPU_CAUSE, "domain": "application"}}, Why.OF_PROGRAM),
        ({"confidence": 0.89}, Why.NOT_SURE),
        ({"confidence": None}, Why.NOT_SURE),
        ({"age_s": 901.0}, Why.TOO_OLD),
        ({"state": "resolved"}, Why.OVER),
        ({"job": {"id": "1", "now": "restarting"}}, Why.RESTARTS_ITSELF),
        ({"suspects": []}, Why.NODE_UNCLEAR),
        ({"cause": {**GPU_CAUSE, "entity": "somebody-else"}}, Why.NODE_UNCLEAR),
    ],
)
def test_refused(fields: dict[str, Any], why: Why) -> None:
    assert refused(**fields) is why


def test_two_nodes_and_no_cause_is_not_clear() -> None:
    suspects = [{"scope": "rank", "id": str(n), "rank": n, "node": f"n{n}", "probability": 0.5} for n in range(2)]
    assert refused(suspects=suspects, cause=None) is Why.NODE_UNCLEAR


@pytest.mark.parametrize(
    "name", ["ALL", "n[1-99]", "n1,n2", "n1 state=down", "-n", "n1\nn2", "../n", "n1;reboot", "$(x)"]
)
def test_a_name_that_means_more_than_one_node_is_refused(name: str) -> None:
    assert refused(node=name) is Why.NAME_UNSAFE


def test_a_scope_that_is_not_allowed() -> None:
    only = Policy(**{**{name: getattr(POLICY, name) for name in POLICY.__slots__}, "scopes": frozenset({"node"})})
    assert refused(policy=only) is Why.SCOPE_NOT_ALLOWED


@given(
    st.sampled_from(list(Bucket)),
    st.sampled_from(list(Kind)),
    st.sampled_from(list(Scope)),
    st.sampled_from(list(Action)),
    st.sampled_from(["automatic", "human", None]),
    st.sampled_from(["application", "hardware", "host", None]),
)
def test_no_node_goes_for_the_program_and_nothing_that_is_a_persons(
    bucket: Bucket, kind: Kind, scope: Scope, action: Action, by: str | None, domain: str | None
) -> None:
    cause = None if domain is None else {**GPU_CAUSE, "domain": domain}
    document = incident(cause=cause)
    document |= {"bucket": bucket.value, "kind": kind.value, "scope": scope.value}
    document["advice"] |= {"action": action.value, "by": by}
    found = plan(read_incident(document), POLICY, age_s=1.0)
    if by != "automatic":
        assert isinstance(found, Refusal)
    if scope is Scope.APPLICATION or domain == "application" or kind in (Kind.DESYNC, Kind.DEADLOCK):
        assert isinstance(found, Refusal) or not found.nodes


LIMITS = Limits(acts_per_hour=30, nodes_per_hour=3, nodes_share=0.05, cluster_nodes=100)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.0, 5000.0)), max_size=60))
def test_the_breaker_never_lets_more_nodes_go_than_allowed(asked: list[tuple[int, float]]) -> None:
    """Whatever comes when: in no hour more than three, never more than five of a hundred."""
    now = 1_000_000.0
    out: dict[str, float] = {}
    for number, pause_s in asked:
        now += pause_s
        node = f"n{number}"
        if why_open([node], out, LIMITS, now) is None:
            out.setdefault(node, now)
        assert len(out) <= 5
        assert len([since for since in out.values() if since > now - 3600.0]) <= 3


def test_a_node_that_is_out_already_costs_nothing() -> None:
    out = {"n1": 100.0, "n2": 100.0, "n3": 100.0}
    assert why_open(["n1"], out, LIMITS, 200.0) is None
    assert why_open(["n4"], out, LIMITS, 200.0) == "n4 would be node 4 within an hour; 3 are allowed"
