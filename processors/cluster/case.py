"""The file on one incident: the findings that belong to it, and the document that follows from them.

``compose`` is a pure function of the case; a revision is published only when it says something new. Its row of state:
``case_row``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...telemetry.incident_document import (
    Coverage,
    EvidenceRow,
    FirstBadPlace,
    IncidentCause,
    IncidentDocument,
    IncidentHistory,
    IncidentHold,
    IncidentLabel,
    IncidentTimes,
    JobReference,
    JobShare,
    Retry,
    Victims,
    word_of,
)
from ...telemetry.vocabulary import Bucket, Change, IncidentState, Kind, Severity
from ..condition_document import ConditionReport
from ..told_finding import ToldFinding
from .advice import advise
from .application import by_elimination, evidence_of
from .causes import leading
from .explain import apply, explain
from .failures import Failure
from .joining import cost_key, cost_of, overlay
from .merging import merge_evidence, merge_ruled_out, merge_suspects
from .shared.joint import JointCause

#: Findings kept per incident; the first and the latest matter, a flood in between does not.
MAX_CONTRIBUTIONS = 32
#: Of what an incident has cost. While it is open it is told anew when it has grown by this factor, and is not small.
GROWTH, SMALLEST_COST_S = 2.0, 60.0
#: Once it is over, when it differs by this share: the restart is accounted for after it.
OVER_SHARE = 0.01
#: Domain of causes that show a wait to be a hang, however short it is.
_PROVES = "hardware"
_WAITS = frozenset({Kind.RANK_NOT_ENTERED, Kind.COLLECTIVE_STALLED})
#: Digits of times that a document keeps.
_DIGITS = 6
_SEVERITY_ORDER = [Severity.INFO.value, Severity.TICKET.value, Severity.PAGE.value]


@dataclass(slots=True, kw_only=True)
class Contribution:
    """A finding of an incident as last heard. consequence: it only follows from the cause."""

    key: str
    cleared: bool
    consequence: bool
    time: float  # Unix seconds of its last word
    body: ToldFinding


@dataclass(slots=True, kw_only=True)
class Case:
    """One incident: the findings that belong to it, and what is known beside them. Mutable; a row of state."""

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
    #: The last published revision; None before the first.
    document: IncidentDocument | None = None
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
    joint: JointCause | None = None
    #: Where it leads: what the others' incidents are charged with, GPU-nanoseconds by ``cost_key``.
    shared_ns: dict[str, int] = field(default_factory=dict)
    #: It was over before its cause was known to be shared: the leader counts what it has cost, once for all.
    charged_to: str | None = None
    has_joined: bool = False
    #: Its page waits. It was announced: the evidence of it. It repeats a page that is open. Its nodes' clocks are
    #: doubtful: why.
    hold: IncidentHold | None = None
    plan: EvidenceRow | None = None
    repeats: EvidenceRow | None = None
    clock_note: EvidenceRow | None = None
    #: What a person has said of it.
    label: IncidentLabel | None = None
    #: Known only as it was published: its one contribution has no key yet.
    adopted: bool = False

    @property
    def told(self) -> IncidentDocument:
        """The last published revision; an empty document before the first."""
        return self.document if self.document is not None else _NOT_TOLD

    def recognise(self, key: str) -> None:
        """Gives an adopted case the key of its finding, which is heard again."""
        self.contributions[0].key = key
        self.adopted = False

    @property
    def line(self) -> str:
        """The name by which its attempts count as one: the run's, or the job's where no run is known."""
        return self.run or self.job

    @property
    def is_gone(self) -> bool:
        """Whether another incident of its own job has taken it over."""
        return self.merged_into is not None and not self.has_joined

    @property
    def causes(self) -> list[Contribution]:
        """Findings that tell of the cause itself, in order of arrival."""
        return [c for c in self.contributions if not c.consequence]

    @property
    def primary(self) -> ToldFinding:
        """The finding that names the cause best, as it was told."""
        if len(self.contributions) == 1:
            return self.contributions[0].body
        causes = [c.body for c in self.causes]
        return causes[leading(causes)]

    @property
    def primary_key(self) -> str:
        """The key of the finding that names the cause best."""
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
        """GPU-nanoseconds by ``cost_key``: its own, and those of incidents that it leads."""
        own = {cost_key(self.job, self.attempt): self.gpu_ns} if self.gpu_ns else {}
        return {key: own.get(key, 0) + self.shared_ns.get(key, 0) for key in {**own, **self.shared_ns}}

    @property
    def over_at(self) -> float | None:
        """Unix seconds at which it ended for all jobs that share its cause; None while it is open."""
        return self.resolved_at if self.joint is None else self.joint.resolved

    def find(self, key: str) -> Contribution | None:
        """The finding of this key as last heard; None where it does not belong to this incident."""
        return next((c for c in self.contributions if c.key == key), None)

    def add(self, contribution: Contribution) -> None:
        """Adds a finding. Of more than MAX_CONTRIBUTIONS the second is dropped: the one that opened the
        incident stays.
        """
        self.contributions.append(contribution)
        if len(self.contributions) > MAX_CONTRIBUTIONS:
            del self.contributions[1]  # the one that opened the incident stays


_NOT_TOLD = IncidentDocument()


def compose(case: Case, earlier: Iterable[Failure] = ()) -> IncidentDocument:
    """The document that the case amounts to now, without revision and change. earlier: failures of its
    run's attempts.
    """
    return overlay(case, compose_alone(case, earlier))


def compose_alone(case: Case, earlier: Iterable[Failure] = ()) -> IncidentDocument:
    """The document by what its own job says, whatever it shares with other jobs. earlier: as in ``compose``."""
    causes = [c.body for c in case.causes]
    first = leading(causes)
    primary = causes[first]
    findings = [primary, *causes[:first], *causes[first + 1 :]]
    consequences = [c.body for c in case.contributions if c.consequence]
    alone = _of_findings(case, findings, consequences)
    explanation = explain(primary, case.job, case.conditions)
    if explanation.cause is None and case.watched is not None:
        cause = by_elimination(primary, alone.suspects, case.conditions, case.watched)
        explanation = replace(explanation, cause=cause, evidence=[evidence_of(cause)] if cause else ())
    alone = apply(alone, explanation, case.job)
    if explanation.cause is not None and explanation.cause.domain == _PROVES and alone.kind in _WAITS:
        alone = replace(alone, severity=Severity.PAGE)  # a broken device is no wait that may pass
    return replace(alone, advice=advise(alone, explanation.action, earlier, primary.steps_before))


def _of_findings(case: Case, findings: Sequence[ToldFinding], consequences: Sequence[ToldFinding]) -> IncidentDocument:
    """findings: of the cause, the leading one first."""
    primary, told = findings[0], case.told
    resolved = case.resolved_at
    state = IncidentState.MERGED if case.merged_into else IncidentState.RESOLVED if resolved else IncidentState.OPEN
    cost = cost_of(case.gpu_ns)
    share = JobShare(
        id=case.job,
        attempt=case.attempt,
        role="culprit" if primary.scope in ("rank", "application", "job") else "victim",
        victims=primary.victims if primary.victims != _NOBODY else None,
        cost=cost,
    )
    job = replace(_job(findings), run=case.run, id=case.job, attempt=case.attempt, now=case.job_now)
    return IncidentDocument(
        id=case.id,
        state=state,
        merged_into=case.merged_into,
        severity=_severity(findings),
        cluster=case.cluster,
        job=job,
        jobs=(share,),
        bucket=primary.bucket,
        kind=primary.kind,
        scope=primary.scope,
        suspects=merge_suspects(findings),
        victims=primary.victims,
        coverage=primary.coverage,
        first_bad=primary.first_bad,
        times=IncidentTimes(
            onset_s=primary.onset_s,
            detected_s=_first_detected(primary, findings),
            attributed_s=primary.attributed_s,
            resolved_s=resolved,
        ),
        evidence=merge_evidence([*findings, *consequences], [row for row in told.evidence if not row.condition]),
        ruled_out=merge_ruled_out(findings, consequences, [row for row in told.ruled_out if not row.condition]),
        history=IncidentHistory(suspect_incidents=case.earlier_incidents),
        confidence=primary.confidence,
        cost=cost,
    )


_NOBODY = Victims()


def change_of(case: Case, incident: IncidentDocument) -> Change | None:
    """What publishing ``incident`` would be (opened, updated, merged, resolved, reopened); None when it says nothing
    new.
    """
    before = case.document
    if before is None:
        return Change.OPENED
    if incident.state == before.state == IncidentState.MERGED:
        return None  # its leader speaks for it
    if incident.state != before.state:
        return {
            IncidentState.MERGED.value: Change.MERGED,
            IncidentState.RESOLVED.value: Change.RESOLVED,
            IncidentState.OPEN.value: Change.REOPENED,
        }[word_of(incident.state)]
    return Change.UPDATED if material(incident) != material(before) or has_grown(case) else None


def has_grown(case: Case) -> bool:
    """Whether its cost is news: more than twice what was told, or, once it is over, off by more than OVER_SHARE."""
    cost = case.told.cost
    told = (cost.gpu_seconds if cost is not None else None) or 0.0
    now = (sum(case.costs.values()) if case.joint is not None else case.gpu_ns) / 1e9
    if case.told.state == IncidentState.RESOLVED:
        return abs(now - told) > max(0.1, OVER_SHARE * told)
    return now > max(SMALLEST_COST_S, GROWTH * told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What makes a revision worth publishing: ages and wording that merely grow are left out."""

    words: tuple[str, ...]
    victims: Victims
    coverage: Coverage
    first_bad: FirstBadPlace
    job: JobReference
    suspects: tuple[tuple[object, ...], ...]
    onset_s: float
    evidence: tuple[str, ...]
    ruled_out: tuple[str, ...]
    cause: IncidentCause | None
    advice: tuple[str, str | None, Retry | None]
    confidence: float | None
    jobs: tuple[tuple[str | None, ...], ...]
    is_held: bool
    label: IncidentLabel | None
    charged_to: str


def material(incident: IncidentDocument) -> Material:
    """What of a revision, published or not, makes it worth publishing."""
    confidence, cause, advice, label = incident.confidence, incident.cause, incident.advice, incident.label
    return Material(
        words=tuple(map(word_of, (incident.severity, incident.bucket, incident.kind, incident.scope))),
        victims=incident.victims,
        first_bad=incident.first_bad,
        job=incident.job,
        coverage=incident.coverage,
        suspects=tuple((s.scope, s.id, s.node, s.gpu, s.pid, s.where) for s in incident.suspects),
        onset_s=round(round(incident.times.onset_s, _DIGITS), 3),
        evidence=tuple(sorted({f"{row.signal} {row.source}" for row in incident.evidence})),
        ruled_out=tuple(sorted(f"{row.who} {row.looks_guilty}" for row in incident.ruled_out)),
        cause=None if cause is None else replace(cause, since_s=_rounded(cause.since_s)),
        advice=("", None, None) if advice is None else (word_of(advice.action), advice.by, advice.retry),
        confidence=None if confidence is None else round(confidence, 1),
        jobs=tuple((job.id, job.attempt, job.role) for job in incident.jobs),
        is_held=incident.hold is not None,
        label=None if label is None else replace(label, time_s=_rounded(label.time_s)),
        charged_to=incident.cost.charged_to if incident.cost is not None else "",
    )


def _rounded(time_s: float | None) -> float | None:
    """As a document keeps it."""
    return None if time_s is None else round(time_s, _DIGITS)


def _first_detected(primary: ToldFinding, findings: Sequence[ToldFinding]) -> float:
    """When we first spoke of this trouble; words about an earlier, milder one (a slow rank) do not count."""
    times = [finding.detected_s for finding in findings if finding.detected_s >= primary.onset_s]
    return min([*times, primary.detected_s])


def _severity(findings: Sequence[ToldFinding]) -> str:
    """The gravest that any finding of the cause has asked for."""
    asked = [word_of(finding.severity) or default_severity(finding.kind) for finding in findings]
    return max(asked, key=lambda s: _SEVERITY_ORDER.index(s) if s in _SEVERITY_ORDER else len(_SEVERITY_ORDER))


def default_severity(kind: Kind) -> str:
    """The severity for a finding that states none: info for planned stops, ticket for slowness and
    silence, else page.
    """
    if kind is Kind.PLANNED_STOP:
        return Severity.INFO.value
    if kind in (Kind.RANK_SLOW, Kind.SLOW_TOGETHER, Kind.INPUT_SILENT, Kind.AGENT_SILENT):
        return Severity.TICKET.value
    return Severity.PAGE.value


def is_blocking_incident(case: Case) -> bool:
    """Whether it stands between the job and its next step: all but planned stops and telemetry."""
    return case.primary.bucket not in (Bucket.PLANNED, Bucket.TELEMETRY)


def _resolved(contribution: Contribution) -> float:
    resolved = contribution.body.resolved_s
    return resolved if resolved is not None else contribution.time


def _job(findings: Sequence[ToldFinding]) -> JobReference:
    """What the leading finding says of it, and what only others know."""
    names = (finding.job.name for finding in findings)
    owners = (finding.job.owner for finding in findings)
    return JobReference(
        name=next((name for name in names if name is not None), None),
        owner=next((owner for owner in owners if owner is not None), None),
        extra=next((finding.job.extra for finding in findings if finding.job.extra), ""),
    )
