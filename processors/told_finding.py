"""What a finding says of an incident, read from its body: of our job operator, another operator or another release.

A body says as much of an incident's document as its operator knows. What it does not say is unknown; what it says stays
beside it as it was told (``text``), so that the row of state is what came. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..telemetry.incident_document import (
    Coverage,
    EvidenceRow,
    FirstBadPlace,
    JobReference,
    RuledOutEntry,
    SuspectEntry,
    Victims,
)
from ..telemetry.incident_reading import read_incident
from ..telemetry.vocabulary import Bucket, Kind, Scope, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFinding:
    """What a finding says, whoever wrote it. Times are Unix seconds; what has no onset began when it was seen.

    severity: "" is left to whoever reads it. grew: of steps that take longer, what makes them so; "" not known. stalls:
    begin and end of each burst. always: it was so as long as the job is seen. steps_before: of the training, before its
    attempt. text: the body as JSON.
    """

    kind: Kind
    bucket: Bucket | str
    scope: Scope | str | None
    severity: Severity | str
    suspects: tuple[SuspectEntry, ...]
    victims: Victims
    coverage: Coverage
    first_bad: FirstBadPlace
    onset_s: float
    detected_s: float
    attributed_s: float | None
    resolved_s: float | None
    evidence: tuple[EvidenceRow, ...]
    ruled_out: tuple[RuledOutEntry, ...]
    confidence: float | None
    job: JobReference
    grew: str
    stalls: tuple[tuple[float, float], ...]
    always: bool
    steps_before: int
    text: str


def read_told(body: Mapping[str, Any]) -> ToldFinding:
    """A finding's body. Raises KeyError, TypeError or ValueError where its kind is none, or a number is none."""
    said = read_incident(body)
    times = body.get("times")
    onset = times.get("onset") if isinstance(times, Mapping) else None
    has_onset = isinstance(onset, int | float) and not isinstance(onset, bool) and math.isfinite(onset)
    detected_s = said.times.detected_s or 0.0
    return ToldFinding(
        kind=Kind(body["kind"]),
        bucket=said.bucket,
        scope=said.scope,
        severity=said.severity,
        suspects=said.suspects,
        victims=said.victims,
        coverage=said.coverage,
        first_bad=said.first_bad,
        onset_s=said.times.onset_s if has_onset else detected_s,
        detected_s=detected_s,
        attributed_s=said.times.attributed_s,
        resolved_s=said.times.resolved_s,
        evidence=said.evidence,
        ruled_out=said.ruled_out,
        confidence=said.confidence,
        job=said.job,
        grew=str(body.get("grew") or ""),
        stalls=tuple((float(begin), float(end)) for begin, end in body.get("stalls") or ()),
        always=bool(body.get("always")),
        steps_before=int(body.get("steps_before") or 0),
        text=json.dumps(body, separators=(",", ":")),
    )
