"""Record types that travel on the bus and through operators. Immutable; no behaviour.

``Record`` is what an operator receives and emits. Decoding and encoding live in ``otlp`` and ``block``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .vocabulary import EventName

if TYPE_CHECKING:  # collectors' processes need records, and no arrays: numpy is 10 MB in each of them
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a record speaks of (``identity`` resolves it). Strings are empty and numbers -1 where unknown.

    attempt: the launch (``identity.launch_id``) in what agents send, the attempt's first launch in what is concluded.
    owner: whose job it is, as the kernel or kubelet says and no process of the job can: a uid in digits, or
    "namespace/NAME"; "": of an agent that does not say.
    """

    cluster: str = ""
    run: str = ""
    job: str = ""
    attempt: str = ""
    world: str = ""
    node: str = ""
    rank: int = -1
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One process group as the agent formed it. ``uid`` = hash(name, ranks, ordinal), unique in one attempt."""

    uid: str
    name: str
    desc: str = ""
    ranks: str = ""  # ranges of global ranks, "0-3,7"
    size: int = 0
    backend: str = ""
    timeout_s: float = 0.0
    is_default: bool = False

    @property
    def label(self) -> str:
        """What people are told everywhere: "world", else what torch was told it is for ("mesh_dp"), else its name."""
        if self.is_default:
            return "world"
        return self.name if self.desc in ("", "undefined") else self.desc


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A table of high-rate records of one node's ranks in one attempt.

    rows: structured array with the dtype of ``tables.TABLES[name]``.
    groups: what the ``group`` column indexes into.
    clock_offset_ns: add to a monotonic time of the rows to get Unix time.
    """

    name: EventName
    identity: Identity
    rows: np.ndarray
    groups: tuple[Group, ...] = ()
    clock_offset_ns: int = 0
    time_ns: int = 0  # Unix time at which the agent closed the block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flush:
    """All blocks of one flush of a large job's node, as they came in one record (``packed_flush``).

    tables: of each block its name, and its rows as bytes of ``tables.TABLES[name]``. The rest is as of a Block.
    """

    identity: Identity
    tables: tuple[tuple[EventName, bytes], ...]
    groups: tuple[Group, ...] = ()
    clock_offset_ns: int = 0
    time_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A single thing that happened. ``attributes`` holds only str, int, float, bool and tuples of those.

    Attributes by name (all optional unless marked *):
      JOB_STARTED      command, job_name, world_size, pid, nodes (instances of whichrank that are expected, absent: 1),
                       supervised (1: this node's whichrank ends and starts the command again when the judge says so),
                       restarted (1: it has; nothing of the start before is left, and its machines were held meanwhile)
      JOB_SIGNALLED    signal* (number), origin ("user" | "scheduler"): someone asked the job to stop
      JOB_FINISHED     exit_code*, signal (of the launcher, 0 none)
      GROUP_DEFINED    the fields of Group
      LAUNCH_MET       token* (of the c10d store in which this launch's ranks met: other tokens, other attempts)
      LAUNCH_ENDED     (none: all its ranks had ended, and its launcher has now; nothing of it will start again)
      RANK_STARTED     pid*, local_rank, world_size, host, torch, python, backend ("hooks"|"backend_select"|"status"),
                       writer ("c"|"python"), script, launcher_pid, restart_count, owner_uid (of the ring's file),
                       id_by (``trust.IdBy``: who says that the job has this id; absent: an agent that did not ask),
                       checks_inputs (true: it looks for NaN in the inputs of its operations),
                       job_name (from an agent that was told, where no JOB_STARTED comes)
      RANK_JOINING     joined* (bool: false = waits for the others in init_process_group), timeout_s, pid
      RANK_EXCEPTION   type*, message*, stack (frames "file\\tline\\tfunction\\n"), file, line, function, step, phase,
                       communication (bool: text matches a victim's message), in_main (raised in the main thread)
      RANK_EXIT        exit_code (int, absent unknown), signal (int, 0 none), exit_state (ExitState int), step, phase,
                       exception (bool: an exception record came before), sender_pid (who sent the signal), core,
                       left_behind (true: nobody watched it end; the time is its last sign of life)
      RANK_STOPPED     phase, step   (process state T);  RANK_CONTINUED
      RANK_STALE       heartbeat_age_ns*, process_state
      RANK_STACK       method ("py-spy"|"signal"|"ring"), stack (as above, innermost last), file, line, function
                       (innermost frame of user code), phase, step, request_id,
                       why ("not entered"|"waits"|"request"), stopped (bool: process state T)
      RANK_CALLS       group* (uid), point_to_point*, seqs* (numbers of its newest operations of this sort), sites* (the
                       innermost line of user code that issued each: frames as above), request_id
      RANK_FLIGHT_RECORDER  facts (of its flight recorder's dump, JSON of diagnosis.flight_recorder.dump_facts), problem
                       (why there are none), name (of the file), written_ns (Unix, when it was written)
      RANK_BAD_LOSS    value* ("NaN"|"infinity"), calls* (collectives of the default group that it had issued before),
                       step, phase, pid: the first loss that is not finite, of a loop without steps of its own
      RANK_BAD_INPUT   group* (uid), seq*, point_to_point*, peer (-1 none), step*, pid: the first operation of this step
                       that it fed a NaN into; groups_before*, seqs_before* (of other collectives: the newest of each
                       group that it had issued by then)
      RANK_CHECKPOINT  checkpoint* (which one: hex, of its path), read* (bool; else it was written), step (steps made by
                       the attempt when it was)
      CHECKPOINT_STATE state* ("begun"|"staged"|"durable"|"failed"|"part": a file of it is written|
      "left_out": another rank has none), step* (steps of the
                       attempt that it holds), ranks* (of this node, that came to this state), tier, way (words of
                       ``checkpoint_states``), bytes (of these ranks' parts, 0 not known), seconds (since its begin, the
                       longest), checkpoints (which ones: hex, of begun and part), error (of failed)
      CHECKPOINT_EMERGENCY request* (number, counted by the job's ranks), state* ("asked"|"saved"|"failed"|"missed", of
                       this rank), reason, seconds_left (when asked), why (words of ``emergency_words``), step (of the
                       attempt, that is or should have been saved), seconds (that the save took), missing (ranks
                       that did not answer), error
      RANK_LEVEL       level*, hook_state*, note (the rank's last note: why a hook is off)
      AGENT_HEALTH     counters by name; attempt_words ("LAUNCH WORD" for each launch here: how its attempt is known in
                       traces; only where spans are told)
      AGENT_STOPPED    (none: the node's agent was told to end; ranks of this launch go on unseen)
      EVIDENCE_REQUEST id*, rank*, node, action ("stack"; "calls": those of this group, point_to_point, up to this seq;
                       answered by files: "ring", "history" (its last minutes), "log_tail"; "nccl_ras": ask NCCL's RAS
                       beside that rank)
      NCCL_RAS         status ("answered" | "silent": nobody listens, or no answer in time | "refused"), findings (JSON
                       of diagnosis.ras_facts), problem (one line), request_id, address
      EVIDENCE         a piece of such a file (``evidence_pieces``)
      PEER_CONNECTED   role* ("follower": the identity's node sends its records here; "judge": that node judges from now
                       on), offset_ns (from that node's monotonic clock to the wall clock of this bus)
      PEER_CLOCK       offset_ns*: the same, newer
      PEER_LOST        role*, why* ("left": its command has ended; "closed"; "silent"), silent_ns
    What a node's collectors tell (identity: the node; job and rank only where they are known):
      KERNEL_EVENT     event* (word of diagnosis.kernel_log), code, device_kind, device, severity, domain, component,
                       action, role, process, pid, driver, processor (GPC/TPC), link, registers (of an Xid),
                       text (redacted), before_start (true: older than the agent),
                       trust (``trust.Trust``: who could have written the line; absent: the kernel)
      DEVICE_EVENT     event* ("xid", "lost", "back"), code, device (GPU uuid), pci_bus, device_kind
      RANK_DEVICE      pid*, gpu_uuid, gpu_index, pci_bus, mig, method, certain
      RANK_PROCESS     pid*, state, wchan, age_s
      JOB_LOG          class* (of diagnosis.job_log), role, severity, bucket, scope, action, restart, text (redacted),
                       warning, file, line, function (innermost frame of user code), log (its path), rank, pid (its
                       process, if it runs here), node (another one that the line is of), peer (rank that was waited
                       for), port (of this node), more (statements of this writer that were held back), before_start
                       (true: older than the agent)
      SCHEDULER        what*, and what is known of it; trust (as of KERNEL_EVENT: "user", where only a rank's variables
                       say so)
      CHANGE           what*, old, new, where
      NODE_TOPOLOGY    labels by name (rack, leaf, spine, rail, pdu)
      PROBE_LATE       mount*, operation*, age_s*, fstype, server, answered (true: it has come back), error
      NODE_CONDITION   source* (who judges: "ports"), event (the condition's name), device, device_kind, severity,
                       domain, action, scope, text, age_s (since when), over (true: it is no more), anew (true: the
                       source has begun to look; what it said before holds no more, but for still: NAME/DEVICE of each
                       that goes on), trust (as of KERNEL_EVENT)
    """

    name: EventName
    identity: Identity
    time_ns: int  # Unix time of the thing itself, by its node's clock
    mono_ns: int = 0  # the same on the node's monotonic clock, 0 unknown
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Point:
    """One value of one metric of a node or another entity, at one time. Not to be changed (not frozen, as the others
    are: thousands are made in a second, and each would take three times as long).

    start_ns: of a counter, when it began at 0, as far as its source says so; 0 unknown.
    """

    name: str
    value: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    time_ns: int
    start_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Points of one entity, ours or somebody else's exporter's.

    identity: ``node`` names the entity, whatever it is. resource: what else was said of who speaks, as it came. order:
    the same object in all samples with the same series in the same order, where that is known; their points are then
    ``PointColumns``.
    """

    identity: Identity
    points: Sequence[Point]
    entity: str = "node"  # node, switch, storage, service
    resource: Mapping[str, Any] = field(default_factory=dict)
    order: object | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a job or entity operator concludes; ClusterOperator makes incidents of findings.

    key: stable over revisions of the same conclusion: (kind, first bad place). ``cleared`` ends it.
    body: the incident document's fields that this operator knows (bucket, kind, scope, suspects, victims, coverage,
          first_bad, times {onset, detected, attributed}, evidence, ruled_out, confidence, severity, job).
    """

    identity: Identity
    key: str
    cleared: bool
    time_ns: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One revision of an incident document (docs/incident.md), ready for JSON."""

    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Bytes that could not be read: an error value, so that a bad record never ends a loop."""

    topic: str
    reason: str  # one line: what is wrong and where
    value: bytes


Payload = Block | Flush | Event | Samples | Finding | Incident | Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A payload with its place on the bus. ``stamp_ns`` is the arrival stamp that belongs to the bus."""

    topic: str
    key: str
    stamp_ns: int
    payload: Payload
