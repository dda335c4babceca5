"""What a finding says, as fields, and its JSON: the one place where the words of the document's keys stand.

A job's judge builds a ``FindingBody``; topics, state and incident documents carry what ``write_body`` makes of it. Rows
of releases that knew no facts are read with theirs (``older_sentences``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..telemetry.incident_document import (
    CodePlace,
    EvidenceRow,
    FirstBadPlace,
    JobReference,
    RuledOutEntry,
    SuspectEntry,
    Value,
)
from ..telemetry.incident_writing import write_evidence, write_first_bad, write_job_reference, write_suspect
from ..telemetry.trust import Trust
from ..telemetry.vocabulary import Bucket, Kind, Scope, Severity
from .older_sentences import fact_of_row

#: A finding is made of the same rows as an incident.
__all__ = [
    "CodePlace",
    "EvidenceRow",
    "FindingBody",
    "FindingTimes",
    "FirstBadPlace",
    "JobReference",
    "RuledOutEntry",
    "SuspectEntry",
    "Value",
    "read_body",
    "write_body",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingTimes:
    """When it began, was seen and was explained, in Unix seconds. resolved: None while it lasts."""

    onset_s: float
    detected_s: float
    attributed_s: float
    resolved_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingBody:
    """What a finding says. victim_count, victims: ranks that wait or end because of it, as ranges. grew: of steps that
    take longer, what makes them so: data, exchange, own; "" not known.

    stalls: begin and end of each burst, Unix seconds. always: it was so as long as the job is seen, so perhaps by
    design.
    """

    bucket: Bucket
    kind: Kind
    scope: Scope
    severity: Severity
    suspects: tuple[SuspectEntry, ...] = ()
    victim_count: int = 0
    victims: str = ""
    ranks_seen: int = 0
    ranks_expected: int = 0
    first_bad: FirstBadPlace = field(default_factory=FirstBadPlace)
    times: FindingTimes
    evidence: tuple[EvidenceRow, ...] = ()
    ruled_out: tuple[RuledOutEntry, ...] = ()
    confidence: float
    job: JobReference
    grew: str | None = None
    stalls: tuple[tuple[float, float], ...] | None = None
    always: bool = False

    def with_evidence(self, *rows: EvidenceRow) -> FindingBody:
        """The body with these rows added behind its evidence."""
        return replace(self, evidence=(*self.evidence, *rows))

    def as_of(self, now: str) -> FindingBody:
        """The body with another word for how the job is: "running", "stopped", "restarting"."""
        return replace(self, job=replace(self.job, now=now))


def write_body(body: FindingBody) -> dict[str, Any]:
    """The body as JSON values (docs/incident.md), for ``read_body``."""
    times = body.times
    document: dict[str, Any] = {
        "bucket": body.bucket.value,
        "kind": body.kind.value,
        "scope": body.scope.value,
        "severity": body.severity.value,
        "suspects": [write_suspect(each) for each in body.suspects],
        "victims": {"count": body.victim_count, "ranks": body.victims},
        "coverage": {"ranks_seen": body.ranks_seen, "ranks_expected": body.ranks_expected},
        "first_bad": write_first_bad(body.first_bad),
        "times": {"onset": times.onset_s, "detected": times.detected_s, "attributed": times.attributed_s},
        "evidence": [write_evidence(row) for row in body.evidence],
        "ruled_out": [_write_ruled_out(each) for each in body.ruled_out],
        "confidence": body.confidence,
        "job": write_job_reference(body.job),
    }
    if times.resolved_s is not None:
        document["times"]["resolved"] = times.resolved_s
    if body.grew is not None:
        document["grew"] = body.grew
    if body.stalls is not None:
        document["stalls"] = [list(burst) for burst in body.stalls]
    if body.always:
        document["always"] = True
    return document


def _write_ruled_out(entry: RuledOutEntry) -> dict[str, Any]:
    return {
        "who": entry.who,
        "ranks": entry.ranks,
        "looks_guilty": entry.looks_guilty,
        "because": entry.because,
    }


def read_body(document: Mapping[str, Any]) -> FindingBody:
    """A body that ``write_body`` of this release or an earlier one made.

    Raises KeyError, TypeError or ValueError where something else is there.
    """
    victims, coverage, times, job = (document[key] for key in ("victims", "coverage", "times", "job"))
    stalls = document.get("stalls")
    return FindingBody(
        bucket=Bucket(document["bucket"]),
        kind=Kind(document["kind"]),
        scope=Scope(document["scope"]),
        severity=Severity(document["severity"]),
        suspects=tuple(map(_read_suspect, document["suspects"])),
        victim_count=victims["count"],
        victims=victims["ranks"],
        ranks_seen=coverage["ranks_seen"],
        ranks_expected=coverage["ranks_expected"],
        first_bad=FirstBadPlace(**document["first_bad"]),
        times=FindingTimes(
            onset_s=times["onset"],
            detected_s=times["detected"],
            attributed_s=times["attributed"],
            resolved_s=times.get("resolved"),
        ),
        evidence=tuple(map(_read_evidence, document["evidence"])),
        ruled_out=tuple(map(_read_ruled_out, document["ruled_out"])),
        confidence=document["confidence"],
        job=JobReference(**job),
        grew=document.get("grew"),
        stalls=None if stalls is None else tuple((float(begin), float(end)) for begin, end in stalls),
        always=bool(document.get("always")),
    )


def _trust_of(row: Mapping[str, Any]) -> Trust | None:
    try:
        return Trust(row["trust"]) if "trust" in row else None
    except ValueError:
        return None  # a word of a later release


def _read_evidence(row: Mapping[str, Any]) -> EvidenceRow:
    """One row; with its fact, whichever release has written it."""
    return EvidenceRow(
        signal=row["signal"],
        source=row["source"],
        time_s=row["time"],
        value=row["value"],
        shows=row["shows"],
        fact=fact_of_row(row),
        trust=_trust_of(row),
    )


def _read_suspect(entry: Mapping[str, Any]) -> SuspectEntry:
    where = entry["where"]
    return SuspectEntry(
        scope=Scope(entry["scope"]),
        id=entry["id"],
        rank=entry["rank"],
        node=entry["node"],
        gpu=entry["gpu"],
        pid=entry["pid"],
        where=None if where is None else CodePlace(**where),
        probability=entry["probability"],
        ranks=entry.get("ranks"),
    )


def _read_ruled_out(entry: Mapping[str, Any]) -> RuledOutEntry:
    return RuledOutEntry(
        who=entry["who"],
        ranks=entry.get("ranks", ""),
        looks_guilty=entry["looks_guilty"],
        because=entry["because"],
    )
