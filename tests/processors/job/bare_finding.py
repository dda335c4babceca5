"""A finding that says nothing but its kind, where a test needs one that is open."""

from __future__ import annotations

from whichrank.processors.finding_document import FindingBody, FindingTimes, JobReference
from whichrank.telemetry.vocabulary import Bucket, Kind, Scope, Severity


def bare_body(kind: Kind) -> FindingBody:
    return FindingBody(
        bucket=Bucket.COMMUNICATION_HANG,
        kind=kind,
        scope=Scope.JOB,
        severity=Severity.PAGE,
        times=FindingTimes(onset_s=0.0, detected_s=0.0, attributed_s=0.0),
        confidence=0.5,
        job=JobReference(run=None, id="job", name=None, attempt=None, now="running"),
    )
