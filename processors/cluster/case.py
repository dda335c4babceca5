"""The file on one incident: the findings that belong to it, and the document that follows from them.

A case is a row of state, so it is plain JSON. ``compose`` is a pure function of the case; a revision is published only
when it says something new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...telemetry.incident import Document, complete_document
from ...telemetry.vocabulary import Bucket, Change, IncidentState, Kind, Severity
from ..condition_document import ConditionReport, read_condition, write_condition
from .advice import advise
from .application import by_elimination, evidence_of
from .causes import Body, detected_of, kind_of, leading, onset_of
from .explain import apply, explain
from .failures import Row
from .joining import SHARED_KINDS, cost_key, joint_of_document, overlay
from .merging import merge_evidence, merge_ruled_out, merge_suspects

#: Findings kept per incident; the first and the latest matter, a flood in between does not.
MAX_CONTRIBUTIONS = 32
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
#: Of what an incident has cost. While it is open it is told anew when it has grown by this factor, and is not small.
GROWTH, SMALLEST_COST_S = 2.0, 60.0
#: Once it is over, when it differs by this share: the restart is accounted for after it.
OVER_SHARE = 0.01
#: Domain of causes that show a wait to be a hang, however short it is.
_PROVES = "hardware"
_WAITS = frozenset({Kind.RANK_NOT_ENTERED.value, Kind.COLLECTIVE_STALLED.value})
_SEVERITY_ORDER = [Severity.INFO.value, Severity.TICKET.value, Severity.PAGE.value]


@dataclass(slots=True, kw_only=True)
class Contribution:
    """One finding as last heard."""

    key: str
    cleared: bool
    consequence: bool
    time: float  # Unix seconds of its last word
    body: Body


@dataclass(slots=True, kw_only=True)
class Case:
    """One incident. ``document`` is the last published revision."""

    id: str
    cluster: str
    run: str
    job: str
    attempt: str
    contributions: list[Contribution] = field(default_factory=list)
    #: Unix seconds at which the job's owner ended the job.
    ended: float | None = None
    merged_into: str | None = None
    job_now: str | None = None
    earlier_incidents: int = 0
    #: Evidence asked for already, by request id.
    requested: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    #: Conditions of nodes and devices that may have to do with it (as EntityOperator tells them).
    conditions: list[ConditionReport] = field(default_factory=list)
    #: Faults of nodes would have been told by now: by node of a suspect, what is seen of it. None: it is too early.
    watched: dict[str, list[str]] | None = None
    #: When that is asked (the bus's nanoseconds); 0: nothing of this kind has happened yet.
    settles_ns: int = 0
    #: What its findings are charged with, in GPU-nanoseconds; when that is told (the bus's ns), 0: nothing new.
    gpu_ns: int = 0
    cost_due_ns: int = 0
    #: What several jobs share (``shared``): this one leads, and says these fields for all; or it has joined its leader
    #: (``merged_into``), and goes on hearing of its own job.
    joint: dict[str, Any] | None = None
    #: Where it leads: what the others' incidents are charged with, GPU-nanoseconds by ``cost_key``.
    shared_ns: dict[str, int] = field(default_factory=dict)
    #: It was over before its cause was known to be shared: the leader counts what it has cost, once for all.
    charged_to: str | None = None
    has_joined: bool = False
    #: Its page waits: {until, because}. It was announced: the evidence of it. Its nodes' clocks are doubtful: why.
    hold: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    clock_note: dict[str, Any] | None = None
    #: What a person has said of it.
    label: dict[str, Any] | None = None
    #: Known only as it was published: its one contribution has no key yet.
    adopted: bool = False

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Case:
        """The case behind a published document, as far as that tells it. Raises KeyError for what is no document."""
        job, times = document["job"], document["times"]
        body = {name: document.get(name) for name in _OF_FINDINGS}
        is_joint = document.get("kind") in {kind.value for kind in SHARED_KINDS}
        contribution = Contribution(
            key="",
            cleared=document["state"] != IncidentState.OPEN.value,
            consequence=False,
            time=float(times["detected"] or times["onset"] or 0.0),
            body=body,
        )
        return cls(
            id=document["id"],
            cluster=document.get("cluster") or "",
            run=job.get("run") or "",
            job=job.get("id") or "",
            attempt=job.get("attempt") or "",
            contributions=[contribution],
            ended=times.get("resolved"),
            merged_into=document.get("merged_into"),
            job_now=job.get("now"),
            earlier_incidents=int((document.get("history") or {}).get("suspect_incidents") or 0),
            document=dict(document),
            gpu_ns=_own_gpu_ns(document, is_joint=is_joint),
            charged_to=(document.get("cost") or {}).get("charged_to"),
            joint=joint_of_document(document) if is_joint else None,
            has_joined=document.get("merged_into") is not None,
            label=document.get("label"),
            adopted=True,
        )

    def recognise(self, key: str) -> None:
        """The finding that opened it is heard again."""
        self.contributions[0].key = key
        self.adopted = False

    @property
    def line(self) -> str:
        """What its attempts count as one of: the run, or the job where no run is known."""
        return self.run or self.job

    @property
    def is_gone(self) -> bool:
        """Another incident of its own job has taken it over."""
        return self.merged_into is not None and not self.has_joined

    @property
    def causes(self) -> list[Contribution]:
        return [c for c in self.contributions if not c.consequence]

    @property
    def primary(self) -> Body:
        """The body that names the cause."""
        if len(self.contributions) == 1:
            return self.contributions[0].body
        causes = [c.body for c in self.causes]
        return causes[leading(causes)]

    @property
    def primary_key(self) -> str:
        """The key of the finding that names the cause."""
        causes = self.causes
        return causes[leading([c.body for c in causes])].key

    @property
    def resolved_at(self) -> float | None:
        """Unix seconds at which it ended for its own job, None while it is open."""
        if self.ended is not None:
            return self.ended
        latest: float | None = None
        for contribution in self.contributions:  # asked for every incident of a job at each of its findings
            if contribution.consequence:
                continue
            if not contribution.cleared:
                return None
            resolved = _resolved(contribution)
            latest = resolved if latest is None else max(latest, resolved)
        return latest

    @property
    def costs(self) -> dict[str, int]:
        """GPU-nanoseconds by ``cost_key``: its own, and of those that it leads."""
        own = {cost_key(self.job, self.attempt): self.gpu_ns} if self.gpu_ns else {}
        return {key: own.get(key, 0) + self.shared_ns.get(key, 0) for key in {**own, **self.shared_ns}}

    @property
    def over_at(self) -> float | None:
        """The same for all jobs that share its cause."""
        return self.resolved_at if self.joint is None else self.joint["resolved"]

    def find(self, key: str) -> Contribution | None:
        return next((c for c in self.contributions if c.key == key), None)

    def add(self, contribution: Contribution) -> None:
        self.contributions.append(contribution)
        if len(self.contributions) > MAX_CONTRIBUTIONS:
            del self.contributions[1]  # the one that opened the incident stays

    def pack(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}  # asdict copies deeply: ten times as slow
        fields["contributions"] = [{name: getattr(c, name) for name in c.__slots__} for c in self.contributions]
        fields["conditions"] = list(map(write_condition, self.conditions))
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, row: bytes) -> Case:
        fields = json.loads(row)
        fields["contributions"] = [Contribution(**c) for c in fields["contributions"]]
        fields["conditions"] = list(map(read_condition, fields.get("conditions", ())))
        return cls(**{name: value for name, value in fields.items() if name in cls.__slots__})


def _own_gpu_ns(document: Mapping[str, Any], *, is_joint: bool) -> int:
    """What its own job was charged with; of a joint incident the whole is the sum over its jobs."""
    cost = document.get("cost") or {}
    if is_joint:
        job = document["job"]
        rows = document.get("jobs") or ()
        own = (row for row in rows if (row.get("id"), row.get("attempt")) == (job.get("id"), job.get("attempt")))
        cost = next((row.get("cost") or {} for row in own), {})
    return round(float(cost.get("gpu_seconds") or 0.0) * 1e9)


def published_documents(rows: Iterable[tuple[str, bytes]]) -> Iterator[Mapping[str, Any]]:
    """The last revision of each incident in rows of ClusterOperator's table ``incidents``."""
    for _, row in rows:
        if document := Case.unpack(row).document:
            yield document


def compose(case: Case, earlier: Iterable[Row] = ()) -> Document:
    """The document that the case amounts to now, complete but for revision and change.

    earlier: what attempts of its run have failed of (``FailureRegister``).
    """
    return complete_document(overlay(case, compose_alone(case, earlier)))


def compose_alone(case: Case, earlier: Iterable[Row] = ()) -> dict[str, Any]:
    """What its own job says of it: the document's fields, whatever it shares with other jobs."""
    causes = [c.body for c in case.causes]
    first = leading(causes)
    primary = causes[first]
    bodies = [primary, *causes[:first], *causes[first + 1 :]]
    consequences = [c.body for c in case.contributions if c.consequence]
    suspects = merge_suspects(bodies)
    resolved = case.resolved_at
    state = IncidentState.MERGED if case.merged_into else IncidentState.RESOLVED if resolved else IncidentState.OPEN
    rank_or_code = primary.get("scope") in ("rank", "application", "job")
    cost = {"gpu_seconds": case.gpu_ns / 1e9} if case.gpu_ns else None
    before = {
        name: [row for row in case.document.get(name) or () if "condition" not in row]
        for name in ("evidence", "ruled_out")
    }
    fields: dict[str, Any] = {
        "id": case.id,
        "state": state.value,
        "merged_into": case.merged_into,
        "severity": _severity(bodies),
        "cluster": case.cluster,
        "job": {**_job(bodies), "run": case.run, "id": case.job, "attempt": case.attempt, "now": case.job_now},
        "jobs": [
            {
                "id": case.job,
                "attempt": case.attempt,
                "role": "culprit" if rank_or_code else "victim",
                "victims": primary.get("victims") or {},
                "cost": cost or {},
            }
        ],
        "bucket": primary["bucket"],
        "kind": primary["kind"],
        "scope": primary.get("scope"),
        "suspects": suspects,
        "victims": primary.get("victims"),
        "coverage": primary.get("coverage"),
        "first_bad": primary.get("first_bad"),
        "times": {
            "onset": onset_of(primary),
            "detected": _first_detected(primary, causes),
            "attributed": (primary.get("times") or {}).get("attributed"),
            "resolved": resolved,
        },
        "evidence": merge_evidence([*bodies, *consequences], before["evidence"]),
        "ruled_out": merge_ruled_out(bodies, consequences, before["ruled_out"]),
        "history": {"suspect_incidents": case.earlier_incidents, "last_change": None},
        "confidence": primary.get("confidence"),
        "cost": cost,
    }
    explanation = explain(primary, case.job, case.conditions)
    if explanation.cause is None and case.watched is not None:
        cause = by_elimination(primary, fields["suspects"], case.conditions, case.watched)
        explanation = replace(explanation, cause=cause, evidence=[evidence_of(cause)] if cause else ())
    apply(fields, explanation, case.job)
    if explanation.cause is not None and explanation.cause.domain == _PROVES and fields["kind"] in _WAITS:
        fields["severity"] = Severity.PAGE.value  # a broken device is no wait that may pass
    fields["advice"] = advise(fields, explanation.action, earlier)
    return fields


def change_of(case: Case, document: Mapping[str, Any]) -> Change | None:
    """What publishing ``document`` would be, None when it says nothing new."""
    before = case.document
    if not before:
        return Change.OPENED
    if document["state"] == before["state"] == IncidentState.MERGED.value:
        return None  # its leader speaks for it
    if document["state"] != before["state"]:
        return {
            IncidentState.MERGED.value: Change.MERGED,
            IncidentState.RESOLVED.value: Change.RESOLVED,
            IncidentState.OPEN.value: Change.REOPENED,
        }[document["state"]]
    return Change.UPDATED if material(document) != material(before) or has_grown(case) else None


def has_grown(case: Case) -> bool:
    """Whether what it has cost is news: more than twice what was told, and once it is over anything to speak of."""
    told = float((case.document.get("cost") or {}).get("gpu_seconds") or 0.0)
    now = (sum(case.costs.values()) if case.joint is not None else case.gpu_ns) / 1e9
    if case.document.get("state") == IncidentState.RESOLVED.value:
        return abs(now - told) > max(0.1, OVER_SHARE * told)
    return now > max(SMALLEST_COST_S, GROWTH * told)


def material(document: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a revision worth publishing: ages and wording that merely grow are left out."""
    confidence = document.get("confidence")
    return {
        **{name: document.get(name) for name in ("severity", "bucket", "kind", "scope", "victims", "first_bad", "job")},
        "coverage": document.get("coverage"),
        "suspects": [
            (s.get("scope"), s.get("id"), s.get("node"), s.get("gpu"), s.get("pid"), s.get("where"))
            for s in document.get("suspects") or ()
        ],
        "onset": round(document["times"]["onset"], 3),
        "evidence": sorted({f"{row.get('signal')} {row.get('source')}" for row in document["evidence"]}),
        "ruled_out": sorted(f"{row.get('who')} {row.get('looks_guilty')}" for row in document["ruled_out"]),
        "cause": document.get("cause"),
        "advice": [(document.get("advice") or {}).get(name) for name in ("action", "by", "retry")],
        "confidence": None if confidence is None else round(float(confidence), 1),
        "jobs": [(job.get("id"), job.get("attempt"), job.get("role")) for job in document.get("jobs") or ()],
        "hold": document.get("hold") is not None,
        "label": document.get("label"),
        "charged_to": (document.get("cost") or {}).get("charged_to"),
    }


def _first_detected(primary: Body, causes: list[Body]) -> float:
    """When we first spoke of this trouble; words about an earlier, milder one (a slow rank) do not count."""
    times = [t for t in map(detected_of, causes) if t >= onset_of(primary)]
    return min([*times, detected_of(primary)])


def _severity(bodies: list[Body]) -> str:
    """The gravest that any finding of the cause has asked for."""
    asked = [str(body.get("severity") or default_severity(kind_of(body))) for body in bodies]
    return max(asked, key=lambda s: _SEVERITY_ORDER.index(s) if s in _SEVERITY_ORDER else len(_SEVERITY_ORDER))


def default_severity(kind: Kind) -> str:
    """For findings that leave it to us."""
    if kind is Kind.PLANNED_STOP:
        return Severity.INFO.value
    if kind in (Kind.RANK_SLOW, Kind.SLOW_TOGETHER, Kind.INPUT_SILENT, Kind.AGENT_SILENT):
        return Severity.TICKET.value
    return Severity.PAGE.value


def is_blocking_incident(case: Case) -> bool:
    """Does it stand between the job and its next step?"""
    return case.primary.get("bucket") not in (Bucket.PLANNED.value, Bucket.TELEMETRY.value)


def _resolved(contribution: Contribution) -> float:
    resolved = (contribution.body.get("times") or {}).get("resolved")
    return float(resolved) if resolved is not None else contribution.time


def _job(bodies: list[Body]) -> dict[str, Any]:
    job: dict[str, Any] = {"run": None, "id": None, "name": None, "attempt": None, "owner": None, "now": None}
    for body in reversed(bodies):
        job.update({k: v for k, v in (body.get("job") or {}).items() if v is not None})
    return job
