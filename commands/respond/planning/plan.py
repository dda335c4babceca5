"""From an incident's advice to acts, or to the reason why there are none. Pure functions of the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....telemetry.incident_document import IncidentDocument, word_of
from ....telemetry.trust import IdBy
from ....telemetry.vocabulary import Action, IncidentState, Kind, Scope
from ...support.node_names import is_node_name
from .acts import OPERATIONS, Act, ActionPlan, HookOperation, Refusal, Why

_MAX_REASON_CHARS = 160
_OF_PROGRAMS = frozenset({Kind.DESYNC, Kind.DEADLOCK})
_RESTART = HookOperation.RESTART_JOB
_OF_SCHEDULERS_JOBS = frozenset({HookOperation.RESTART_JOB, HookOperation.MARK_JOB})
_TAKES_NODES = frozenset(action for action, operations in OPERATIONS.items() if HookOperation.DRAIN_NODE in operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be done. hooks: by name, the operations that each can do, in the order of the settings."""

    actions: frozenset[str]
    scopes: frozenset[str]
    confidence: float
    max_age_s: float
    hooks: Mapping[str, frozenset[HookOperation]]


def plan(incident: IncidentDocument, policy: Policy, *, age_s: float) -> ActionPlan | Refusal:
    """The acts for an incident's advice, or why there are none. age_s: of this revision's news.

    An incident that is merged or over, and one without advice, is refused, too.
    """
    action = _action_of(incident, policy, age_s)
    if isinstance(action, Refusal):
        return action
    nodes: tuple[str, ...] = ()
    if action in _TAKES_NODES:
        found = nodes_of(incident)
        if isinstance(found, Refusal):
            return found
        nodes = found
    acts = tuple(_acts(incident, action, nodes, policy))
    if incident.job.id_by == IdBy.NAMED:  # a name that somebody chose may be the number of another one's job
        kept = tuple(act for act in acts if act.operation not in _OF_SCHEDULERS_JOBS)
        if acts and not kept:
            return Refusal(why=Why.NOT_ITS_JOB, detail=incident.job.id or "")
        acts = kept
    if not acts:
        return Refusal(why=Why.NO_HOOK, detail=", ".join((action.value, *nodes)))
    return ActionPlan(acts=acts, nodes=nodes)


def _action_of(incident: IncidentDocument, policy: Policy, age_s: float) -> Action | Refusal:
    """What is advised, if it may be done."""
    advice, confidence = incident.advice, incident.confidence
    action = None if advice is None else advice.action
    if incident.state is not IncidentState.OPEN:
        return Refusal(why=Why.OVER)
    if advice is None or advice.by != "automatic":
        return Refusal(why=Why.HUMAN, detail=word_of(action) or "no advice")
    if incident.job.is_claimed:
        return Refusal(why=Why.CLAIMED, detail=incident.job.id or "")
    if action is Action.WAIT:
        return Refusal(why=Why.NOTHING_TO_DO)
    if not isinstance(action, Action) or action not in policy.actions:
        return Refusal(why=Why.ACTION_NOT_ALLOWED, detail=word_of(action))
    if action in _TAKES_NODES and is_of_program(incident):
        return Refusal(why=Why.OF_PROGRAM)
    if incident.scope is None or word_of(incident.scope) not in policy.scopes:
        return Refusal(why=Why.SCOPE_NOT_ALLOWED, detail=word_of(incident.scope) or "None")
    if confidence is None or confidence < policy.confidence:
        return Refusal(why=Why.NOT_SURE, detail=f"{confidence} of {policy.confidence}")
    if age_s > policy.max_age_s:
        return Refusal(why=Why.TOO_OLD, detail=f"{age_s:.0f} s")
    if incident.job.now == "restarting" and HookOperation.RESTART_JOB in OPERATIONS[action]:
        return Refusal(why=Why.RESTARTS_ITSELF)
    return action


def is_of_program(incident: IncidentDocument) -> bool:
    """Whether the fault is the program's. Asked again here: whoever wrote the advice, no node pays for the program."""
    cause = incident.cause
    return (
        incident.scope is Scope.APPLICATION
        or incident.kind in _OF_PROGRAMS
        or (cause is not None and cause.domain == "application")
    )


def nodes_of(incident: IncidentDocument) -> tuple[str, ...] | Refusal:
    """The node that the incident blames: that of its cause, else the suspects' one node.

    A refusal where that is not exactly one, or its name is unsafe.
    """
    suspected = {suspect.node for suspect in incident.suspects if suspect.node}
    cause = incident.cause
    blamed = suspected if cause is None else suspected & {cause.entity or ""}
    if len(blamed) != 1:
        return Refusal(why=Why.NODE_UNCLEAR, detail=", ".join(sorted(suspected)) or "nobody is suspected")
    (node,) = blamed
    if not is_node_name(node):
        return Refusal(why=Why.NAME_UNSAFE, detail=repr(node)[:80])
    return (node,)


def _acts(incident: IncidentDocument, action: Action, nodes: tuple[str, ...], policy: Policy) -> list[Act]:
    """All hooks take the node out before any of them starts the job again; telling comes last."""
    acts = []
    for operation in OPERATIONS[action]:
        targets = {
            HookOperation.DRAIN_NODE: nodes,
            HookOperation.TELL: (incident.id,),
        }.get(operation, (incident.job.id or "",))
        for hook, can in policy.hooks.items():
            if operation in can:
                made = [act_of(incident, hook, operation, target, action.value) for target in targets]
                acts += [replace(act, leave_out=nodes) for act in made] if operation is _RESTART else made
    return acts


def act_of(incident: IncidentDocument, hook: str, operation: HookOperation, target: str, action: str) -> Act:
    """One operation of one hook because of an incident. target: a node, a job, or the incident itself."""
    return Act(
        hook=hook,
        operation=operation,
        target=target,
        action=action,
        incident=incident.id,
        revision=incident.revision,
        job=incident.job.id or "",
        attempt=incident.job.attempt or "",
        reason=reason_of(incident),
        document=incident,
    )


def reason_of(incident: IncidentDocument) -> str:
    """A reason in one line for schedulers: printable ASCII without quotes, begins with ``whichrank INCIDENT``."""
    condition = "" if incident.cause is None else incident.cause.condition or ""
    words = f"whichrank {incident.id} {word_of(incident.kind)}" + (f" {condition}" if condition else "")
    return re.sub(r"[^A-Za-z0-9 ._:/-]", " ", words)[:_MAX_REASON_CHARS]
