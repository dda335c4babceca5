"""Whether a job is started again: from its incidents, how its command ended, and what was tried before. Pure.

The controller of ``whichrank run --restarts``. A command that runs is ended only for an open page of its own attempt
that rests on positive evidence, or on a suspect that provably does nothing, and whose advice is to restart. Whatever
else is known, the answer is to leave it alone: a restart costs work, and a person can still do it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ...telemetry.incident_document import CalmAdvice, IncidentDocument, word_of
from ...telemetry.kind_sets import PROGRAM_DEFECT_KINDS
from ...telemetry.vocabulary import Action, Bucket, IncidentState, Kind, Scope, Severity
from ..support.restart_trigger import Trigger
from .limits import RestartLimits, Tried, is_open

#: Rows of evidence on what the one does who is waited for (``processors.cluster.advice``), and what they say then.
MOTION_SIGNAL = "process.motion"
#: The condition that says so where all else was looked at (``processors.cluster.application``).
BY_ELIMINATION = "no_node_fault"
_STANDS = frozenset({"still", "in_io"})
_AUTOMATIC = "automatic"
_RESTARTING = frozenset({Action.RETRY, Action.RESTART, Action.RESTART_WITHOUT_NODE})
#: Seen directly (a process in state T, calls that everybody has entered), not concluded from somebody's waiting.
_SEEN_DIRECTLY = frozenset({Kind.RANK_STOPPED, Kind.COLLECTIVE_STALLED, Kind.DEADLOCK, Kind.RANK_DIED})
#: After incidents of these an attempt does not go on.
_ENDING_BUCKETS = frozenset({Bucket.IMMEDIATE_CRASH, Bucket.COMMUNICATION_HANG, Bucket.NUMERIC, Bucket.CAPACITY})
#: So long what calls for an act must have held: stacks and what the node has to say come in meanwhile. Somebody may
#: stop a process for a moment; a launcher ends by itself after a rank's death, most often.
SETTLE_S, STOPPED_SETTLE_S, CRASH_SETTLE_S = 3.0, 10.0, 30.0
#: So many deadlocks alike at one step are enough: a race passes at once, an order that is wrong does not.
ALIKE_DEADLOCKS = 2


class RestartVerdict(str, Enum):
    NOTHING = "nothing"
    RESTART = "restart"
    WITHOUT_NODE = "restart_without_node"
    #: It is not tried again; a person is told.
    STOP = "stop"


class Reason(str, Enum):
    """Why this is done, or not: the closed set of the audit's ``why``."""

    HANG = "it hangs"
    CRASH = "it has failed"
    SLOW_NODE = "a node slows it down"
    NO_INCIDENT = "no incident of this attempt calls for it"
    NOT_ASKED = "--on does not name it"
    NOT_A_PAGE = "it is no page"
    OVER = "the incident is over"
    MOVES = "the one who is waited for moves, or nobody can tell"
    YOUNG = "it has not held for long enough"
    HELD = "it may be a fault that several jobs share"
    NOT_AUTOMATIC = "a person is to decide whether to restart"
    ENDED_WELL = "the command has ended well"
    ASKED_TO_END = "somebody has asked it to end"
    FOR_A_PERSON = "a restart would not help: this is for a person"
    ALIKE = "it has failed alike at one step for the third time"
    USED_UP = "--restarts are used up"
    TOO_OFTEN = "it was restarted too often within an hour"
    NEVER_STARTED = "no rank of it was ever seen"
    NODE_STAYS = "the node cannot be left out"
    #: Of several nodes.
    NOT_EVERYWHERE = "whichrank was not started with --restarts on every node"
    JUDGE = "the judge of this job says so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """incident: what it rests on; None: on how the command ended alone. node: to be left out; "" none."""

    verdict: RestartVerdict
    reason: Reason
    incident: IncidentDocument | None = None
    trigger: Trigger | None = None
    node: str = ""
    detail: str = ""

    @property
    def acts(self) -> bool:
        """Whether the command is to be started again."""
        return self.verdict in (RestartVerdict.RESTART, RestartVerdict.WITHOUT_NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenIncident:
    """An incident and since when (monotonic seconds) its newest revisions have called for the same act."""

    incident: IncidentDocument
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the command ended by itself. was_asked: a person or a scheduler has sent it a signal."""

    exit_code: int
    was_asked: bool
    ranks_seen: bool


def judge_running(
    seen: Iterable[SeenIncident],
    *,
    on: Collection[Trigger],
    tried: Sequence[Tried],
    limits: RestartLimits,
    now_s: float,
) -> Decision:
    """What to do with a command that runs: most often nothing. seen: incidents of its present attempt.

    now_s: monotonic. Never STOP: a command that is not helped is left alone.
    """
    nearest = Decision(verdict=RestartVerdict.NOTHING, reason=Reason.NO_INCIDENT)
    for one in seen:
        trigger = trigger_of(one.incident)
        reason = _why_not(one.incident, trigger, on)
        if (reason is None or reason in TOLD) and now_s - one.since_s < _settle_s(one.incident, trigger):
            reason = Reason.YOUNG  # nor is anybody told: a death is a person's to judge until its exit has been seen
        if reason is None:
            decision = _within_limits(_restart(one.incident, trigger), tried, limits, now_s)
            if decision.acts:
                return decision
            reason = decision.reason
        if nearest.incident is None or reason in TOLD:
            nearest = Decision(verdict=RestartVerdict.NOTHING, reason=reason, incident=one.incident, trigger=trigger)
    return nearest


#: Reasons that people are told once while a command runs on: the incident is theirs.
TOLD = frozenset(
    {
        *(Reason.FOR_A_PERSON, Reason.ALIKE, Reason.USED_UP, Reason.TOO_OFTEN),
        *(Reason.NODE_STAYS, Reason.NOT_AUTOMATIC, Reason.NOT_ASKED, Reason.NOT_EVERYWHERE),
    }
)


def judge_ended(
    end: End,
    incidents: Iterable[IncidentDocument],
    *,
    on: Collection[Trigger],
    tried: Sequence[Tried],
    limits: RestartLimits,
    now_s: float,
) -> Decision:
    """Whether a command that has ended is started again: RESTART, WITHOUT_NODE or STOP.

    incidents: of its last attempt. The owner has asked for restarts after a crash, so an advice to restart that is a
    person's to take is taken, and an end of which nothing is known is tried again.
    """
    if end.was_asked:
        return _stop(Reason.ASKED_TO_END)
    if end.exit_code == 0:
        return _stop(Reason.ENDED_WELL)
    causes = [one for one in incidents if _has_ended_it(one)]
    if any(one.bucket is Bucket.PLANNED for one in causes):
        return _stop(Reason.ASKED_TO_END, causes[0])
    for one in causes:
        advice = _advised(one)
        if not _may_pass(one) and advice.action not in _RESTARTING:
            advised = "" if one.advice is None else word_of(one.advice.action)
            return _stop(Reason.FOR_A_PERSON, one, detail=advised)
    main = next(iter(causes), None)
    is_hang = main is not None and main.bucket is Bucket.COMMUNICATION_HANG  # that its own time-out has ended
    trigger = Trigger.HANG if is_hang and Trigger.HANG in on else Trigger.CRASH
    status = f"exit code {end.exit_code}"
    if trigger not in on:
        return _stop(Reason.NOT_ASKED, main, trigger)
    if main is None and not end.ranks_seen:
        return _stop(Reason.NEVER_STARTED, detail=status)
    decision = Decision(verdict=RestartVerdict.RESTART, reason=Reason.CRASH, trigger=trigger, detail=status)
    return _within_limits(decision if main is None else _restart(main, trigger), tried, limits, now_s)


def trigger_of(incident: IncidentDocument) -> Trigger | None:
    """Which word of ``--on`` an incident falls under; None: under none."""
    if incident.bucket is Bucket.COMMUNICATION_HANG:
        return Trigger.HANG
    if incident.bucket is Bucket.IMMEDIATE_CRASH:
        return Trigger.CRASH
    if incident.bucket is Bucket.SPEED_REGRESSION and incident.scope in (Scope.NODE, Scope.GPU):
        return Trigger.SLOW_NODE
    return None


def _why_not(incident: IncidentDocument, trigger: Trigger | None, on: Collection[Trigger]) -> Reason | None:
    """Why a command that runs is not ended for this incident; None: nothing speaks against it."""
    if incident.state is not IncidentState.OPEN or incident.merged_into:
        return Reason.OVER
    if trigger is None:
        return Reason.NO_INCIDENT
    if incident.severity is not Severity.PAGE:
        return Reason.NOT_A_PAGE
    if trigger not in on:
        return Reason.NOT_ASKED
    if incident.job.now == "restarting":
        return Reason.OVER
    if incident.hold is not None:
        return Reason.HELD
    if trigger is Trigger.HANG and not _stands_still(incident):
        return Reason.MOVES
    if _may_pass(incident):
        return None
    advice = _advised(incident)
    if not (advice.action in _RESTARTING or _is_slow_node(advice, trigger)):
        return Reason.FOR_A_PERSON
    return None if advice.by == _AUTOMATIC else Reason.NOT_AUTOMATIC


def _advised(incident: IncidentDocument) -> CalmAdvice:
    """What is advised, but for how often the run has failed lately: that is the owner's to say (``RestartLimits``)."""
    advice = incident.advice
    if advice is None:
        return CalmAdvice()
    return advice.if_seldom or CalmAdvice(action=advice.action, by=advice.by)


def _is_slow_node(advice: CalmAdvice, trigger: Trigger) -> bool:
    return trigger is Trigger.SLOW_NODE and advice.action is Action.DRAIN_AFTER_JOB


def _may_pass(incident: IncidentDocument) -> bool:
    """Whether a hang may not come again although the advice is to look at the code.

    So it is where it is of the program only because no node's fault was seen: most such hangs pass. A deadlock is of
    the program for certain, but nothing goes on until it is ended, and one by a race (a signal, a clock that each rank
    reads for itself) passes as well. What comes again at one step is for a person.
    """
    if incident.bucket is not Bucket.COMMUNICATION_HANG:
        return False
    if incident.kind in PROGRAM_DEFECT_KINDS:
        return incident.kind is Kind.DEADLOCK
    return incident.cause is not None and incident.cause.condition == BY_ELIMINATION


def _stands_still(incident: IncidentDocument) -> bool:
    """Whether it is seen directly that nothing goes on, or all who are waited for provably do nothing."""
    motions = [str(row.value) for row in incident.evidence if row.signal == MOTION_SIGNAL]
    if any(motion not in _STANDS for motion in motions) or incident.kind is Kind.DESYNC:
        return False  # calls that differ may still end
    if incident.kind in _SEEN_DIRECTLY or incident.kind is Kind.NODE_LOST:
        return True
    return bool(motions) and bool(incident.suspects)


def _settle_s(incident: IncidentDocument, trigger: Trigger | None) -> float:
    if incident.kind is Kind.RANK_STOPPED:
        return STOPPED_SETTLE_S
    return CRASH_SETTLE_S if trigger is Trigger.CRASH and incident.kind is not Kind.NODE_LOST else SETTLE_S


def _has_ended_it(incident: IncidentDocument) -> bool:
    """Whether an incident may be why the command has ended. A ticket may: of an end as before, people know already."""
    if incident.state is not IncidentState.OPEN or incident.merged_into:
        return False
    if incident.advice is not None and incident.advice.action is Action.WAIT:
        return incident.bucket is Bucket.PLANNED
    return incident.bucket is Bucket.PLANNED or (
        incident.bucket in _ENDING_BUCKETS and incident.severity is not Severity.INFO
    )


def _restart(incident: IncidentDocument, trigger: Trigger | None) -> Decision:
    advised = _advised(incident).action
    reasons = {Trigger.HANG: Reason.HANG, Trigger.CRASH: Reason.CRASH, Trigger.SLOW_NODE: Reason.SLOW_NODE}
    reason = reasons.get(trigger, Reason.CRASH) if trigger is not None else Reason.CRASH
    if advised not in (Action.RESTART_WITHOUT_NODE, Action.DRAIN_AFTER_JOB):
        return Decision(verdict=RestartVerdict.RESTART, reason=reason, incident=incident, trigger=trigger)
    node = blamed_node(incident)
    if not node:
        return _stop(Reason.NODE_STAYS, incident, trigger, detail="which node")
    return Decision(verdict=RestartVerdict.WITHOUT_NODE, reason=reason, incident=incident, trigger=trigger, node=node)


def blamed_node(incident: IncidentDocument) -> str:
    """The one node that is blamed: its cause's, else the suspects'; "" where that is not exactly one."""
    suspected = {suspect.node for suspect in incident.suspects if suspect.node}
    cause = incident.cause
    blamed = suspected if cause is None else suspected & {cause.entity or ""}
    return str(next(iter(blamed))) if len(blamed) == 1 else ""


def _within_limits(decision: Decision, tried: Sequence[Tried], limits: RestartLimits, now_s: float) -> Decision:
    """The decision, unless it is not to be tried any more."""
    if not decision.acts:
        return decision
    what = like(decision.incident)
    reason = None
    is_deadlock = decision.incident is not None and decision.incident.kind is Kind.DEADLOCK
    enough = min(limits.alike, ALIKE_DEADLOCKS) if is_deadlock else limits.alike
    if what and sum(one.what == what for one in tried) >= enough - 1:
        reason = Reason.ALIKE
    elif len(tried) >= limits.restarts:
        reason = Reason.USED_UP
    elif is_open(tried, limits, now_s):
        reason = Reason.TOO_OFTEN
    if reason is None:
        return decision
    return _stop(reason, decision.incident, decision.trigger)


def _stop(
    reason: Reason, incident: IncidentDocument | None = None, trigger: Trigger | None = None, *, detail: str = ""
) -> Decision:
    return Decision(verdict=RestartVerdict.STOP, reason=reason, incident=incident, trigger=trigger, detail=detail)


def like(incident: IncidentDocument | None) -> tuple[str, ...]:
    """By what two failures of one run are alike: kind, place, and step as far as they are known; () for no incident."""
    if incident is None:
        return ()
    suspects = sorted(
        f"{suspect.where.file}:{suspect.line}" if suspect.where is not None and suspect.where.file else suspect.id
        for suspect in incident.suspects
    )
    return (word_of(incident.kind), *suspects, str(incident.first_bad.step))
