"""PROGRESS and GROUP_PROGRESS rows: where each rank stands, with ages measured here and now.

Pure functions, once a second and at once when something is wrong: how the ranks stand is gathered from WatchedRank,
and the rows are made of that in one pass. A row of a rank whose process is gone is aged by the ring's own last sign of
life, so that it tells how things stood then, not how long it is dead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...telemetry import ring_layout as L
from ...telemetry.tables import GROUP_PROGRESS, PROGRESS
from ...telemetry.vocabulary import HookState, Level
from ..ranks.watched_rank import WatchedRank
from ..rings.progress_page import HeartbeatRow, clamp_i64, parse_heartbeat_row

#: How a rank stands, by its progress page and its process, at ``read_ns``; times are of the node's monotonic clock.
RANK_STANDS = np.dtype(
    [
        ("rank", "<u4"),
        ("pid", "<u4"),
        ("step", "<i8"),
        ("phase", "<u1"),
        ("process_state", "<u1"),
        ("level", "<u1"),
        ("exit_state", "<u1"),
        ("hook_state", "<u4"),
        ("read_ns", "<i8"),
        ("phase_since_ns", "<i8"),
        ("step_since_ns", "<i8"),
        ("heartbeat_since_ns", "<i8"),
        ("cpu_ns", "<i8"),
        ("own_cost_ns", "<i8"),
        ("open", "<i4"),
        ("still_since_ns", "<i8"),
        ("in_io", "<u1"),
    ]
)
#: The same of a rank in a group (``group`` = agent-wide number). told: whether anybody reports the ends of its calls.
GROUP_STANDS = np.dtype(
    [
        ("rank", "<u4"),
        ("group", "<u2"),
        ("op", "<u1"),
        ("flags", "<u1"),
        ("dtype", "<u2"),
        ("blind", "<u1"),
        ("told", "?"),
        ("peer", "<i4"),
        ("bytes", "<i8"),
        ("enqueued", "<i8"),
        ("started", "<i8"),
        ("completed", "<i8"),
        ("p2p_enqueued", "<i8"),
        ("p2p_completed", "<i8"),
        ("open", "<i4"),
        ("open_since_ns", "<i8"),
        ("moved_ns", "<i8"),
        ("read_ns", "<i8"),
    ]
)
_OF_RANKS = [name for name in RANK_STANDS.names or () if name in (PROGRESS.names or ())]
_OF_GROUPS = [name for name in GROUP_STANDS.names or () if name in (GROUP_PROGRESS.names or ())]
_U32 = 0xFFFF_FFFF
_DISABLED = int(HookState.DISABLED)


def _ages(now_ns: NDArray[np.int64], since_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 where it is not known since when."""
    return np.where(since_ns > 0, np.maximum(now_ns - since_ns, 0), 0)


def read_time_ns(rank: WatchedRank, now_ns: int) -> int:
    """The monotonic time of which a rank's rows speak: now, or the last sign of life of a dead writer."""
    return now_ns if rank.alive else min(rank.last_sign_of_life_ns() or now_ns, now_ns)


def progress_rows(ranks: Sequence[WatchedRank], now_ns: int) -> NDArray[np.void]:
    """One row per rank. ``open`` is -1 where completion is not seen."""
    stands: list[tuple[int, ...]] = []
    for rank in ranks:
        row = rank.rank_row
        step, phase = rank.step_and_phase()
        stands.append(
            (
                rank.rank,
                rank.pid & _U32,
                step,
                phase,
                int(rank.process_state()),
                min(row.level, 255) if row is not None else int(Level.OFF),
                min(row.exit_state, 255) if row is not None else 0,
                row.hook_state & _U32 if row is not None else 0,
                read_time_ns(rank, now_ns),
                clamp_i64(row.phase_since_ns) if row is not None else 0,
                rank.inferred_since_ns or (clamp_i64(row.step_since_ns) if row is not None else 0),
                clamp_i64(rank.heartbeat_ns),
                rank.process.cpu_ns if rank.process is not None else -1,
                clamp_i64(row.cost_ns) if row is not None else -1,
                sum(max(group.open, 0) for group in rank.groups.rows.values()) if rank.completion_seen() else -1,
                rank.motion.still_since_ns,
                int(rank.motion.is_in_io),
            )
        )
    return progress_table(np.array(stands, RANK_STANDS))


def progress_table(stands: NDArray[np.void]) -> NDArray[np.void]:
    """PROGRESS rows, one for each of the RANK_STANDS rows: times in ns become ages at ``read_ns``."""
    rows = np.zeros(len(stands), PROGRESS)
    for column in _OF_RANKS:
        rows[column] = stands[column]
    for column in ("phase", "step", "heartbeat"):
        rows[f"{column}_age_ns"] = _ages(stands["read_ns"], stands[f"{column}_since_ns"])
    still_ns = _ages(stands["read_ns"], stands["still_since_ns"])
    rows["still_ns"] = np.where(still_ns > 0, still_ns, -1)
    return rows


def group_progress_rows(ranks: Sequence[WatchedRank], now_ns: int) -> tuple[NDArray[np.void], list[int]]:
    """One row per rank and live group (``group`` = agent-wide number), and the slot of each row's ring."""
    stands: list[tuple[int, ...]] = []
    slots: list[int] = []
    by_recorder = _seen_by_flight_recorder(ranks)
    for rank in ranks:
        read_ns = read_time_ns(rank, now_ns)
        seen = rank.completion_seen()
        blind = int(is_blind(rank))
        for index, group in rank.groups.rows.items():
            number = rank.groups.numbers.get(index)
            if number is None or group.in_use != 1:
                continue
            slots.append(rank.slot)
            if rank.slot in by_recorder and number == rank.groups.default:
                stands.append(_recorder_stand(rank, number, by_recorder[rank.slot], read_ns))
                continue
            # A device group of which no end was ever seen may have nobody to tell them.
            told = seen and (index not in rank.groups.on_device or group.completed > 0)
            stands.append(
                (
                    rank.rank,
                    number,
                    group.op,
                    group.flags,
                    group.dtype,
                    blind,
                    told,
                    group.peer,
                    group.nbytes,
                    group.enqueued,
                    group.started,
                    group.completed,
                    group.p2p_enqueued,
                    group.p2p_completed,
                    group.open,
                    rank.groups.open_since_ns(index),
                    max(group.enqueue_ns, group.complete_ns),
                    read_ns,
                )
            )
    return group_progress_table(np.array(stands, GROUP_STANDS)), slots


def group_progress_table(stands: NDArray[np.void]) -> NDArray[np.void]:
    """GROUP_PROGRESS rows, one for each of the GROUP_STANDS rows.

    Times in ns become ages at ``read_ns``, and what nobody tells is unknown (-1).
    """
    rows = np.zeros(len(stands), GROUP_PROGRESS)
    told = stands["told"]
    for column in _OF_GROUPS:
        rows[column] = stands[column]
    for column in ("completed", "p2p_completed", "open"):
        rows[column] = np.where(told, stands[column], -1)
    rows["open_age_ns"] = np.where(told, _ages(stands["read_ns"], stands["open_since_ns"]), 0)
    rows["moved_age_ns"] = _ages(stands["read_ns"], stands["moved_ns"])
    return rows


def is_blind(rank: WatchedRank) -> bool:
    """Whether nothing may be used that this rank's group rows say about sequence numbers: its hooks are off.

    A rank whose hooks are not in yet has not begun: nothing of it is hidden.
    """
    row = rank.rank_row
    if row is None:  # its writer died inside the row: the events still speak for it
        return False
    return bool(row.hook_state & _DISABLED) or (row.level < Level.EVENTS and row.hook_state != 0)


def _seen_by_flight_recorder(ranks: Sequence[WatchedRank]) -> dict[int, HeartbeatRow]:
    """Heartbeats with flight-recorder numbers, by slot, of attempts whose ranks are all at the status level.

    The recorder counts differently from the hooks, so its numbers may only be compared among themselves.
    """
    mixed: set[str] = set()
    found: dict[int, HeartbeatRow] = {}
    for rank in ranks:
        row = rank.rank_row
        if row is None or row.level != Level.STATUS or row.hook_state & _DISABLED:
            mixed.add(rank.identity.attempt)
            continue
        beat = parse_heartbeat_row(*rank.page)
        if beat is None or L.UNKNOWN_U64 in (beat.fr_enqueued, beat.fr_completed):
            mixed.add(rank.identity.attempt)
        else:
            found[rank.slot] = beat
    if not mixed:
        return found
    return {rank.slot: found[rank.slot] for rank in ranks if rank.slot in found and rank.identity.attempt not in mixed}


def _recorder_stand(rank: WatchedRank, number: int, beat: HeartbeatRow, read_ns: int) -> tuple[int, ...]:
    """The default group by flight-recorder status: no operation, no sizes, times as the agent saw them move."""
    numbers = (clamp_i64(beat.fr_enqueued), clamp_i64(beat.fr_completed))
    if numbers != rank.groups.recorder_numbers:
        rank.groups.recorder_numbers, rank.groups.recorder_moved_ns = numbers, read_ns
    enqueued, completed = numbers
    is_open = max(min(enqueued - completed, 1 << 30), 0)
    moved_ns = rank.groups.recorder_moved_ns
    since_ns = moved_ns if is_open else 0
    told = (enqueued, -1, completed, -1, -1, is_open, since_ns, moved_ns, read_ns)
    return rank.rank, number, 0, 0, 0, 0, True, -1, -1, *told
