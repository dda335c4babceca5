"""What to do about an incident: one action for each, automatic or a person's, with the reason, from ``advice.toml``.

The table is asked row by row, the first that fits holds. Two things it cannot say otherwise: nothing that takes a node
out is ever advised for a fault of the program, nor where the run failed alike at the same step on other nodes; and what
was tried as often as the row allows goes to a person. Pure functions over the incident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ...diagnosis.restarts.restart_progress import MAX_CYCLES
from ...telemetry.incident_document import (
    CalmAdvice,
    EvidenceRow,
    IncidentAdvice,
    IncidentDocument,
    Retry,
    Value,
    word_of,
)
from ...telemetry.kind_sets import PROGRAM_DEFECT_KINDS
from ...telemetry.trust import Trust
from ...telemetry.vocabulary import Action, Kind, Scope
from .advice_table import HUMAN, MOTIONS, NO_CAUSE, AdviceRow, AdviceTable, load_advice, rows_for
from .failures import Failure, Precedents, failure_of, last_end, precedents

#: They take a node away from its jobs, now or later.
EVICTING = frozenset({Action.RESTART_WITHOUT_NODE, Action.DRAIN_AFTER_JOB, Action.REPLACE_LINK})
RESTARTING = frozenset({Action.RETRY, Action.RESTART, Action.RESTART_WITHOUT_NODE})
_ENDED = "rank.exit"
_FIRST_LOOK = "nothing but what the job's own processes wrote says so: have a person look before anything is done"
MOTION_SIGNAL = "process.motion"
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the table is asked: of the document, of its cause, and of the run's earlier attempts."""

    bucket: str
    kind: str
    scope: str
    severity: str
    domain: str
    asked: str
    device_kind: str
    #: Type of the exception that the suspect raised; "": it raised none.
    raised: str
    is_changed: bool
    #: What the one who is waited for does (``process.motion``); "" where nobody is waited for, or nobody knows.
    motion: str
    before: Precedents

    @property
    def is_of_program(self) -> bool:
        """Whether it is a fault of the program, so that no node is to be taken out for it."""
        return (
            self.scope == Scope.APPLICATION.value
            or self.domain == "application"
            or self.kind in PROGRAM_DEFECT_KINDS
            or self.before.elsewhere
        )


def fits(row: AdviceRow, situation: Situation, history: Set[str]) -> bool:
    """Whether a row of the table holds in this situation. history: words of ``advice_table.HISTORIES`` that apply."""
    if row.action in EVICTING and situation.is_of_program:
        return False
    pairs = (
        (row.buckets, situation.bucket),
        (row.kinds, situation.kind),
        (row.scopes, situation.scope),
        (row.severities, situation.severity),
        (row.motions, situation.motion),
        (row.domains, situation.domain),
        (row.asked, situation.asked),
        (row.devices, situation.device_kind),
    )
    if any(wanted and value not in wanted for wanted, value in pairs):
        return False
    if row.history and not row.history & history:
        return False
    if row.errors is not None and not row.errors.match(situation.raised):
        return False
    return row.changed is None or row.changed == situation.is_changed


def advise(
    incident: IncidentDocument, asked: str | None, earlier: Iterable[Failure] = (), steps_before: int = 0
) -> IncidentAdvice:
    """What to do about an incident: an action, who does it, and the reason. asked: the action that its cause asks for.

    incident: with its ``cause`` where there is one. earlier: failures of the run, as ``FailureRegister`` keeps them.
    steps_before: of the training, before the attempt.
    The result has a ``retry`` where something is tried again: after ``of`` failures alike a person is told.
    """
    table = load_advice()
    before = precedents(failure_of(incident, steps_before), earlier, table.storm_s)
    situation = situation_of(incident, asked, before)
    words = _words(incident, before, table)
    advice = _trusted(incident, choose(situation, words))
    if before.recent < table.storm_failures:
        return advice
    calm = _trusted(incident, choose(replace(situation, before=replace(before, recent=1)), words))
    if (calm.action, calm.by) == (advice.action, advice.by):
        return advice
    return replace(advice, if_seldom=CalmAdvice(action=calm.action, by=calm.by))


def _trusted(incident: IncidentDocument, advice: IncidentAdvice) -> IncidentAdvice:
    """The advice; a person's where nothing but what a user can write supports it."""
    if advice.by == HUMAN or not isinstance(advice.action, Action) or _may_act(incident, advice.action):
        return advice
    return replace(advice, by=HUMAN, text=f"{advice.text}; {_FIRST_LOOK}")


def _may_act(incident: IncidentDocument, action: Action) -> bool:
    """Whether something that no user can write supports that a program does it: a node's cause that the kernel, a
    driver, an agent or the scheduler tells; that a node is gone; how a process ended or stands, as its agent sees it.
    """
    cause = incident.cause
    if cause is not None and cause.trust is not Trust.USER:
        return True
    if action in EVICTING:
        return cause is None and incident.kind is Kind.NODE_LOST
    if action not in RESTARTING:
        return True
    is_seen = incident.kind is not Kind.RANK_RAISED or any(row.signal == _ENDED for row in incident.evidence)
    return cause is None and is_seen


def choose(situation: Situation, words: Mapping[str, Value]) -> IncidentAdvice:
    """The advice of the first row of the table that holds. words: what texts may name."""
    history = {"elsewhere"} if situation.before.elsewhere else set()
    if situation.before.recent >= load_advice().storm_failures:
        history.add("storm")
    if situation.before.stuck >= MAX_CYCLES:
        history.add("stuck")
    rows = rows_for(situation.bucket, situation.kind)
    row = next(row for row in rows if fits(row, situation, history))  # the last one always does
    if row.retries is None:
        return IncidentAdvice(action=row.action, by=row.by, text=row.text.format(**words))
    alike = situation.before.alike
    if alike >= row.retries:
        retry = Retry(number=row.retries, of=row.retries)
        return IncidentAdvice(action=row.then.action, by=HUMAN, text=row.then.text.format(**words), retry=retry)
    retry = Retry(number=alike + 1, of=row.retries)
    text = f"{row.text.format(**words)} (retry {retry.number} of {retry.of})"
    return IncidentAdvice(action=row.action, by=row.by, text=text, retry=retry)


def situation_of(incident: IncidentDocument, asked: str | None, before: Precedents) -> Situation:
    """What the table is asked of an incident. asked: the action that its cause asks for; before: of the
    run's attempts.
    """
    cause, end = incident.cause, last_end(incident.evidence)
    return Situation(
        bucket=word_of(incident.bucket),
        kind=word_of(incident.kind),
        scope=word_of(incident.scope),
        severity=word_of(incident.severity),
        domain=(cause.domain if cause is not None else None) or NO_CAUSE,
        asked=asked or "",
        device_kind=(cause.device_kind if cause is not None else None) or "",
        raised="" if end is None else end.type,
        motion=_motion(incident.evidence),
        is_changed=bool(incident.history.last_change),
        before=before,
    )


def _motion(evidence: Iterable[EvidenceRow]) -> str:
    """Of several who are waited for, whether any of them moves."""
    found = {str(row.value) for row in evidence if row.signal == MOTION_SIGNAL}
    return next((word for word in MOTIONS if word in found), "")


def _words(incident: IncidentDocument, before: Precedents, table: AdviceTable) -> dict[str, Value]:
    cause, suspects, step = incident.cause, incident.suspects, incident.first_bad.step
    nodes = sorted({suspect.node for suspect in suspects if suspect.node})
    entity = cause.entity or "" if cause is not None else ""
    device = cause.device or "" if cause is not None else ""
    kind = cause.device_kind if cause is not None else None
    return {
        "entity": entity or "it",
        "device": f"{kind} {short_device(device)} of {entity}" if device else entity or "it",
        "place": device or "that line",
        "suspect": _listed([f"{word_of(s.scope) or 'rank'} {s.id}" for s in suspects]) or "a rank",
        "node": _listed(nodes) or "its node",
        "step": "that step" if step is None else step,
        "tries": before.alike,
        "failures": before.recent,
        "attempts": before.stuck,
        "minutes": round(table.storm_s / 60.0),
    }


def short_device(device: str) -> str:
    """A GPU's UUID up to its second dash, as people say it; other devices as they are."""
    return "-".join(device.split("-")[:2]) if device.startswith("GPU-") else device


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
