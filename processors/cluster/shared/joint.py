"""What a shared cause makes of the incident that leads: fields laid over what its own job says. Pure.

The joint incident is the earliest open one that the cause explains: its id stays, it is told in wider words, and the
others merge into it. So nobody is paged twice for one cause, not even where the first page went out before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....telemetry.incident_document import (
    CountedBy,
    EvidenceRow,
    IncidentAdvice,
    IncidentCause,
    JobShare,
    RuledOutEntry,
    SuspectEntry,
    Value,
    Victims,
)
from ....telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity
from .history import Verdict
from .memory import Memory
from .rules import Rule, load_shared_rules
from .scoring import Choice
from .troubles import Trouble

MAX_JOBS = 512
MAX_ROWS = 12
_SEVERITIES = [Severity.INFO.value, Severity.TICKET.value, Severity.PAGE.value]
#: What the suspect of a rule is called, where it is no rank or node.
_SUSPECT_SCOPE = {
    "leaf": Scope.SWITCH,
    "spine": Scope.SWITCH,
    "nvlink_domain": Scope.SWITCH,
    "rail": Scope.SWITCH,
    "storage": Scope.STORAGE,
    "service": Scope.SERVICE,
}
SHARED_KINDS = frozenset(rule.kind for rule in load_shared_rules().values()) | {Kind.SHARED_CAUSE}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCause:
    """What is said for all jobs that share a cause. rule: its name. victims: how many ranks. members: ids of incidents.

    resolved: when the last of them was over, None while one is open; onset: of the first (Unix seconds). cause: None
    where several causes remain.
    """

    kind: Kind | str
    bucket: Bucket | str
    scope: Scope | str | None
    severity: Severity | str
    confidence: float | None
    suspects: tuple[SuspectEntry, ...]
    jobs: tuple[JobShare, ...]
    advice: IncidentAdvice | None
    rule: str | None
    value: str | None
    victims: int | None
    cause: IncidentCause | None
    evidence: tuple[EvidenceRow, ...]
    ruled_out: tuple[RuledOutEntry, ...]
    members: tuple[str, ...]
    resolved: float | None
    onset: float


def verdict_of(choice: Choice) -> Verdict:
    """The verdict that a chosen candidate amounts to, with its rivals."""
    best = choice.candidate
    return Verdict(
        rule=best.rule,
        value=best.value,
        probability=choice.probability,
        members=sorted(best.covers),
        onset=best.onset,
        decides=choice.decides,
        culprit=best.culprit,
        rivals=[(rival.rule.name, rival.value, probability) for rival, probability in choice.rivals],
        words={**best.words, "exposed": best.exposed},
        evidence=tuple(best.evidence),
    )


def joint_cause(verdict: Verdict, members: Sequence[Trouble], memory: Memory) -> JointCause:
    """What is said for all jobs of a verdict. members: not empty, in order of onset; also those that are over."""
    rule = verdict.rule
    kind = rule.kind if verdict.decides else Kind.SHARED_CAUSE
    scope = rule.scope if verdict.decides else Scope.CLUSTER
    jobs = sorted({t.job for t in members})
    words = {**verdict.words, "jobs": len(jobs)} if "jobs" in verdict.words else verdict.words
    words = {**words, "whose": f"{len(jobs)} jobs" if len(jobs) != 1 else f"job {jobs[0]}"}
    is_over = all(not t.is_open for t in members)
    says = rule.says.format(**{"value": verdict.value, **words})
    counted_by = verdict.words.get("counted_by")
    cause = IncidentCause(
        condition=rule.name,
        entity=verdict.value,
        device_kind=rule.attribute or scope.value,
        device="",
        since_s=verdict.onset,
        domain="application" if scope is Scope.APPLICATION else "shared",
        counted_by=None if counted_by is None else CountedBy(counted_by),
    )
    evidence = (_says(rule, verdict, says), *verdict.evidence[:MAX_ROWS])
    return JointCause(
        rule=rule.name,
        value=verdict.value,
        kind=kind,
        bucket=_bucket(rule, members, decides=verdict.decides),
        scope=scope,
        severity=_severity(rule, members),
        confidence=round(verdict.probability, 3),
        suspects=tuple(_suspects(verdict, members)),
        jobs=tuple(_jobs(verdict, members)),
        members=tuple(trouble.id for trouble in members[:MAX_JOBS]),
        victims=sum(t.victims for t in members),
        cause=cause if verdict.decides else None,
        # "condition": it lies over what the job says, and is made anew each time.
        evidence=tuple(replace(row, condition=rule.name) for row in evidence),
        ruled_out=tuple(replace(row, condition=rule.name) for row in _ruled_out(verdict, members)),
        advice=_advice(verdict, {"value": verdict.value, **words}),
        resolved=max(float(t.resolved or 0.0) for t in members) if is_over else None,
        onset=min([verdict.onset, *(t.onset for t in members)]),
    )


def _bucket(rule: Rule, members: Sequence[Trouble], *, decides: bool) -> str:
    """The rule's where it says what it is by nature; else what the jobs have: they hang, crash or are slow."""
    if decides and rule.family in ("full", "maintenance", "observer", "corruption", "preemption"):
        return rule.bucket.value
    counted: dict[str, int] = {}
    for trouble in members:
        counted[trouble.bucket] = counted.get(trouble.bucket, 0) + 1
    return max(counted, key=lambda bucket: (counted[bucket], bucket)) if counted else rule.bucket.value


def _severity(rule: Rule, members: Sequence[Trouble]) -> str:
    """The gravest of its jobs', but no graver than such a cause is."""
    gravest = max((_SEVERITIES.index(t.severity) for t in members if t.severity in _SEVERITIES), default=0)
    return _SEVERITIES[min(gravest, _SEVERITIES.index(rule.severity.value))]


def _suspects(verdict: Verdict, members: Sequence[Trouble]) -> list[SuspectEntry]:
    rule = verdict.rule
    if rule.family in ("observer", "maintenance"):
        return []
    if not verdict.decides:
        named = [(rule.name, verdict.value, verdict.probability), *verdict.rivals]
        return [_suspect(load_shared_rules()[name], value, p) for name, value, p in named]
    if rule.family == "again":
        first = members[-1]
        return [_of_scope(Scope.APPLICATION, verdict.value, verdict.probability, rank=first.ranks[0])]
    gpu = verdict.words.get("gpu")
    suspects = [_suspect(rule, verdict.value, verdict.probability, gpu=str(gpu) if gpu else None)]
    if verdict.culprit and rule.family == "actor":
        suspects.append(_of_scope(Scope.JOB, verdict.culprit, verdict.probability))
    return suspects


def _suspect(rule: Rule, value: str, probability: float, gpu: str | None = None) -> SuspectEntry:
    if rule.scope is Scope.NODE:
        return _of_scope(Scope.NODE, value, probability, node=value, gpu=gpu)
    return _of_scope(_SUSPECT_SCOPE.get(rule.attribute, rule.scope), value, probability)


def _of_scope(
    scope: Scope,
    id_: str,
    probability: float,
    *,
    rank: int | None = None,
    node: str | None = None,
    gpu: str | None = None,
) -> SuspectEntry:
    return SuspectEntry(scope=scope, id=id_, rank=rank, node=node, gpu=gpu, probability=round(probability, 3))


def _jobs(verdict: Verdict, members: Sequence[Trouble]) -> list[JobShare]:
    """Culprits first, then the victims in order of their onset."""
    rows: dict[tuple[str, str], JobShare] = {}
    if verdict.culprit:
        attempt = next((t.attempt for t in members if t.job == verdict.culprit), "")
        rows[(verdict.culprit, attempt)] = _job(verdict.culprit, attempt, "culprit", 0)
    role = "culprit" if verdict.rule.scope is Scope.APPLICATION else "victim"
    for trouble in members:
        key = (trouble.job, trouble.attempt)
        if trouble.job == verdict.culprit:
            rows[key] = _job(*key, "culprit", trouble.victims)
        elif key not in rows:
            rows[key] = _job(*key, role, trouble.victims)
    for job, attempt, of_role in verdict.jobs:
        if not any(known[0] == job and (not attempt or known[1] == attempt) for known in rows):
            rows[(job, attempt)] = _job(job, attempt, of_role, 0)
    return list(rows.values())[:MAX_JOBS]


def _job(job: str, attempt: str, role: str, victims: int) -> JobShare:
    return JobShare(id=job, attempt=attempt, role=role, victims=Victims(count=victims) if victims else None)


def _says(rule: Rule, verdict: Verdict, says: str) -> EvidenceRow:
    if not verdict.decides:
        says = "; or ".join([says, *(f"{name} {value}" for name, value, _ in verdict.rivals)])
    return EvidenceRow(
        signal=f"shared.{rule.name}" if verdict.decides else "shared.undecided",
        source="cluster",
        time_s=verdict.onset,
        value=verdict.value,
        shows=says,
    )


def _ruled_out(verdict: Verdict, members: Sequence[Trouble]) -> list[RuledOutEntry]:
    rows = [
        RuledOutEntry(who=who, looks_guilty=looks_guilty, because=because)
        for who, looks_guilty, because in verdict.innocent[:MAX_ROWS]
    ]
    if not verdict.decides or verdict.rule.family in ("again", "lemon", "corruption", "observer", "rollout"):
        return rows
    because = f"what jobs share explains it: {verdict.rule.name.replace('_', ' ')} {verdict.value}"
    for trouble in members:
        for node in trouble.nodes[:2]:
            if len(rows) < MAX_ROWS:
                looks_guilty = f"job {trouble.job} suspects it"
                rows.append(RuledOutEntry(who=f"node {node}", looks_guilty=looks_guilty, because=because))
    for name, value, probability in verdict.rivals[:4]:
        rows.append(
            RuledOutEntry(
                who=f"{name.replace('_', ' ')} {value}",
                looks_guilty="it concerns the same jobs",
                because=f"it explains less: {probability:.0%} against {verdict.probability:.0%}",
            )
        )
    return rows


def _advice(verdict: Verdict, words: Mapping[str, Value]) -> IncidentAdvice:
    rule = verdict.rule
    if not verdict.decides:
        named = ", ".join([f"{rule.attribute} {verdict.value}", *(f"{v}" for _, v, _ in verdict.rivals)])
        text = f"have a person look at what these jobs share: {named}; take no node out for it"
        return IncidentAdvice(action=Action.ASK_A_HUMAN, by="human", text=text)
    return IncidentAdvice(action=rule.action, by=rule.by, text=rule.advice.format(**words))
