"""The JSON of an ``IncidentDocument``: all fields in their order (docs/incident.md).

What ``incident_reading`` made of a document becomes the same bytes again (``telemetry.incident.canonical_line``), what
only a later release knows included. Pure, standard library only.
"""

from __future__ import annotations

import json
from enum import Enum

from .evidence_facts import FACT, EvidenceFact, write_fact
from .incident import Document
from .incident_document import (
    EvidenceRow,
    FirstBadPlace,
    HandlingWord,
    IncidentAdvice,
    IncidentCause,
    IncidentCost,
    IncidentDocument,
    IncidentHold,
    IncidentLabel,
    JobReference,
    JobShare,
    RuledOutEntry,
    SuspectEntry,
    Victims,
    word_of,
)


def write_incident(incident: IncidentDocument) -> Document:
    """The incident as JSON data, complete and in the order of the fields (``telemetry.incident.complete_document``)."""
    times = incident.times
    written: Document = {
        "schema": incident.schema,
        "id": incident.id or None,
        "revision": incident.revision or None,
        "change": _written(incident.change),
        "state": _written(incident.state),
        "merged_into": incident.merged_into,
        "severity": _written(incident.severity),
        "cluster": incident.cluster,
        "job": write_job_reference(incident.job),
        "jobs": list(map(write_share, incident.jobs)),
        "bucket": _written(incident.bucket),
        "kind": _written(incident.kind),
        "scope": _written(incident.scope),
        "suspects": list(map(write_suspect, incident.suspects)),
        "victims": _write_victims(incident.victims),
        "coverage": _with(
            {
                "ranks_seen": incident.coverage.ranks_seen,
                "ranks_expected": incident.coverage.ranks_expected,
            },
            incident.coverage.extra,
        ),
        "first_bad": write_first_bad(incident.first_bad),
        "times": _with(
            {
                "onset": times.onset_s,
                "detected": times.detected_s,
                "attributed": times.attributed_s,
                "resolved": times.resolved_s,
            },
            times.extra,
        ),
        "evidence": list(map(write_evidence, incident.evidence)),
        "ruled_out": list(map(write_ruled_out, incident.ruled_out)),
        "history": _with(
            {
                "suspect_incidents": incident.history.suspect_incidents,
                "last_change": incident.history.last_change,
            },
            incident.history.extra,
        ),
        "confidence": incident.confidence,
        "advice": None if incident.advice is None else write_advice(incident.advice),
        "cost": None if incident.cost is None else write_cost(incident.cost),
    }
    if incident.cause is not None:
        written["cause"] = write_cause(incident.cause)
    if incident.hold is not None:
        written["hold"] = write_hold(incident.hold)
    if incident.label is not None:
        written["label"] = write_label(incident.label)
    return _with(written, incident.extra)


def write_job_reference(job: JobReference) -> Document:
    """JSON data of the field ``job`` of an incident document."""
    written = {
        "run": job.run,
        "id": job.id,
        "name": job.name,
        "attempt": job.attempt,
        "owner": job.owner,
        "now": job.now,
    }
    if job.owner_id is not None:
        written["owner_id"] = job.owner_id
    if job.id_by is not None:
        written["id_by"] = word_of(job.id_by)
    return _with(written, job.extra)


def write_share(share: JobShare) -> Document:
    """JSON data of a row of the field ``jobs`` of an incident document."""
    written = {
        "id": share.id,
        "attempt": share.attempt,
        "role": share.role,
        "victims": {} if share.victims is None else _write_victims(share.victims),
        "cost": {} if share.cost is None else write_cost(share.cost),
    }
    return _with(written, share.extra)


def write_suspect(entry: SuspectEntry) -> Document:
    """JSON data of a row of the field ``suspects`` of an incident document."""
    where = entry.where
    written: Document = {
        "scope": _written(entry.scope),
        "id": entry.id or None,
        "rank": entry.rank,
        "node": entry.node,
        "gpu": entry.gpu,
        "pid": entry.pid,
        "where": None,
        "probability": entry.probability,
    }
    if where is not None:
        written["where"] = _with({"file": where.file, "line": where.line, "phase": where.phase}, where.extra)
    if entry.ranks is not None:
        written["ranks"] = entry.ranks
    return _with(written, entry.extra)


def _write_victims(victims: Victims) -> Document:
    return _with({"count": victims.count, "ranks": victims.ranks}, victims.extra)


def write_first_bad(place: FirstBadPlace) -> Document:
    """JSON data of the field ``first_bad`` of an incident document."""
    written = {
        "step": place.step,
        "group": place.group,
        "sequence": place.sequence,
        "operation": place.operation,
    }
    return _with(written, place.extra)


def write_evidence(row: EvidenceRow) -> Document:
    """JSON data of a row of the field ``evidence`` of an incident document."""
    written: Document = {
        "signal": row.signal,
        "source": row.source,
        "time": row.time_s,
        "value": row.value,
        "shows": row.shows,
    }
    written = _with_origin(written, row.fact, row.condition)
    if row.trust is not None:
        written["trust"] = word_of(row.trust)
    return _with(written, row.extra)


def write_ruled_out(entry: RuledOutEntry) -> Document:
    """JSON data of a row of the field ``ruled_out`` of an incident document."""
    written: Document = {"who": entry.who, "looks_guilty": entry.looks_guilty, "because": entry.because}
    if entry.ranks is not None:
        written["ranks"] = entry.ranks
    return _with(_with_origin(written, entry.fact, entry.condition), entry.extra)


def _with_origin(written: Document, fact: EvidenceFact | None, condition: str) -> Document:
    if fact is not None:
        written[FACT] = write_fact(fact)
    if condition:
        written["condition"] = condition
    return written


def write_advice(advice: IncidentAdvice) -> Document:
    """JSON data of the field ``advice`` of an incident document."""
    written: Document = {"action": _written(advice.action), "by": advice.by, "text": advice.text}
    if advice.retry is not None:
        written["retry"] = {"number": advice.retry.number, "of": advice.retry.of}
    if advice.if_seldom is not None:
        written["if_seldom"] = {"action": _written(advice.if_seldom.action), "by": advice.if_seldom.by}
    return _with(written, advice.extra)


def write_cost(cost: IncidentCost) -> Document:
    """JSON data of the field ``cost`` of an incident document."""
    written: Document = {"gpu_seconds": cost.gpu_seconds}
    if cost.charged_to:
        written["charged_to"] = cost.charged_to
    return _with(written, cost.extra)


def write_cause(cause: IncidentCause) -> Document:
    """JSON data of the field ``cause`` of an incident document."""
    written = {
        "condition": cause.condition,
        "entity": cause.entity,
        "device_kind": cause.device_kind,
        "device": cause.device,
        "since": cause.since_s,
        "domain": cause.domain,
    }
    if cause.trust is not None:
        written["trust"] = word_of(cause.trust)
    if cause.counted_by is not None:
        written["counted_by"] = word_of(cause.counted_by)
    return _with(written, cause.extra)


def write_hold(hold: IncidentHold) -> Document:
    """JSON data of the field ``hold`` of an incident document."""
    return _with({"until": hold.until_s, "because": hold.because}, hold.extra)


def write_label(label: IncidentLabel) -> Document:
    """JSON data of the field ``label`` of an incident document, with its keys in the order in which they were said."""
    known = {
        "cause": label.cause,
        "wrong": label.wrong,
        "by": label.by,
        "time": label.time_s,
        "acknowledged": _write_handling(label.acknowledged),
        "closed": _write_handling(label.closed),
    }
    said = dict.fromkeys((*label.keys, *(name for name, value in known.items() if value is not None)))
    return _with({name: known[name] for name in said}, label.extra)


def _write_handling(word: HandlingWord | None) -> Document | None:
    if word is None:
        return None
    written: Document = {"by": word.by, "time": word.time_s}
    if word.because is not None:
        written["because"] = word.because
    return _with(written, word.extra)


def _written(word: Enum | str | None) -> str | None:
    return word_of(word) or None


def _with(written: Document, extra: str) -> Document:
    """And what only a later release knows."""
    if not extra:
        return written
    later: Document = json.loads(extra)
    return {**written, **later}
