"""What can be done about an incident: operations of hooks, the acts that carry them out, and why not. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ....telemetry.incident_document import IncidentDocument
from ....telemetry.response_outcomes import Outcome
from ....telemetry.vocabulary import Action


class HookOperation(str, Enum):
    """One thing that a hook does to one target."""

    DRAIN_NODE = "drain_node"
    RESTART_JOB = "restart_job"
    #: The advice is written where the job's own controller or its owner sees it.
    MARK_JOB = "mark_job"
    #: Somebody's own automation is told, with the whole incident. Target: the incident.
    TELL = "tell"
    UNDRAIN_NODE = "undrain_node"


class Why(str, Enum):
    """Why something is not done."""

    HUMAN = "the advice is a person's"
    NOTHING_TO_DO = "the advice is to wait"
    ACTION_NOT_ALLOWED = "this action is not among respond_actions"
    SCOPE_NOT_ALLOWED = "this scope is not among respond_scopes"
    NOT_SURE = "its confidence is below respond_confidence"
    OF_PROGRAM = "no node is taken out for a fault of the program"
    NODE_UNCLEAR = "it is not clear which node"
    CLAIMED = "nobody but the job itself says that it is the scheduler's job of this id"
    NOT_ITS_JOB = "nothing confirms that a scheduler has a job of this id"
    NAME_UNSAFE = "a name that no scheduler's node or job has"
    RESTARTS_ITSELF = "the job's launcher restarts it already"
    OVER = "the incident is over"
    TOO_OLD = "the news is older than respond_max_age_s"
    NO_HOOK = "no hook of respond_hooks does this"
    RATE_LIMITED = "the hook has done respond_acts_per_hour in the last hour"
    BREAKER_OPEN = "the breaker is open"
    DRAIN_FAILED = "the node is still in, so the job is not started again"
    CHANGED_BY_OTHERS = "somebody else has changed the node since"
    JOB_ENDED = "the job was ended on purpose, or is done"
    WHOLE_ARRAY = "the id is that of a whole array of jobs, all of whose tasks would start again"
    NO_AUDIT = "the audit file cannot be written"


#: What each action is made of, in this order. A hook does those that it can.
OPERATIONS: Mapping[Action, tuple[HookOperation, ...]] = {
    Action.RETRY: (HookOperation.RESTART_JOB, HookOperation.MARK_JOB, HookOperation.TELL),
    Action.RESTART: (HookOperation.RESTART_JOB, HookOperation.MARK_JOB, HookOperation.TELL),
    Action.RESTART_WITHOUT_NODE: (
        HookOperation.DRAIN_NODE,
        HookOperation.RESTART_JOB,
        HookOperation.MARK_JOB,
        HookOperation.TELL,
    ),
    Action.DRAIN_AFTER_JOB: (HookOperation.DRAIN_NODE, HookOperation.MARK_JOB, HookOperation.TELL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One operation of one hook. ``key`` is the same for what must happen once only, whoever asks.

    leave_out: nodes that a job is to be started again without.
    """

    hook: str
    operation: HookOperation
    target: str
    action: str
    incident: str
    revision: int
    job: str
    attempt: str
    reason: str
    document: IncidentDocument
    leave_out: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Equal for acts of which only one is to be done.

        One restart for an attempt of a job, whichever incident asks; all else once for an incident and action.
        """
        if self.operation is HookOperation.RESTART_JOB:  # of two incidents of one attempt, too
            return f"{self.hook}/{self.operation.value}/{self.job}/{self.attempt}"
        return f"{self.hook}/{self.operation.value}/{self.target}/{self.incident}/{self.action}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    why: Why
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """What is to be done about one incident. nodes: those that it takes out."""

    acts: tuple[Act, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookResult:
    """What a hook says of an act."""

    outcome: Outcome
    detail: str = ""
    why: Why | None = None
