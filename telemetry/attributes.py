"""Every attribute, metric and event name that whichrank writes, in one place.

OpenTelemetry semantic conventions where a name exists, ``whichrank.*`` otherwise (a test compares the former with
the published constants). Records keep short names (``pid``); the wire carries full ones (``process.pid``):
``wire_name`` and ``short_name`` translate. Never a step, sequence number or trace id in a metric's attributes.
Standard library only.
"""

from __future__ import annotations

# --- resource: who speaks (Identity) --------------------------------------------------------------------------------
SERVICE_NAME = "service.name"
SERVICE_INSTANCE_ID = "service.instance.id"
HOST_NAME = "host.name"
CLUSTER_ID = "whichrank.cluster.id"
RUN_ID = "whichrank.run.id"
JOB_ID = "whichrank.job.id"
JOB_NAME = "whichrank.job.name"
#: A uid, or namespace/NAME: by the kernel, not by what the job says.
JOB_OWNER = "whichrank.job.owner"
JOB_ATTEMPT = "whichrank.job.attempt"
WORLD = "whichrank.world"
NODE_ID = "whichrank.node.id"
RANK = "whichrank.rank"
#: Those of WHO_NAMES in one text, a line each: on packed flushes, where all names would be a fourth.
WHO = "whichrank.who"
#: Is appended to alone.
WHO_NAMES = (CLUSTER_ID, RUN_ID, JOB_ID, JOB_OWNER, JOB_ATTEMPT, WORLD, NODE_ID)

SCOPE_NAME = "whichrank"
#: On the scope of records that lie on ``whichrank.blocks`` too and are here for people's back ends only.
COPY = "whichrank.copy"

# --- blocks ---------------------------------------------------------------------------------------------------------
BLOCK_SCHEMA = "whichrank.block.schema"
BLOCK_COUNT = "whichrank.block.count"
BLOCK_DTYPE = "whichrank.block.dtype"
BLOCK_GROUPS = "whichrank.block.groups"
BLOCK_CLOCK_OFFSET = "whichrank.block.clock_offset_ns"

# --- events, findings, incidents ------------------------------------------------------------------------------------
MONOTONIC_NS = "whichrank.monotonic_ns"
FINDING_KEY = "whichrank.finding.key"
FINDING_CLEARED = "whichrank.finding.cleared"
INCIDENT_ID = "whichrank.incident.id"
INCIDENT_REVISION = "whichrank.incident.revision"
INCIDENT_STATE = "whichrank.incident.state"
INCIDENT_SEVERITY = "whichrank.incident.severity"
INCIDENT_BUCKET = "whichrank.incident.bucket"
INCIDENT_KIND = "whichrank.incident.kind"
INCIDENT_SCOPE = "whichrank.incident.scope"
INCIDENT_CONFIDENCE = "whichrank.incident.confidence"
#: The whole document as JSON, for programs that read events.
INCIDENT_DOCUMENT = "whichrank.incident.document"
#: Of events of ``whichrank respond``.
RESPONSE_ACTION = "whichrank.response.action"
RESPONSE_HOOK = "whichrank.response.hook"
RESPONSE_OPERATION = "whichrank.response.operation"
RESPONSE_TARGET = "whichrank.response.target"
RESPONSE_WHY = "whichrank.response.why"
RESPONSE_DETAIL = "whichrank.response.detail"
RESPONSE_MODE = "whichrank.response.mode"
SUSPECT_RANK = "whichrank.incident.suspect.rank"
SUSPECT_NODE = "whichrank.incident.suspect.node"
SUSPECT_GPU = "whichrank.incident.suspect.gpu"
DLQ_REASON = "whichrank.dlq.reason"
DLQ_TOPIC = "whichrank.dlq.topic"
DLQ_PARTITION = "whichrank.dlq.partition"
DLQ_OFFSET = "whichrank.dlq.offset"
DLQ_STAMP_NS = "whichrank.dlq.stamp_ns"
DLQ_TRACEBACK = "whichrank.dlq.traceback"  # of the operator that failed on it
DLQ_BYTES = "whichrank.dlq.bytes"  # of the whole, where only its beginning is kept

# --- steps and phases -----------------------------------------------------------------------------------------------
STEP = "whichrank.step"
PHASE = "whichrank.step.phase"
LOCAL_RANK = "whichrank.local_rank"
WORLD_SIZE = "whichrank.world_size"

#: Numbers of a step span. The seconds spent in a phase: STEP_SECONDS and the phase's word behind it.
STEP_SECONDS = "whichrank.step.seconds."
STEP_COLLECTIVES = "whichrank.step.collectives"
STEP_COLLECTIVE_SECONDS = "whichrank.step.collective_seconds"
STEP_LOSS = "whichrank.step.loss"
STEP_GRAD_NORM = "whichrank.step.grad_norm"
STEP_SKIPPED = "whichrank.step.skipped"

# --- collectives ----------------------------------------------------------------------------------------------------
GROUP_NAME = "whichrank.pg.name"
GROUP_UID = "whichrank.pg.uid"
GROUP_SIZE = "whichrank.pg.size"
COLLECTIVE_OP = "whichrank.collective.op"
COLLECTIVE_SEQ = "whichrank.collective.seq"
COLLECTIVE_BYTES = "whichrank.collective.bytes"
COLLECTIVE_DTYPE = "whichrank.collective.dtype"
COLLECTIVE_STATE = "whichrank.collective.state"
#: Root or peer within the group.
COLLECTIVE_PEER = "whichrank.collective.peer"
#: The end was seen by polling: it is an upper bound.
COLLECTIVE_POLLED = "whichrank.collective.polled"

# --- errors and processes -------------------------------------------------------------------------------------------
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
CODE_FILE_PATH = "code.file.path"
CODE_LINE_NUMBER = "code.line.number"
CODE_FUNCTION_NAME = "code.function.name"
PROCESS_PID = "process.pid"
PROCESS_COMMAND_LINE = "process.command_line"
PROCESS_EXIT_CODE = "process.exit.code"
PROCESS_RUNTIME_VERSION = "process.runtime.version"
METRIC_PROCESS_CPU_TIME = "process.cpu.time"

#: Names above that must exist in the OpenTelemetry semantic conventions.
CONVENTIONAL = (
    SERVICE_NAME,
    SERVICE_INSTANCE_ID,
    HOST_NAME,
    EXCEPTION_TYPE,
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    CODE_FILE_PATH,
    CODE_LINE_NUMBER,
    CODE_FUNCTION_NAME,
    PROCESS_PID,
    PROCESS_COMMAND_LINE,
    PROCESS_EXIT_CODE,
    PROCESS_RUNTIME_VERSION,
    METRIC_PROCESS_CPU_TIME,
)

# --- metrics: name -> unit ------------------------------------------------------------------------------------------
METRIC_STEP_DURATION = "whichrank.step.duration"
METRIC_PHASE_DURATION = "whichrank.step.phase.duration"
METRIC_COLLECTIVE_DURATION = "whichrank.collective.duration"
METRIC_COLLECTIVE_OPEN_AGE = "whichrank.collective.open.age"
METRIC_RANK_STEP = "whichrank.rank.step"
METRIC_RANK_PACE = "whichrank.rank.pace"
METRIC_RANK_WAIT = "whichrank.rank.wait"
METRIC_HEARTBEAT_AGE = "whichrank.heartbeat.age"
METRIC_INCIDENT_ACTIVE = "whichrank.incident.active"
#: What jobs' seconds were spent on, by bucket; wall time, and the same times GPUs.
METRIC_GOODPUT_TIME = "whichrank.goodput.time"
METRIC_GOODPUT_GPU_TIME = "whichrank.goodput.gpu.time"
GOODPUT_BUCKET = "whichrank.goodput.bucket"
#: An agent of itself. Drops have a reason.
METRIC_AGENT_RANKS = "whichrank.agent.ranks"
METRIC_AGENT_EVENTS_READ = "whichrank.agent.events.read"
METRIC_AGENT_EVENTS_LOST = "whichrank.agent.events.lost"
METRIC_AGENT_SENT = "whichrank.agent.sent"
METRIC_AGENT_SPOOL = "whichrank.agent.spool"
METRIC_AGENT_DROPS = "whichrank.agent.drops"
DROP_REASON = "whichrank.drop.reason"
#: The processors of themselves.
METRIC_PIPELINE_LAG = "whichrank.pipeline.lag"
METRIC_PIPELINE_RECORDS_IN = "whichrank.pipeline.records.in"
METRIC_PIPELINE_RECORDS_OUT = "whichrank.pipeline.records.out"
METRIC_PIPELINE_DECODE_ERRORS = "whichrank.pipeline.decode.errors"
METRIC_PIPELINE_DEAD_LETTERS = "whichrank.pipeline.dead_letters"
METRIC_PIPELINE_STATE_ROWS = "whichrank.pipeline.state.rows"
METRIC_PIPELINE_TIMERS_LATE = "whichrank.pipeline.timers.late"
METRIC_PIPELINE_DROPS = "whichrank.pipeline.drops"
METRIC_UNITS = {
    METRIC_STEP_DURATION: "s",
    METRIC_PHASE_DURATION: "s",
    METRIC_COLLECTIVE_DURATION: "s",
    METRIC_COLLECTIVE_OPEN_AGE: "s",
    METRIC_RANK_STEP: "{step}",
    METRIC_RANK_PACE: "{step}/s",
    METRIC_RANK_WAIT: "s",
    METRIC_HEARTBEAT_AGE: "s",
    METRIC_INCIDENT_ACTIVE: "{incident}",
    METRIC_GOODPUT_TIME: "s",
    METRIC_GOODPUT_GPU_TIME: "s",
    METRIC_AGENT_RANKS: "{rank}",
    METRIC_AGENT_EVENTS_READ: "{event}",
    METRIC_AGENT_EVENTS_LOST: "{event}",
    METRIC_AGENT_SENT: "By",
    METRIC_AGENT_SPOOL: "By",
    METRIC_AGENT_DROPS: "{record}",
    METRIC_PIPELINE_LAG: "s",
    METRIC_PIPELINE_RECORDS_IN: "{record}",
    METRIC_PIPELINE_RECORDS_OUT: "{record}",
    METRIC_PIPELINE_DECODE_ERRORS: "{record}",
    METRIC_PIPELINE_DEAD_LETTERS: "{record}",
    METRIC_PIPELINE_STATE_ROWS: "{row}",
    METRIC_PIPELINE_TIMERS_LATE: "s",
    METRIC_PIPELINE_DROPS: "{record}",
    METRIC_PROCESS_CPU_TIME: "s",
}

# --- short names of event attributes --------------------------------------------------------------------------------
_PREFIX = "whichrank."
#: Escape for a short name whose plain wire name already means something else.
_ESCAPE = "whichrank.attribute."

_WIRE_BY_SHORT = {
    "type": EXCEPTION_TYPE,
    "message": EXCEPTION_MESSAGE,
    "stack": EXCEPTION_STACKTRACE,
    "file": CODE_FILE_PATH,
    "line": CODE_LINE_NUMBER,
    "function": CODE_FUNCTION_NAME,
    "pid": PROCESS_PID,
    "command": PROCESS_COMMAND_LINE,
    "job_name": JOB_NAME,
    "exit_code": PROCESS_EXIT_CODE,
    "python": PROCESS_RUNTIME_VERSION,
    "host": HOST_NAME,
    "step": STEP,
    "phase": PHASE,
    "local_rank": LOCAL_RANK,
    "world_size": WORLD_SIZE,
}
_SHORT_BY_WIRE = {wire: short for short, wire in _WIRE_BY_SHORT.items()}
#: Wire names that a record's own fields use, so that no short name may fall on them.
_RESERVED = frozenset({MONOTONIC_NS, *_SHORT_BY_WIRE})

#: Type of each event attribute that operators rely on; a value of another type is left out as if it were absent.
EVENT_ATTRIBUTE_TYPES: dict[str, type | tuple[type, ...]] = {
    "action": str,
    "age_ns": int,
    "age_s": (float, int),
    "answered": bool,
    "backend": str,
    "before_start": bool,
    "certainty": str,
    "checkpoint": str,
    "checks_inputs": bool,
    "class": str,
    "code": (str, int),
    "command": str,
    "communication": bool,
    "component": str,
    "core": bool,
    "desc": str,
    "device": str,
    "device_kind": str,
    "domain": str,
    "driver": str,
    "event": str,
    "exception": bool,
    "exit_code": int,
    "exit_state": int,
    "file": str,
    "fstype": str,
    "function": str,
    "gpu_uuid": str,
    "gpus": int,
    "heartbeat_age_ns": int,
    "hook_state": int,
    "host": str,
    "id": str,
    "in_main": bool,
    "is_default": bool,
    "job_name": str,
    "joined": bool,
    "launcher_pid": int,
    "left_behind": bool,
    "level": int,
    "line": int,
    "local_rank": int,
    "message": str,
    "method": str,
    "mount": str,
    "node": str,
    "nodes": int,
    "offset_ns": int,
    "operation": str,
    "origin": str,
    "owner_uid": int,
    "pci_bus": str,
    "peer": int,
    "phase": (int, str),
    "pid": int,
    "port": str,
    "process": str,
    "process_state": int,
    "python": str,
    "rank": int,
    "ranks": str,
    "read": bool,
    "request_id": str,
    "restart_count": int,
    "role": str,
    "script": str,
    "sender_pid": int,
    "server": str,
    "severity": str,
    "signal": int,
    "silent_ns": int,
    "size": int,
    "stack": str,
    "state": str,
    "step": int,
    "text": str,
    "timeout_s": (float, int),
    "token": str,
    "torch": str,
    "type": str,
    "uid": str,
    "warning": str,
    "wchan": str,
    "what": str,
    "why": str,
    "world_size": int,
    "writer": str,
}


#: Bounds of attributes by which operators size what they keep; a value outside is left out too.
_MAX_RANKS = 1 << 22
_ANY_NUMBER = (-(1 << 62), 1 << 62)  # sums of two stay within 64 bits
EVENT_ATTRIBUTE_BOUNDS: dict[str, tuple[int, int]] = {
    "rank": (0, _MAX_RANKS),
    "peer": (0, _MAX_RANKS),
    "local_rank": (0, _MAX_RANKS),
    "world_size": (0, _MAX_RANKS),
    "size": (0, _MAX_RANKS),
    "nodes": (0, _MAX_RANKS),
    "pid": (0, 1 << 32),
    "launcher_pid": (0, 1 << 32),
}


def wire_name(short: str) -> str:
    """Full name on the wire for the short name of a record's attribute."""
    known = _WIRE_BY_SHORT.get(short)
    if known is not None:
        return known
    plain = _PREFIX + short
    if plain in _RESERVED or plain.startswith(_ESCAPE):
        return _ESCAPE + short
    return plain


def short_name(wire: str) -> str:
    """The short name of an attribute on the wire, the inverse of ``wire_name``; a foreign name stays as it is."""
    known = _SHORT_BY_WIRE.get(wire)
    if known is not None:
        return known
    if wire.startswith(_ESCAPE):
        return wire[len(_ESCAPE) :]
    if wire.startswith(_PREFIX):
        return wire[len(_PREFIX) :]
    return wire


def usable_name(wire: str, value: object) -> str | None:
    """The short name of an event's attribute on the wire; None where ``is_usable`` refuses the value, which is as
    ``otlp.value_of`` gives it.
    """
    known = _CHECKED.get(wire)
    if known is None:
        short = short_name(wire)
        return short if is_usable(short, value) else None
    short, types, least, most = known
    if type(value) not in types or (type(value) is int and not least <= value <= most):
        return None
    return short


def is_usable(short: str, value: object) -> bool:
    """Whether ``value`` is of the type, and within the bounds, that operators rely on for this event attribute."""
    expected = EVENT_ATTRIBUTE_TYPES.get(short)
    if expected is None:
        return True
    if isinstance(value, bool):  # a bool is an int to isinstance
        return expected is bool
    if not isinstance(value, expected):
        return False
    bounds = EVENT_ATTRIBUTE_BOUNDS.get(short, _ANY_NUMBER)
    return not isinstance(value, int) or bounds[0] <= value <= bounds[1]


#: By name on the wire, attributes that operators rely on: short name, types, and bounds of whole numbers.
_CHECKED = {
    wire_name(short): (
        short,
        frozenset(types if isinstance(types, tuple) else (types,)),
        *EVENT_ATTRIBUTE_BOUNDS.get(short, _ANY_NUMBER),
    )
    for short, types in EVENT_ATTRIBUTE_TYPES.items()
}
