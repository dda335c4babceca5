"""Column tables of the high-rate records: what one packed block carries, per kind.

Readers select columns by name: unknown columns are skipped, missing ones read as unknown, so a column may be added
and never renamed. Times are nanoseconds of the node's CLOCK_MONOTONIC; the block's ``clock_offset_ns`` turns them
into Unix time. Within a block ``group`` is an index into the block's own group list (``BlockHead.groups``).
"""

from __future__ import annotations

import numpy as np

from .vocabulary import EventName, Phase

NO_GROUP = 0xFFFF

#: One row per operation of a rank in a group. Sent when complete, and once more while open if it stays open over a
#: flush; the key (rank, group, p2p, seq) makes a repeat an update. ``done_ns`` 0 = open.
#: ``started_ns``: when the device came to it; where the host does it, since when its rank stood in wait(). 0 = unknown.
COLLECTIVES = np.dtype(
    [
        ("rank", "<u4"),
        ("group", "<u2"),
        ("op", "<u1"),
        ("flags", "<u1"),  # EventFlag
        ("dtype", "<u2"),
        ("phase", "<u1"),
        ("spare", "<u1"),
        ("peer", "<i4"),  # root or peer rank within the group, -1 none
        ("seq", "<i8"),
        ("bytes", "<i8"),
        ("step", "<i8"),
        ("enqueued_ns", "<i8"),
        ("started_ns", "<i8"),
        ("done_ns", "<i8"),
    ]
)

#: One row per rank and completed step. ``phase_ns`` is the time spent in each Phase, waiting included.
STEPS = np.dtype(
    [
        ("rank", "<u4"),
        ("flags", "<u4"),  # StepFlag
        ("step", "<i8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("phase_ns", "<i8", (len(Phase),)),
        ("collective_ns", "<i8"),  # sum of enqueue-to-done over completed operations of the step
        ("collectives", "<i4"),
        ("loss", "<f8"),  # meaningful with StepFlag.HAS_LOSS
        ("grad_norm", "<f8"),  # meaningful with StepFlag.HAS_GRAD_NORM
        # For how long the main thread was ready to run and had no CPU, since the last reading; -1 = not read this time.
        ("run_delay_ns", "<i8"),
    ]
)

#: One row per rank, step and group used in it.
STEP_GROUPS = np.dtype(
    [
        ("rank", "<u4"),
        ("group", "<u2"),
        ("spare", "<u2"),
        ("step", "<i8"),
        ("count", "<i4"),
        ("collective_ns", "<i8"),
        ("last_seq", "<i8"),
        ("last_op", "<u1"),
        ("last_bytes", "<i8"),
    ]
)

#: One row per rank, group and step of which not all COLLECTIVES rows are sent, once its calls on devices have ended.
DEVICE_STEPS = np.dtype(
    [
        ("rank", "<u4"),
        ("group", "<u2"),
        ("spare", "<u2"),
        ("calls", "<i4"),  # of devices, without point-to-point ones
        ("step", "<i8"),
        ("stood_ns", "<i8"),  # from their starts to their ends, as far as starts are known
        ("first_end_ns", "<i8"),  # of its calls, when the first was seen to have ended, and the last; 0 = unknown
        ("last_end_ns", "<i8"),
    ]
)

#: One row per rank and second, at once when something changes. Ages are measured by the agent at ``read_ns``.
PROGRESS = np.dtype(
    [
        ("rank", "<u4"),
        ("pid", "<u4"),
        ("step", "<i8"),
        ("phase", "<u1"),
        ("process_state", "<u1"),  # ProcessState
        ("level", "<u1"),
        ("exit_state", "<u1"),
        ("hook_state", "<u4"),
        ("read_ns", "<i8"),
        ("phase_age_ns", "<i8"),
        ("step_age_ns", "<i8"),
        ("heartbeat_age_ns", "<i8"),
        ("cpu_ns", "<i8"),  # CPU time of the process so far, -1 unknown
        ("own_cost_ns", "<i8"),
        ("open", "<i4"),  # operations open over all groups
        # For how long nothing of the process has moved: its code, CPU, I/O, children. -1 = it moves, or may not be
        # looked at; 0 = the agent is of a release that does not look.
        ("still_ns", "<i8"),
        ("in_io", "<u1"),  # 1: it stands still in a read, a write or a wait for a server
    ]
)

#: One row per rank and group, sent with the rank's progress row. -1 = the backend cannot tell.
GROUP_PROGRESS = np.dtype(
    [
        ("rank", "<u4"),
        ("group", "<u2"),
        ("op", "<u1"),  # of the last enqueue
        ("flags", "<u1"),
        ("dtype", "<u2"),
        ("blind", "<u1"),
        ("spare", "<u1"),
        ("peer", "<i4"),
        ("bytes", "<i8"),
        ("enqueued", "<i8"),  # sequence number of the last collective
        ("started", "<i8"),
        ("completed", "<i8"),
        ("p2p_enqueued", "<i8"),
        ("p2p_completed", "<i8"),
        ("open", "<i4"),
        ("open_age_ns", "<i8"),  # age of the oldest open operation, 0 none
        ("moved_age_ns", "<i8"),  # since the last enqueue or completion
    ]
)

TABLES: dict[EventName, np.dtype] = {
    EventName.BLOCK_COLLECTIVES: COLLECTIVES,
    EventName.BLOCK_STEPS: STEPS,
    EventName.BLOCK_STEP_GROUPS: STEP_GROUPS,
    EventName.BLOCK_DEVICE_STEPS: DEVICE_STEPS,
    EventName.BLOCK_PROGRESS: PROGRESS,
    EventName.BLOCK_GROUP_PROGRESS: GROUP_PROGRESS,
}
#: Those whose rows are of groups.
GROUPED_TABLES = frozenset(name for name, dtype in TABLES.items() if "group" in (dtype.names or ()))
