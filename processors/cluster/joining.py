"""How what several jobs share, a plan, a hold and a person's word lie over what one job says of its incident. Pure.

``shared`` finds what is shared; here it only becomes part of the document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from ...telemetry.incident_document import (
    EvidenceRow,
    IncidentAdvice,
    IncidentCost,
    IncidentDocument,
    IncidentHold,
    IncidentLabel,
    Victims,
    word_of,
)
from ...telemetry.vocabulary import Action, Bucket, IncidentState, Severity
from .confidence import load_reliability
from .merging import MAX_EVIDENCE, MAX_RULED_OUT
from .shared.joint import SHARED_KINDS, JointCause
from .shared.observers import CLOCK_CONFIDENCE

__all__ = ["SHARED_KINDS", "joint_of_document", "overlay"]
_Row = TypeVar("_Row")


class Shared(Protocol):
    """What of a case lies over what its own job says (``case.Case``)."""

    joint: JointCause | None
    plan: EvidenceRow | None
    repeats: EvidenceRow | None
    hold: IncidentHold | None
    label: IncidentLabel | None
    clock_note: EvidenceRow | None
    charged_to: str | None

    @property
    def costs(self) -> dict[str, int]:
        """GPU-nanoseconds by ``cost_key``, of all jobs that share the cause."""


def overlay(case: Shared, incident: IncidentDocument) -> IncidentDocument:
    """The incident with what lies over it: clock doubts, a shared cause, a plan, a hold, a label, who is charged.

    incident: as its own job says it. Last, its confidence becomes a probability.
    """
    if case.clock_note is not None:
        incident = replace(incident, evidence=(*incident.evidence, case.clock_note))
        if incident.confidence is not None:
            incident = replace(incident, confidence=round(incident.confidence * CLOCK_CONFIDENCE, 6))
    if case.joint is not None:
        incident = _widen(incident, case.joint, case.costs)
    elif case.plan is not None:
        incident = replace(
            incident,
            severity=Severity.INFO,
            bucket=Bucket.PLANNED,
            evidence=(case.plan, *incident.evidence)[:MAX_EVIDENCE],
            advice=IncidentAdvice(action=Action.WAIT, by="automatic", text=f"wait until it is over: {case.plan.shows}"),
        )
    elif case.repeats is not None:
        incident = replace(
            incident,
            severity=Severity.TICKET if incident.severity == Severity.PAGE else incident.severity,
            evidence=(case.repeats, *incident.evidence)[:MAX_EVIDENCE],
        )
    if case.hold is not None and incident.state == IncidentState.OPEN:
        incident = replace(incident, hold=case.hold)
    if case.label is not None:
        incident = replace(incident, label=case.label)
    if case.charged_to is not None and incident.cost is not None:
        incident = replace(incident, cost=replace(incident.cost, charged_to=case.charged_to))
    if incident.confidence is not None:
        probability = load_reliability().probability(incident.confidence, word_of(incident.kind))
        incident = replace(incident, confidence=round(probability, 3))
    return incident


def cost_key(job: str, attempt: str) -> str:
    """The key of an attempt among the costs of a joint incident."""
    return f"{job}\t{attempt}"


def cost_of(gpu_ns: int) -> IncidentCost | None:
    """The cost that a document tells; None for 0, as nothing is known."""
    return IncidentCost(gpu_seconds=gpu_ns / 1e9) if gpu_ns else None


def _widen(incident: IncidentDocument, joint: JointCause, costs: Mapping[str, int]) -> IncidentDocument:
    """costs: GPU-nanoseconds by ``cost_key``, of all incidents that belong to it."""
    over = joint.resolved
    onset_s = min(incident.times.onset_s, joint.onset)
    return replace(
        incident,
        kind=joint.kind,
        bucket=joint.bucket,
        scope=joint.scope,
        severity=joint.severity,
        confidence=joint.confidence,
        suspects=joint.suspects,
        jobs=tuple(
            replace(job, cost=cost_of(costs.get(cost_key(job.id or "", job.attempt or ""), 0))) for job in joint.jobs
        ),
        advice=joint.advice,
        victims=Victims(count=joint.victims),
        cost=cost_of(sum(costs.values())),
        evidence=_bounded([*joint.evidence, *incident.evidence], MAX_EVIDENCE),
        ruled_out=_bounded([*joint.ruled_out, *incident.ruled_out], MAX_RULED_OUT),
        cause=joint.cause,
        state=IncidentState.OPEN if over is None else IncidentState.RESOLVED,
        times=replace(incident.times, onset_s=onset_s, resolved_s=over),
    )


def _bounded(rows: Sequence[_Row], most: int) -> tuple[_Row, ...]:
    """The first of them, each once: an incident's own earlier revisions repeat what is laid over it."""
    kept: list[_Row] = []
    for row in rows:
        if row not in kept and len(kept) < most:
            kept.append(row)
    return tuple(kept)


def joint_of_document(incident: IncidentDocument) -> JointCause:
    """The joint cause that a published joint incident told, without members, until that is looked at anew."""
    told, cause = incident.confidence, incident.cause
    return JointCause(
        kind=incident.kind,
        bucket=incident.bucket,
        scope=incident.scope,
        severity=incident.severity,
        confidence=None if told is None else load_reliability().strength(told, word_of(incident.kind)),
        suspects=incident.suspects,
        jobs=incident.jobs,
        advice=incident.advice,
        rule=cause.condition if cause is not None else None,
        value=cause.entity if cause is not None else None,
        victims=incident.victims.count,
        cause=cause,
        evidence=tuple(row for row in incident.evidence if row.signal.startswith("shared.")),
        ruled_out=(),
        members=(),
        resolved=incident.times.resolved_s,
        onset=incident.times.onset_s,
    )
