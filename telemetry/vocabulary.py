"""Closed sets shared by every part: phases, operations, levels, kinds of fault, buckets, actions.

Owns the numbers that go into rings and blocks (append, never renumber) and the words that go into incidents.
Standard library only: the instrumentation in the training process imports it.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Phase(IntEnum):
    """What a rank is doing. ``name.lower()`` is the word people see."""

    INIT = 0
    COMPILE = 1
    DATA = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    CHECKPOINT = 6
    RESTORE = 7
    EVAL = 8
    OTHER = 9
    EXIT = 10


#: Backends whose operations the host does: their Work may be held and asked, and host time is their time.
HOST_BACKENDS = frozenset({"gloo", "mpi"})


def is_device_backend(backend: str) -> bool:
    """Whether a device does operations of such a group. ``backend``: one name, or "cpu:gloo,cuda:nccl"; "" unknown."""
    names = {part.rpartition(":")[2] for part in backend.split(",") if part}
    return bool(names - HOST_BACKENDS)


class Op(IntEnum):
    """Collective and point-to-point operations by family.

    Families, not c10d schema names: torch renames variants between releases (``allgather_`` became ``_allgather_base_``
    for object collectives in 2.15) and 2.14's hooks report families only.
    """

    UNKNOWN = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    ALL_TO_ALL = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    SEND = 10
    RECV = 11
    MONITORED_BARRIER = 12


#: Families whose byte count must be equal on every member. Non-root gather and scatter pass empty
#: lists and uneven all-to-all differs by design, so only the operation is compared for those.
SIZE_COMPARABLE_OPS = frozenset({Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER})


#: torch's dtypes. Part of the ring format (``dtype`` of an event is the index + 1; 0 none or unknown): append only.
DTYPES = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "bool",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "uint16",
    "uint32",
    "uint64",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)


class EventKind(IntEnum):
    """Kinds of 64-byte ring events (see ring_layout for the fields of each)."""

    NONE = 0
    ENQUEUE = 1
    COMPLETE = 2
    STARTED = 3
    PHASE = 4
    STEP = 5
    LEVEL = 6
    GROUP = 7
    EXCEPTION = 8
    EXIT = 9
    HOOK_OFF = 10
    MARK = 11
    CHECKPOINT = 12
    BAD_LOSS = 13
    #: A checkpoint's save came to a state (``checkpoint_states``).
    SAVE = 14


class EventFlag(IntFlag):
    """Flags of ENQUEUE and COMPLETE events; stored in one byte."""

    NONE = 0
    P2P = 1
    # 2 stays free: it was named for asynchronous calls and recorded by nobody.
    #: Completion was seen by polling: its time is an upper bound, not the moment itself.
    POLLED = 4
    FAILED = 8  #: the operation ended with an error
    #: Sizes of this call must not be compared between ranks (sparse, uneven, unknown).
    NO_SIZE = 16


class StepFlag(IntFlag):
    """Flags of STEP events."""

    NONE = 0
    #: The optimizer skipped its update (GradScaler found inf).
    SKIPPED = 1
    HAS_LOSS = 2
    HAS_GRAD_NORM = 4
    #: ``whichrank.step()`` was called by the script; optimizer hooks no longer count steps.
    BY_HAND = 8
    #: The level was below events in some part of the step: its collectives, or their waits, are not all recorded.
    PARTLY_SEEN = 16
    #: The number is kept on its node: what stands in its column says only that it was finite.
    LOSS_WITHHELD = 32
    GRAD_NORM_WITHHELD = 64
    #: No optimizer made it: the rank's calls repeat, and this is one turn of them, or some.
    INFERRED = 128


class Level(IntEnum):
    """How much the instrumentation records; switchable in a running job.

    Collectives and steps are counted at every level, so that the numbers of all ranks agree whatever each has missed.
    """

    #: No events; the progress page tells step and phase.
    OFF = 0
    #: Steps and phases; of collectives what the flight recorder says.
    STATUS = 1
    EVENTS = 2


class HookState(IntFlag):
    """Why a rank may be blind; kept in its progress page."""

    NONE = 0
    COLLECTIVES_HOOKED = 1
    COMPLETION_HOOKED = 2
    PHASES_HOOKED = 4
    #: A hook raised and disabled itself: what follows is not seen.
    DISABLED = 8
    #: The measured own cost passed 1 % of a step, so the level was lowered.
    COST_LIMITED = 16
    #: More process groups than rows: the surplus groups are counted and blind.
    GROUPS_OVERFLOW = 32


class ExitState(IntEnum):
    """How the rank's process left, as far as it could say so itself."""

    RUNNING = 0
    NORMAL = 1
    EXCEPTION = 2
    SIGNAL = 3


class ProcessState(IntEnum):
    """Kernel state of a rank's process as the agent sees it."""

    UNKNOWN = 0
    RUNNING = 1
    SLEEPING = 2
    DISK_WAIT = 3
    STOPPED = 4
    ZOMBIE = 5
    DEAD = 6


class Bucket(str, Enum):
    """NVIDIA's three buckets, and what lies beside them (docs/incident.md)."""

    IMMEDIATE_CRASH = "immediate_crash"
    COMMUNICATION_HANG = "communication_hang"
    SPEED_REGRESSION = "speed_regression"
    NUMERIC = "numeric"
    CAPACITY = "capacity"
    PLANNED = "planned"
    TELEMETRY = "telemetry"


class TimeBucket(str, Enum):
    """What a second of a job was spent on; every second is in exactly one of them (docs/accounting.md)."""

    #: Waiting for machines.
    QUEUED = "queued"
    #: From the first process to the first step, and what a first step takes longer than a usual one; recompilation.
    STARTING = "starting"
    PRODUCTIVE = "productive"
    #: Steps that were lost: done after the checkpoint from which the job went on.
    REWORK = "rework"
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_RESTORE = "checkpoint_restore"
    DATA_STALL = "data_stall"
    STRAGGLER_LOSS = "straggler_loss"
    FAULT_BEFORE_DETECTION = "fault_before_detection"
    FAULT_AFTER_DETECTION = "fault_after_detection"
    #: From the end of the last step, or the first process to end, until the last process is gone.
    SHUTDOWN = "shutdown"
    #: From then until the next step, where an interruption was the reason.
    RESTARTING = "restarting"
    #: Asked for: evaluation, maintenance, from a stop that somebody wanted to the next start.
    PLANNED = "planned"
    #: Held and not used: GPUs of a job on which no rank runs.
    SPARE = "spare"
    UNKNOWN = "unknown"


class Kind(str, Enum):
    """What happened; one per row of the table in docs/verdicts.md. Later work appends."""

    RANK_DIED = "rank_died"
    RANK_RAISED = "rank_raised"
    RANK_STOPPED = "rank_stopped"
    RANK_NOT_ENTERED = "rank_not_entered"
    RANK_NEVER_JOINED = "rank_never_joined"
    RANK_SLOW = "rank_slow"
    DESYNC = "desync"
    DEADLOCK = "deadlock"
    NUMERIC_FIRST_RANK = "numeric_first_rank"
    NUMERIC_ALL = "numeric_all"
    SLOW_TOGETHER = "slow_together"
    #: Reserved, and said by nobody: pauses that wander from rank to rank name no rank, and are silence.
    WANDERING = "wandering"
    PLANNED_STOP = "planned_stop"
    #: Telemetry incidents: whichrank itself cannot see.
    INPUT_SILENT = "input_silent"
    AGENT_SILENT = "agent_silent"
    #: A node of the job is gone with all its ranks.
    NODE_LOST = "node_lost"
    #: Every member is in a collective, and it does not end: the network, a device, nobody can tell whose.
    COLLECTIVE_STALLED = "collective_stalled"
    #: Of several jobs, or of several attempts of one (docs/shared-causes.md).
    APPLICATION_REPEATS = "application_repeats"
    LEMON_NODE = "lemon_node"
    SILENT_CORRUPTION = "silent_corruption"
    SWITCH_FAULT = "switch_fault"
    LINK_CONTENTION = "link_contention"
    FABRIC_STALL = "fabric_stall"
    POWER_COOLING = "power_cooling"
    STORAGE_OVERLOAD = "storage_overload"
    STORAGE_FULL = "storage_full"
    SERVICE_OUTAGE = "service_outage"
    ROLLOUT_FAULT = "rollout_fault"
    PREEMPTION_CASCADE = "preemption_cascade"
    PLANNED_MAINTENANCE = "planned_maintenance"
    TELEMETRY_FAULT = "telemetry_fault"
    #: Jobs share it for certain, but which of several causes it is does not follow from the evidence.
    SHARED_CAUSE = "shared_cause"
    #: A checkpoint that was begun was not written: it failed; or it takes far longer than those before.
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT_UNFINISHED = "checkpoint_unfinished"
    #: A save before the end was asked for, and not all ranks made it.
    EMERGENCY_SAVE_MISSED = "emergency_save_missed"


class Scope(str, Enum):
    RANK = "rank"
    GPU = "gpu"
    NODE = "node"
    LINK = "link"
    SWITCH = "switch"
    STORAGE = "storage"
    SERVICE = "service"
    JOB = "job"
    CLUSTER = "cluster"
    APPLICATION = "application"


class Severity(str, Enum):
    PAGE = "page"
    TICKET = "ticket"
    INFO = "info"


class IncidentState(str, Enum):
    OPEN = "open"
    RESOLVED = "resolved"
    MERGED = "merged"


class Change(str, Enum):
    OPENED = "opened"
    UPDATED = "updated"
    RESOLVED = "resolved"
    MERGED = "merged"
    REOPENED = "reopened"


class CausalRole(str, Enum):
    """Place of an event in a crash: only initiating events name a suspect."""

    INITIATING = "initiating"
    CASCADE = "cascade"
    TEARDOWN = "teardown"


class Action(str, Enum):
    """What advice may say that is to be done, and what ``whichrank respond`` may do."""

    RETRY = "retry"
    RESTART = "restart"
    RESTART_WITHOUT_NODE = "restart_without_node"
    DRAIN_AFTER_JOB = "drain_after_job"
    CHECKPOINT_NOW = "checkpoint_now"
    REPLACE_LINK = "replace_link"
    ROLL_BACK = "roll_back"
    FIX_CODE = "fix_code"
    THROTTLE_TENANT = "throttle_tenant"
    RAISE_QUOTA = "raise_quota"
    WAIT = "wait"
    ASK_A_HUMAN = "ask_a_human"


class EventName(str, Enum):
    """``event_name`` of the OTLP log records whichrank writes."""

    BLOCK_COLLECTIVES = "whichrank.collectives"
    BLOCK_STEPS = "whichrank.steps"
    BLOCK_STEP_GROUPS = "whichrank.step_groups"
    BLOCK_DEVICE_STEPS = "whichrank.device_steps"
    BLOCK_PROGRESS = "whichrank.progress"
    BLOCK_GROUP_PROGRESS = "whichrank.group_progress"
    JOB_STARTED = "whichrank.job.started"
    JOB_SIGNALLED = "whichrank.job.signalled"
    JOB_FINISHED = "whichrank.job.finished"
    GROUP_DEFINED = "whichrank.group.defined"
    RANK_STARTED = "whichrank.rank.started"
    RANK_JOINING = "whichrank.rank.joining"
    RANK_EXCEPTION = "whichrank.rank.exception"
    RANK_EXIT = "whichrank.rank.exit"
    RANK_STOPPED = "whichrank.rank.stopped"
    RANK_CONTINUED = "whichrank.rank.continued"
    RANK_STALE = "whichrank.rank.stale"
    RANK_STACK = "whichrank.rank.stack"
    RANK_CALLS = "whichrank.rank.calls"
    RANK_BAD_LOSS = "whichrank.rank.bad_loss"
    RANK_BAD_INPUT = "whichrank.rank.bad_input"
    RANK_LEVEL = "whichrank.rank.level"
    RANK_CHECKPOINT = "whichrank.rank.checkpoint"
    CHECKPOINT_STATE = "whichrank.checkpoint.state"
    CHECKPOINT_EMERGENCY = "whichrank.checkpoint.emergency"
    AGENT_HEALTH = "whichrank.agent.health"
    AGENT_STOPPED = "whichrank.agent.stopped"
    FINDING = "whichrank.finding"
    EVIDENCE_REQUEST = "whichrank.evidence.request"
    TICK = "whichrank.tick"
    INPUT_SILENT = "whichrank.input_silent"
    INCIDENT = "whichrank.incident"
    LAUNCH_MET = "whichrank.launch.met"
    PEER_CONNECTED = "whichrank.peer.connected"
    PEER_CLOCK = "whichrank.peer.clock"
    PEER_LOST = "whichrank.peer.lost"
    EVIDENCE = "whichrank.evidence"
    LAUNCH_ENDED = "whichrank.launch.ended"
    RANK_FLIGHT_RECORDER = "whichrank.rank.flight_recorder"
    NCCL_RAS = "whichrank.nccl_ras"
    KERNEL_EVENT = "whichrank.kernel.event"
    DEVICE_EVENT = "whichrank.device.event"
    RANK_DEVICE = "whichrank.rank.device"
    RANK_PROCESS = "whichrank.rank.process"
    JOB_LOG = "whichrank.job_log"
    SCHEDULER = "whichrank.scheduler"
    CHANGE = "whichrank.change"
    NODE_TOPOLOGY = "whichrank.node.topology"
    PROBE_LATE = "whichrank.probe.late"
    NODE_CONDITION = "whichrank.node.condition"
    RESPONSE = "whichrank.response"  # of whichrank respond; its name goes on with the outcome
