"""Why did it happen: which condition of a node, a device or a mount explains an incident, and which only looks so.

A condition explains an incident if it is of a kind that does such things, concerns a suspect (his device, his process,
or his whole node), and began when the trouble did: not long before, when the rank went on after it, and not after. What
looks alike and fails one of these is ruled out by name. Pure functions over findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...diagnosis.kernel_log.xid import XID
from ...telemetry.evidence_facts import EvidenceFact
from ...telemetry.incident_document import EvidenceRow, IncidentCause, IncidentDocument, RuledOutEntry, SuspectEntry
from ...telemetry.kind_sets import SPEED_KINDS
from ...telemetry.told_ranks import read_ranks
from ...telemetry.trust import Trust
from ...telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ..condition_document import ConditionReport
from ..entity.rules import load_rules
from ..older_sentences import fact_of_evidence
from ..told_finding import ToldFinding
from .merging import by_time

#: Clocks and looks of one node agree so far.
SLACK_S = 1.0
#: What was broken and is whole again: requests that failed meanwhile are given up so long after.
AFTERMATH_S = 15.0
#: Somebody may think of what was told so shortly before or after.
NEAR_S = 900.0
MAX_RULED_OUT = 6
_SEVERITY = {"fatal": 0, "error": 1, "warning": 2, "info": 3}
_NOT_A_CAUSE = frozenset({"info"})
#: What a rank raised, and how its process ended.
_RAISED, _ENDED = "rank.exception", "rank.exit"
#: Of a file system that does not answer.
_NO_ANSWER = frozenset({"mount_stalls", "nfs_not_responding"})
#: Conditions of a device that belongs to single ranks.
_OF_RANKS = frozenset({"gpu"})
_OF_ONE_NODE = frozenset({Scope.NODE.value, Scope.GPU.value, Scope.LINK.value, Scope.RANK.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What conditions add to an incident. cause: the one that explains it, None where none does."""

    cause: ConditionReport | None = None
    evidence: Sequence[EvidenceRow] = ()
    ruled_out: Sequence[RuledOutEntry] = ()
    gpus: Mapping[int, str] = field(default_factory=dict)  # rank -> its GPU
    #: Whether several nodes tell the cause of themselves: what they share has done it, and none of them.
    is_of_many: bool = False
    #: Whether nothing but what a user could have written says that it is the cause.
    is_users_word: bool = False

    @property
    def action(self) -> str | None:
        """The action that the cause asks for; None without a cause, or where many nodes share it: nothing is done to
        one of them.
        """
        return None if self.cause is None or self.is_of_many else self.cause.action


def explain(primary: ToldFinding, job: str, conditions: Iterable[ConditionReport]) -> Explanation:
    """Which condition explains the incident, what it proves, and which only look so. primary: the finding of the cause.

    conditions: those of the suspects' nodes, and those that concern the job.
    """
    kind, onset, ends = primary.kind, primary.onset_s, _ends(primary)
    suspects = [s for s in primary.suspects if s.node or s.rank is not None]
    if kind in SPEED_KINDS:
        suspects += _its_ranks(suspects)
    candidates: list[ConditionReport] = []
    ruled_out: list[RuledOutEntry] = []
    for condition in sorted(conditions, key=lambda c: (c.since, c.name, c.device)):
        why_not = _why_not(condition, kind, onset, suspects, job)
        if why_not is None:
            why_not = _unlike(condition, ends)
        if why_not is None and primary.bucket == Bucket.CAPACITY and condition.name in _NO_ANSWER:
            why_not = "whoever is told that there is no room has had an answer"
        if why_not is None and kind is Kind.SLOW_TOGETHER:
            why_not = _not_what_grew(condition, primary.grew)
        if why_not is None:
            candidates.append(condition)
        elif why_not:
            ruled_out.append(
                RuledOutEntry(
                    who=_device_words(condition),
                    looks_guilty=condition.text,
                    because=why_not,
                    condition=condition.name,
                )
            )
    candidates.sort(key=lambda condition: _says_less(condition, kind))
    shown = {(_device_words(condition), condition.name) for condition in candidates}
    cause = candidates[0] if candidates else None
    return Explanation(
        cause=cause,
        is_of_many=cause is not None and not suspects and _is_of_many(cause, candidates),
        is_users_word=cause is not None and _is_users_word(cause, candidates),
        evidence=[_evidence(condition, onset) for condition in candidates],
        ruled_out=[row for row in ruled_out if (row.who, row.condition) not in shown][:MAX_RULED_OUT],
        gpus=_gpus(candidates, job),
    )


def _why_not(
    condition: ConditionReport, kind: Kind, onset: float, suspects: Sequence[SuspectEntry], job: str
) -> str | None:
    """None: it explains the incident. "": it has nothing to do with it. Else why it is not the cause."""
    if condition.planned and abs(condition.since - onset) >= NEAR_S:
        return ""  # what is planned for another day, nobody thinks of
    if kind.value not in condition.explains:
        return _harmless_words(condition) if _near(condition, onset) and _SEVERITY[_severity(condition)] >= 2 else ""
    if not suspects:
        if not condition.ranks_of(job):
            return ""
    elif not _concerns(condition, suspects, job):
        if not _near(condition, onset) or not _same_node(condition, suspects):
            return ""
        users = sorted(rank.rank for rank in condition.ranks_of(job))
        if condition.of_process and users:
            return f"it is rank {users[0]}, not the suspect"
        return f"it is used by rank {users[0]}, not by the suspect" if users else "the suspect does not use it"
    began, since = condition.since - condition.lag_s, condition.since
    if condition.planned:
        if condition.known > onset + SLACK_S:
            return f"it was told {condition.known - onset:.0f} s after the onset: then it was no plan"
        if began > onset + SLACK_S:
            return f"it was due {since - onset:.0f} s after the onset"
    if condition.lasts_s == 0:  # measured: it explains while it lasts
        until = condition.until
        if began > onset + SLACK_S:
            return f"it began {since - onset:.0f} s after the onset"
        if until is not None and float(until) < onset - SLACK_S:
            return f"it was over {onset - float(until):.0f} s before the onset"
        if condition.at_once and kind not in SPEED_KINDS and since < onset - condition.before_s:
            return f"it began {onset - since:.0f} s before the onset, and the rank went on with it"
        return _harmless_words(condition) if condition.tolerated else None
    if began > onset + SLACK_S:
        return f"it came {since - onset:.0f} s after the onset"
    if since < onset - condition.before_s:
        return f"it came {onset - since:.0f} s before the onset, and the rank went on after it"
    if condition.is_state and condition.until is not None and condition.until < onset - AFTERMATH_S:
        return f"it was over {onset - condition.until:.0f} s before the onset"
    if condition.tolerated or condition.severity in _NOT_A_CAUSE:
        return _harmless_words(condition)
    return None


def _its_ranks(suspects: Iterable[SuspectEntry]) -> list[SuspectEntry]:
    """Of a node that is suspected as a whole: what slows its devices slows it."""
    return [
        SuspectEntry(rank=rank, node=suspect.node)
        for suspect in suspects
        if suspect.rank is None
        for rank in read_ranks(suspect.ranks or "")
    ]


def _is_of_many(cause: ConditionReport, candidates: Iterable[ConditionReport]) -> bool:
    """Whether it stands on more nodes than one, of those that would be taken away for it."""
    alike = {condition.entity for condition in candidates if condition.name == cause.name}
    return len(alike) > 1 and cause.scope in _OF_ONE_NODE and cause.domain != "application"


def _says_less(c: ConditionReport, kind: Kind) -> tuple[bool | int | float, ...]:
    """The least is the cause: first that the kernel ended this very process, last what only reports what the program
    did."""
    return (
        not (c.of_process and c.source == "kernel"),
        c.domain == "application",
        c.symptom,
        _SEVERITY.get(c.severity, 9),
        kind in SPEED_KINDS and c.domain == "storage",  # a device held back slows its rank, a mount only who reads it
        c.source == "job_log",  # the node's own signals know better what a process met
        c.event != XID,  # it says more than that the device is gone
        c.since,
    )


def _is_users_word(cause: ConditionReport, candidates: Iterable[ConditionReport]) -> bool:
    """Whether no signal that users cannot write asks for the same, at the same place."""
    alike = (each for each in candidates if (each.entity, each.action) == (cause.entity, cause.action))
    return all(each.trust is Trust.USER for each in alike)


def _ends(primary: ToldFinding) -> list[EvidenceFact]:
    """How the suspect ended: what it raised, by which signal; empty where it has not, or that is not known."""
    kind = primary.kind
    if kind not in (Kind.RANK_RAISED, Kind.RANK_DIED):
        return []
    rows = [row for row in primary.evidence if row.signal in (_RAISED, _ENDED)]
    # Whoever raised ends with an exit code as well, which may be of any cause.
    telling = _ENDED if kind is Kind.RANK_DIED else _RAISED
    rows = [row for row in rows if row.signal == telling] or rows
    return [fact for row in rows if (fact := fact_of_evidence(row)) is not None]


def _unlike(condition: ConditionReport, ends: Sequence[EvidenceFact]) -> str | None:
    """A link that goes down does not make a program divide by zero."""
    looks_like = load_rules().ends_with.get(condition.ends_with)
    if looks_like is None or not ends or any(map(looks_like.fits, ends)):
        return None
    return "such a thing does not end a rank in this way"


def _not_what_grew(condition: ConditionReport, grew: str) -> str | None:
    """grew: of the steps of a job that is slow as a whole; "": not one part of them."""
    if condition.domain != "storage" or grew == "data":
        return None
    return "no rank waits longer for its data than before"


def _near(condition: ConditionReport, onset: float) -> bool:
    """Close enough in time that somebody may think of it; of single processes many end, for reasons of their own."""
    if condition.of_process:
        return abs(condition.since - onset) < 30.0
    return abs(condition.since - onset) < NEAR_S or condition.until is None


def _same_node(condition: ConditionReport, suspects: Sequence[SuspectEntry]) -> bool:
    """A server or switch may have a node's name; what it says is no node's."""
    return condition.entity_kind == "node" and any(suspect.node == condition.entity for suspect in suspects)


def _concerns(condition: ConditionReport, suspects: Sequence[SuspectEntry], job: str) -> bool:
    mine = {rank.rank for rank in condition.ranks_of(job)}
    if condition.of_job or condition.device_kind == "job":
        # What ends a job ends all of it, wherever it was read; where nobody knows which of ours it is, none.
        return bool(mine) and (condition.scope == Scope.JOB.value or _same_node(condition, suspects))
    if condition.of_process or _names_a_rank(condition):
        return any(suspect.rank in mine for suspect in suspects)
    if condition.device_kind in _OF_RANKS:  # whose it is must be known
        return any(suspect.rank in mine or _is_on(suspect, condition) for suspect in suspects)
    return _same_node(condition, suspects) or any(suspect.rank in mine for suspect in suspects)


def _names_a_rank(condition: ConditionReport) -> bool:
    """It is told of one process, which is a rank: another that stands still beside it has a reason of its own."""
    return bool(condition.pid) and any(rank.pid == condition.pid for rank in condition.ranks)


def _is_on(suspect: SuspectEntry, condition: ConditionReport) -> bool:
    return bool(suspect.gpu) and suspect.gpu == condition.gpu


def _harmless_words(condition: ConditionReport) -> str:
    if condition.tolerated:
        return f"it was over after {(condition.until or condition.since) - condition.since:.1f} s, and comes seldom"
    return "such a thing does not do this"


def _severity(condition: ConditionReport) -> str:
    severity = condition.severity
    return severity if severity in _SEVERITY else "info"


def _device_words(condition: ConditionReport) -> str:
    device = condition.device
    return f"{condition.device_kind} {device} of {condition.entity}" if device else condition.entity


def _evidence(condition: ConditionReport, onset: float) -> EvidenceRow:
    before = onset - condition.since
    when = f"{before:.1f} s before the onset" if before >= 0 else f"told {-before:.1f} s after the onset"
    if condition.planned:
        when = f"known {max(0.0, onset - condition.known):.0f} s before the onset"
    return EvidenceRow(
        signal=f"{condition.source}.{condition.name}",
        source=condition.entity,
        time_s=condition.since,
        value=condition.value,
        shows=f"{_device_words(condition)}: {condition.text} ({when})",
        condition=condition.name,
        trust=condition.trust,
    )


def _gpus(conditions: Iterable[ConditionReport], job: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for condition in conditions:
        if condition.device_kind != "gpu":
            continue
        for rank in condition.ranks_of(job):
            found.setdefault(rank.rank, condition.gpu)
    return found


def apply(incident: IncidentDocument, explanation: Explanation, job: str) -> IncidentDocument:
    """The incident with what the conditions add. Who is suspected changes only where nobody was.

    A planned cause makes it a planned stop without suspects.
    """
    incident = replace(incident, ruled_out=(*incident.ruled_out, *explanation.ruled_out))
    cause = explanation.cause
    if cause is None:
        return incident
    is_application, is_of_many = cause.domain == "application", explanation.is_of_many
    suspects = tuple(_with_gpu(suspect, explanation.gpus) for suspect in incident.suspects)
    confidence = incident.confidence
    if confidence is not None and not is_application:
        confidence = round(1.0 - (1.0 - confidence) / 2.0, 6)
    explained = replace(
        incident,
        evidence=tuple(sorted([*incident.evidence, *explanation.evidence], key=by_time)),
        scope=incident.scope if is_of_many else Scope.APPLICATION if is_application else cause.scope,
        cause=IncidentCause(
            condition=cause.name,
            entity=cause.entity,
            device_kind=cause.device_kind,
            device=cause.device,
            since_s=cause.since,
            domain=cause.domain,
            trust=Trust.USER if explanation.is_users_word else None,
        ),
        suspects=suspects or (() if is_of_many else _suspects_of(cause, job)),
        confidence=confidence,
    )
    if not cause.planned:
        return explained
    # Nobody is to blame, and nobody is called for it.
    return replace(explained, kind=Kind.PLANNED_STOP, bucket=Bucket.PLANNED, severity=Severity.INFO, suspects=())


def _with_gpu(suspect: SuspectEntry, gpus: Mapping[int, str]) -> SuspectEntry:
    rank = suspect.rank
    if rank is None or suspect.gpu or rank not in gpus:
        return suspect
    return replace(suspect, gpu=gpus[rank])


def _suspects_of(cause: ConditionReport, job: str) -> tuple[SuspectEntry, ...]:
    """Where the job's own records name nobody, those whom the condition concerns, if it is of single ranks."""
    mine = cause.ranks_of(job)
    if cause.device_kind not in _OF_RANKS or not mine:
        return (SuspectEntry(scope=cause.scope, id=cause.device or cause.entity, node=cause.entity, probability=0.8),)
    return tuple(
        SuspectEntry(
            scope=Scope.RANK,
            id=str(rank.rank),
            rank=rank.rank,
            node=cause.entity,
            gpu=cause.gpu if cause.device_kind == "gpu" else None,
            pid=rank.pid or None,
            probability=round(0.9 / len(mine), 6),
        )
        for rank in sorted(mine, key=lambda rank: rank.rank)
    )
