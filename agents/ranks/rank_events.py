"""What the events about a rank say: attributes of RANK_STARTED, RANK_EXCEPTION, RANK_EXIT, RANK_STACK. Pure.

``records.Event`` lists the attributes; here is where each comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...telemetry import ring_layout as L
from ...telemetry.printable import printable
from ...telemetry.vocabulary import EventKind, ExitState, Phase
from ..base.user_frames import UserFrame, format_stack, innermost_user_frame
from ..privacy.privacy_options import STACK_ATTRIBUTES
from ..processes.job_id_proof import who_says_id
from ..processes.processes import ExitStatus
from ..rings.crash_area import FatalSignal, RingException, RingStack
from ..rings.ring_directory import identity_int
from .cascade_errors import is_communication_error
from .drain import Drained
from .inferred_steps import BadLoss
from .watched_rank import WatchedRank

#: Words of a ring's identity that are passed on with RANK_STARTED.
_STARTED_WORDS = ("host", "torch", "python", "backend", "script")

#: Level changes told of one drain; a rank that flips more often is broken, and the newest state is in its progress.
_MAX_LEVEL_EVENTS = 64
#: The same of checkpoints: files of one that is written in parts.
_MAX_CHECKPOINT_EVENTS = 64
#: torch's own for process groups of most backends.
DEFAULT_TIMEOUT_S = 1800.0

Attributes = dict[str, Any]


def where_attributes(rank: WatchedRank) -> Attributes:
    """Step, phase and pid at this look."""
    step, phase = rank.step_and_phase()
    return {"step": step, "phase": Phase(phase).name.lower(), "pid": rank.pid}


def frame_attributes(frames: tuple[UserFrame, ...]) -> Attributes:
    """File, line and function of the innermost frame of user code; nothing if there is none."""
    frame = innermost_user_frame(frames)
    return {} if frame is None else {"file": frame.file, "line": frame.line, "function": frame.function}


def started_attributes(rank: WatchedRank) -> Attributes:
    """Attributes of RANK_STARTED: process, place among the ranks, who launched it, what its ring was laid out for."""
    header = rank.ring.header
    claims = header.identity
    attributes: Attributes = {
        "pid": rank.pid or header.pid,
        "local_rank": header.local_rank,
        "world_size": header.world_size,
        "writer": "c" if header.writer == L.WRITER_C else "python",
        "launcher_pid": identity_int(claims, "launcher_pid"),
        "restart_count": identity_int(claims, "restart_count"),
        "owner_uid": rank.ring.uid,
    }
    words = {name: value for name, value in claims.items() if isinstance(value, str)}
    attributes["id_by"] = who_says_id(words, rank.pid).value
    if claims.get("checks_inputs") is True:
        attributes["checks_inputs"] = True
    for word in _STARTED_WORDS:
        if isinstance(claims.get(word), str):
            attributes[word] = printable(L.cut_text(claims[word], 256))
    return attributes


def without_stack(attributes: Attributes) -> Attributes:
    """The attributes without those that were read off a stack, for where stacks are withheld."""
    return {name: value for name, value in attributes.items() if name not in STACK_ATTRIBUTES}


def exception_attributes(rank: WatchedRank, found: RingException) -> Attributes:
    """Attributes of RANK_EXCEPTION: type, message, stack, and whether it only says that a peer went away."""
    attributes: Attributes = {
        **where_attributes(rank),
        "type": found.type_name,
        "message": found.message,
        "stack": format_stack(found.frames),
        "communication": is_communication_error(found.type_name, found.message),
        "in_main": found.in_main,
        **frame_attributes(found.frames),
    }
    if found.step >= 0:
        attributes["step"] = found.step
    return attributes


def last_stack_attributes(rank: WatchedRank, stack: RingStack) -> Attributes:
    """Attributes of a RANK_STACK for the stack that the dying rank left in its ring."""
    return {
        **where_attributes(rank),
        "method": "signal",
        "stack": format_stack(stack.frames),
        "why": "ended",
        "stopped": False,
        **frame_attributes(stack.frames),
    }


def level_changes(
    drained: Drained, rank_of_slot: Mapping[int, WatchedRank]
) -> Iterator[tuple[WatchedRank, int, Attributes]]:
    """(rank, monotonic ns, attributes of a RANK_LEVEL) wherever a rank's level or hooks changed in these events.

    Notes each in ``told.level``, so that the same is given once; of many events the last ``_MAX_LEVEL_EVENTS``.
    """
    kind = drained.events["kind"]
    rare = np.flatnonzero((kind == int(EventKind.LEVEL)) | (kind == int(EventKind.HOOK_OFF)))
    for place in rare[-_MAX_LEVEL_EVENTS:]:
        event, rank = drained.events[place], rank_of_slot[int(drained.ring[place])]
        if event["kind"] == int(EventKind.LEVEL):
            level, hook_state = int(event["value"]) & 0xFF, int(event["extra"]) & 0xFFFFFFFF
        else:
            level = rank.rank_row.level & 0xFF if rank.rank_row is not None else 0
            hook_state = int(event["value"]) & 0xFFFFFFFF
        if rank.told.level == (level, hook_state):
            continue
        rank.told.level = (level, hook_state)
        attributes: Attributes = {"level": level, "hook_state": hook_state}
        if rank.notes:
            attributes["note"] = rank.notes[-1]
        yield rank, int(event["time_ns"]), attributes


def checkpoints_named(
    drained: Drained, rank_of_slot: Mapping[int, WatchedRank]
) -> Iterator[tuple[WatchedRank, int, Attributes]]:
    """(rank, monotonic ns, attributes of a RANK_CHECKPOINT) for each checkpoint named in these events.

    Of a node only local rank 0 speaks: where all write parts, all name one place.
    """
    places = np.flatnonzero(drained.events["kind"] == int(EventKind.CHECKPOINT))
    for place in places[-_MAX_CHECKPOINT_EVENTS:]:
        event, rank = drained.events[place], rank_of_slot[int(drained.ring[place])]
        if rank.ring.header.local_rank == 0:
            attributes: Attributes = {
                "checkpoint": f"{int(event['value']) & 0xFFFF_FFFF_FFFF_FFFF:016x}",
                "read": int(event["extra"]) == L.CHECKPOINT_READ,
                "step": int(event["step"]),
            }
            yield rank, int(event["time_ns"]), attributes


def bad_loss_attributes(bad: BadLoss) -> Attributes:
    """Attributes of a RANK_BAD_LOSS: a loss that is not finite, in a loop without steps, and after how many calls."""
    return {
        **where_attributes(bad.rank),
        "value": "NaN" if bad.is_nan else "infinity",
        "calls": bad.calls,
    }


def bad_input_attributes(payload: Mapping[str, Any], uid_of_row: Mapping[int, str]) -> Attributes | None:
    """Attributes of a RANK_BAD_INPUT from the JSON of a ring's definition. uid_of_row: ids of the rank's groups.

    None: it cannot be read, or is of no group that is known.
    """
    row, seq, step, before = (payload.get(name) for name in ("group", "seq", "step", "before"))
    if not (isinstance(row, int) and isinstance(seq, int) and isinstance(step, int) and isinstance(before, dict)):
        return None
    if row not in uid_of_row:
        return None
    peer = payload.get("peer")
    known = {
        uid_of_row[int(each)]: newest
        for each, newest in before.items()
        if isinstance(newest, int) and each.isdecimal() and int(each) in uid_of_row
    }
    return {
        "group": uid_of_row[row],
        "seq": seq,
        "point_to_point": payload.get("p2p") is True,
        "peer": peer if isinstance(peer, int) else -1,
        "step": step,
        "groups_before": tuple(known),
        "seqs_before": tuple(known.values()),
    }


def joining_attributes(rank: WatchedRank, payload: Mapping[str, Any], now_ns: int) -> tuple[int, Attributes]:
    """Monotonic ns and attributes of a RANK_JOINING from the JSON of a ring's definition.

    A time-out that cannot be read counts as torch's default, a time as ``now_ns``.
    """
    time_ns, timeout = payload.get("time_ns"), payload.get("timeout_s")
    if not isinstance(timeout, int | float) or not math.isfinite(timeout) or timeout <= 0:
        timeout = DEFAULT_TIMEOUT_S
    attributes = {
        "joined": payload.get("joined") is True,
        "timeout_s": float(timeout),
        "pid": rank.pid,
    }
    return (min(time_ns, now_ns) if isinstance(time_ns, int) and time_ns > 0 else now_ns), attributes


def exit_state_of(rank: WatchedRank) -> ExitState:
    """How far the rank's own end got by its last row; RUNNING where no row or no known state says more."""
    row = rank.rank_row
    return ExitState(row.exit_state) if row is not None and row.exit_state <= max(ExitState) else ExitState.RUNNING


def exit_attributes(rank: WatchedRank, status: ExitStatus, told: FatalSignal | None) -> Attributes:
    """Attributes of a RANK_EXIT: the kernel's word first, the dying rank's own where the kernel says nothing.

    told: the signal that the rank wrote down itself, None for none.
    """
    attributes: Attributes = {
        **where_attributes(rank),
        "signal": status.signal or (told.number if told is not None and status.exit_code is None else 0),
        "exit_state": int(exit_state_of(rank)),
        "exception": rank.told.had_exception,
        "core": status.core,
    }
    if status.exit_code is not None:
        attributes["exit_code"] = status.exit_code
    if told is not None:
        attributes["sender_pid"] = told.sender_pid
    if rank.left_behind:
        attributes["left_behind"] = True
    return attributes
