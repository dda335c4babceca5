"""An incident in which nothing is missing that its telemetry could carry, and a step of ``whichrank respond``."""

from __future__ import annotations

from ...commands.incident_service.audit import AuditLine
from ...telemetry.incident_document import (
    FirstBadPlace,
    IncidentDocument,
    IncidentTimes,
    JobReference,
    SuspectEntry,
)
from ...telemetry.response_outcomes import Outcome
from ...telemetry.vocabulary import Bucket, Change, IncidentState, Kind, Scope, Severity


def whole_incident() -> IncidentDocument:
    """An example incident of which each field that its telemetry carries is known."""
    return IncidentDocument(
        id="0123456789abcdef",
        revision=3,
        change=Change.RESOLVED,
        state=IncidentState.RESOLVED,
        severity=Severity.PAGE,
        cluster="cluster",
        job=JobReference(run="run", id="job", name="name", attempt="attempt"),
        bucket=Bucket.COMMUNICATION_HANG,
        kind=Kind.RANK_NOT_ENTERED,
        scope=Scope.RANK,
        suspects=(SuspectEntry(scope=Scope.RANK, id="3", rank=3, node="node", gpu="GPU"),),
        first_bad=FirstBadPlace(step=7),
        times=IncidentTimes(onset_s=1.0, detected_s=2.0, attributed_s=3.0, resolved_s=4.0),
        confidence=0.9,
    )


def whole_response() -> AuditLine:
    """An example line of the audit file of which each field that its event carries is known."""
    return AuditLine(
        time=1.0,
        outcome=Outcome.DONE.value,
        text="text",
        incident="0123456789abcdef",
        revision=3,
        job="job",
        action="restart_without_node",
        hook="slurm",
        operation="drain_node",
        target="node",
        why="why",
        detail="detail",
        mode="act",
    )
