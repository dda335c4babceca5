"""From an incident's advice to acts, or to the reason why there are none. Pure functions of the document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....telemetry.kind_sets import PROGRAM_DEFECT_KINDS
from ....telemetry.vocabulary import Action, IncidentState, Scope
from .acts import OPERATIONS, Act, Operation, Plan, Refusal, Why

#: What Slurm and Kubernetes call a node. No list of hosts, no pattern: ``node[1-99]`` is one word for Slurm, too.
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")
#: Words that mean all nodes.
_EVERYBODY = frozenset({"all", "default", "localhost"})
_MAX_REASON_CHARS = 160
_TAKES_NODES = frozenset(action for action, operations in OPERATIONS.items() if Operation.DRAIN_NODE in operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be done. hooks: by name, the operations that each can do, in the order of the settings."""

    actions: frozenset[str]
    scopes: frozenset[str]
    confidence: float
    max_age_s: float
    hooks: Mapping[str, frozenset[Operation]]


def plan(document: Mapping[str, Any], policy: Policy, *, age_s: float) -> Plan | Refusal:
    """age_s: of this revision's news. An incident that is merged or over, and one without advice, is refused, too."""
    advice = document.get("advice") or {}
    if refusal := _refusal(document, advice, policy, age_s):
        return refusal
    action = Action(advice["action"])
    nodes: tuple[str, ...] = ()
    if action in _TAKES_NODES:
        found = nodes_of(document)
        if isinstance(found, Refusal):
            return found
        nodes = found
    acts = tuple(_acts(document, action, nodes, policy))
    if not acts:
        return Refusal(why=Why.NO_HOOK, detail=", ".join((action.value, *nodes)))
    return Plan(acts=acts, nodes=nodes)


def _refusal(document: Mapping[str, Any], advice: Mapping[str, Any], policy: Policy, age_s: float) -> Refusal | None:
    action, confidence = advice.get("action"), document.get("confidence")
    if document.get("state") != IncidentState.OPEN.value:
        return Refusal(why=Why.OVER)
    if advice.get("by") != "automatic":
        return Refusal(why=Why.HUMAN, detail=str(action or "no advice"))
    if action == Action.WAIT.value:
        return Refusal(why=Why.NOTHING_TO_DO)
    if action not in policy.actions:
        return Refusal(why=Why.ACTION_NOT_ALLOWED, detail=str(action))
    if Action(action) in _TAKES_NODES and is_of_program(document):
        return Refusal(why=Why.OF_PROGRAM)
    if document.get("scope") not in policy.scopes:
        return Refusal(why=Why.SCOPE_NOT_ALLOWED, detail=str(document.get("scope")))
    if confidence is None or float(confidence) < policy.confidence:
        return Refusal(why=Why.NOT_SURE, detail=f"{confidence} of {policy.confidence}")
    if age_s > policy.max_age_s:
        return Refusal(why=Why.TOO_OLD, detail=f"{age_s:.0f} s")
    if (document.get("job") or {}).get("now") == "restarting" and Operation.RESTART_JOB in OPERATIONS[Action(action)]:
        return Refusal(why=Why.RESTARTS_ITSELF)
    return None


def is_of_program(document: Mapping[str, Any]) -> bool:
    """Asked again here: whoever wrote the advice, no node pays for the program."""
    cause = document.get("cause") or {}
    return (
        document.get("scope") == Scope.APPLICATION.value
        or document.get("kind") in PROGRAM_DEFECT_KINDS
        or cause.get("domain") == "application"
    )


def nodes_of(document: Mapping[str, Any]) -> tuple[str, ...] | Refusal:
    """The nodes that the incident blames: that of its cause, else the suspects' one node."""
    suspects: Sequence[Mapping[str, Any]] = document.get("suspects") or ()
    suspected = {str(suspect["node"]) for suspect in suspects if suspect.get("node")}
    cause = document.get("cause")
    blamed = suspected if cause is None else suspected & {str(cause.get("entity") or "")}
    if len(blamed) != 1:
        return Refusal(why=Why.NODE_UNCLEAR, detail=", ".join(sorted(suspected)) or "nobody is suspected")
    (node,) = blamed
    if not NODE_NAME.match(node) or node.lower() in _EVERYBODY:
        return Refusal(why=Why.NAME_UNSAFE, detail=repr(node)[:80])
    return (node,)


def _acts(document: Mapping[str, Any], action: Action, nodes: tuple[str, ...], policy: Policy) -> list[Act]:
    """All hooks take the node out before any of them starts the job again; telling comes last."""
    job = document.get("job") or {}
    acts = []
    for operation in OPERATIONS[action]:
        targets = {
            Operation.DRAIN_NODE: nodes,
            Operation.TELL: (str(document["id"]),),
        }.get(operation, (str(job.get("id") or ""),))
        for hook, can in policy.hooks.items():
            if operation in can:
                acts += [act_of(document, hook, operation, target, action.value) for target in targets]
    return acts


def act_of(document: Mapping[str, Any], hook: str, operation: Operation, target: str, action: str) -> Act:
    job = document.get("job") or {}
    return Act(
        hook=hook,
        operation=operation,
        target=target,
        action=action,
        incident=str(document["id"]),
        revision=int(document["revision"]),
        job=str(job.get("id") or ""),
        attempt=str(job.get("attempt") or ""),
        reason=reason_of(document),
        document=document,
    )


def reason_of(document: Mapping[str, Any]) -> str:
    """One line for schedulers: printable ASCII without quotes, begins with ``whichrank INCIDENT``."""
    cause = (document.get("cause") or {}).get("condition")
    words = f"whichrank {document['id']} {document.get('kind')}" + (f" {cause}" if cause else "")
    return re.sub(r"[^A-Za-z0-9 ._:/-]", " ", words)[:_MAX_REASON_CHARS]
