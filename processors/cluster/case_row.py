"""The row of state that keeps a case, as JSON; and the case behind a published document, where the state was lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...telemetry.incident_document import EvidenceRow, IncidentDocument, word_of
from ...telemetry.incident_reading import read_evidence, read_hold, read_incident, read_label
from ...telemetry.incident_writing import (
    write_advice,
    write_cause,
    write_evidence,
    write_hold,
    write_incident,
    write_label,
    write_ruled_out,
    write_share,
    write_suspect,
)
from ...telemetry.vocabulary import IncidentState
from ..condition_document import read_condition, write_condition
from ..told_finding import read_told
from .case import Case, Contribution
from .joining import SHARED_KINDS, joint_of_document
from .shared.joint import JointCause

#: What findings say of an incident, and its document repeats.
_OF_FINDINGS = (
    "bucket",
    "kind",
    "scope",
    "severity",
    "suspects",
    "victims",
    "coverage",
    "first_bad",
    "times",
    "evidence",
    "ruled_out",
    "confidence",
    "job",
)
_SEPARATORS = (",", ":")
#: Fields that are JSON as they are.
_PLAIN = frozenset(Case.__slots__) - {
    *("contributions", "document", "conditions", "joint", "hold", "plan", "repeats", "clock_note", "label")
}


def pack_case(case: Case) -> bytes:
    """The case as a row of state, for ``unpack_case``. What findings have said stands in it as it came."""
    fields = {name: json.dumps(getattr(case, name), separators=_SEPARATORS) for name in _PLAIN}
    fields["contributions"] = f"[{','.join(map(_pack_contribution, case.contributions))}]"
    written = {
        "document": {} if case.document is None else write_incident(case.document),
        "conditions": list(map(write_condition, case.conditions)),
        "joint": None if case.joint is None else _write_joint(case.joint),
        "hold": None if case.hold is None else write_hold(case.hold),
        "plan": None if case.plan is None else write_evidence(case.plan),
        "repeats": None if case.repeats is None else write_evidence(case.repeats),
        "clock_note": None if case.clock_note is None else write_evidence(case.clock_note),
        "label": None if case.label is None else write_label(case.label),
    }
    fields |= {name: json.dumps(value, separators=_SEPARATORS) for name, value in written.items()}
    return f"{{{','.join(f'{json.dumps(name)}:{fields[name]}' for name in Case.__slots__)}}}".encode()


def _pack_contribution(contribution: Contribution) -> str:
    fields = {
        "key": contribution.key,
        "cleared": contribution.cleared,
        "consequence": contribution.consequence,
        "time": contribution.time,
    }
    return f'{json.dumps(fields, separators=_SEPARATORS)[:-1]},"body":{contribution.body.text}}}'


def unpack_case(row: bytes) -> Case:
    """The case from a row that ``pack_case`` of this release or an earlier one made."""
    fields = json.loads(row)
    plain = {name: value for name, value in fields.items() if name in _PLAIN}
    document, joint, label = fields.get("document"), fields.get("joint"), fields.get("label")
    return Case(
        **plain,
        contributions=[
            Contribution(
                key=each["key"],
                cleared=each["cleared"],
                consequence=each["consequence"],
                time=each["time"],
                body=read_told(each["body"]),
            )
            for each in fields["contributions"]
        ],
        document=read_incident(document) if document else None,
        conditions=list(map(read_condition, fields.get("conditions", ()))),
        joint=None if joint is None else _read_joint(joint),
        hold=read_hold(fields.get("hold")),
        plan=_read_row(fields.get("plan")),
        repeats=_read_row(fields.get("repeats")),
        clock_note=_read_row(fields.get("clock_note")),
        label=None if label is None else read_label(label),
    )


def _read_row(row: Mapping[str, Any] | None) -> EvidenceRow | None:
    return None if row is None else read_evidence(row)


def _write_joint(joint: JointCause) -> dict[str, Any]:
    return {
        "rule": joint.rule,
        "value": joint.value,
        "kind": word_of(joint.kind),
        "bucket": word_of(joint.bucket),
        "scope": word_of(joint.scope) or None,
        "severity": word_of(joint.severity),
        "confidence": joint.confidence,
        "suspects": list(map(write_suspect, joint.suspects)),
        "jobs": list(map(write_share, joint.jobs)),
        "members": list(joint.members),
        "victims": joint.victims,
        "cause": None if joint.cause is None else write_cause(joint.cause),
        "evidence": list(map(write_evidence, joint.evidence)),
        "ruled_out": list(map(write_ruled_out, joint.ruled_out)),
        "advice": None if joint.advice is None else write_advice(joint.advice),
        "resolved": joint.resolved,
        "onset": joint.onset,
    }


def _read_joint(written: Mapping[str, Any]) -> JointCause:
    said = read_incident({**written, "victims": None})
    return JointCause(
        kind=said.kind,
        bucket=said.bucket,
        scope=said.scope,
        severity=said.severity,
        confidence=said.confidence,
        suspects=said.suspects,
        jobs=said.jobs,
        advice=said.advice,
        rule=written["rule"],
        value=written["value"],
        victims=written["victims"],
        cause=said.cause,
        evidence=said.evidence,
        ruled_out=said.ruled_out,
        members=tuple(written["members"]),
        resolved=written["resolved"],
        onset=written["onset"],
    )


def case_of_document(document: Mapping[str, Any]) -> Case:
    """The case behind a published document, as far as that tells it. Raises KeyError or ValueError for what is none."""
    incident = read_incident(document)
    told = read_told({name: document.get(name) for name in _OF_FINDINGS})
    is_joint = incident.kind in SHARED_KINDS
    contribution = Contribution(
        key="",
        cleared=document["state"] != IncidentState.OPEN.value,
        consequence=False,
        time=incident.times.detected_s or incident.times.onset_s,
        body=told,
    )
    job = incident.job
    return Case(
        id=document["id"],
        cluster=incident.cluster or "",
        run=job.run or "",
        job=job.id or "",
        attempt=job.attempt or "",
        contributions=[contribution],
        ended=incident.times.resolved_s,
        merged_into=incident.merged_into,
        job_now=job.now,
        earlier_incidents=incident.history.suspect_incidents or 0,
        document=incident,
        gpu_ns=_own_gpu_ns(incident, is_joint=is_joint),
        charged_to=(incident.cost.charged_to if incident.cost is not None else "") or None,
        joint=joint_of_document(incident) if is_joint else None,
        has_joined=incident.merged_into is not None,
        label=incident.label,
        adopted=True,
    )


def _own_gpu_ns(incident: IncidentDocument, *, is_joint: bool) -> int:
    """What its own job was charged with; of a joint incident the whole is the sum over its jobs."""
    cost, job = incident.cost, incident.job
    if is_joint:
        own = (share for share in incident.jobs if (share.id, share.attempt) == (job.id, job.attempt))
        cost = next((share.cost for share in own), None)
    return round((cost.gpu_seconds or 0.0) * 1e9) if cost is not None else 0


def published_documents(rows: Iterable[tuple[str, bytes]]) -> Iterator[IncidentDocument]:
    """The last revision of each incident in rows of ClusterOperator's table ``incidents``."""
    for _, row in rows:
        if (document := unpack_case(row).document) is not None:
            yield document
