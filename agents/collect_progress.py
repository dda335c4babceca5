"""PROGRESS and GROUP_PROGRESS rows: where each rank stands, with ages measured here and now.

Pure functions over WatchedRank, once a second and at once when something is wrong. A row of a rank whose process is
gone is aged by the ring's own last sign of life, so that it tells how things stood then, not how long it is dead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..telemetry import ring_layout as L
from ..telemetry.tables import GROUP_PROGRESS, PROGRESS
from ..telemetry.vocabulary import HookState, Level
from .progress_page import HeartbeatRow, clamp_i64, parse_heartbeat_row
from .watched_rank import WatchedRank

_U32 = 0xFFFF_FFFF
_DISABLED = int(HookState.DISABLED)


def _age(now_ns: int, since_ns: int) -> int:
    since_ns = clamp_i64(since_ns)
    return max(now_ns - since_ns, 0) if since_ns > 0 else 0


def read_time_ns(rank: WatchedRank, now_ns: int) -> int:
    """The moment a rank's rows speak of: now, or the last sign of life of a dead writer."""
    return now_ns if rank.alive else min(rank.last_sign_of_life_ns() or now_ns, now_ns)


def progress_rows(ranks: Sequence[WatchedRank], now_ns: int) -> NDArray[np.void]:
    """One row per rank. ``open`` is -1 where completion is not seen."""
    rows: list[tuple[int, ...]] = []
    for rank in ranks:
        read_ns = read_time_ns(rank, now_ns)
        row = rank.rank_row
        step, phase = rank.step_and_phase()
        rows.append(
            (
                rank.rank,
                rank.pid & _U32,
                step,
                phase,
                int(rank.process_state()),
                min(row.level, 255) if row is not None else int(Level.OFF),
                min(row.exit_state, 255) if row is not None else 0,
                row.hook_state & _U32 if row is not None else 0,
                read_ns,
                _age(read_ns, row.phase_since_ns) if row is not None else 0,
                _age(read_ns, row.step_since_ns) if row is not None else 0,
                _age(read_ns, rank.heartbeat_ns),
                rank.process.cpu_ns if rank.process is not None else -1,
                clamp_i64(row.cost_ns) if row is not None else -1,
                sum(max(group.open, 0) for group in rank.groups.values()) if rank.completion_seen() else -1,
            )
        )
    return np.array(rows, PROGRESS)


def group_progress_rows(ranks: Sequence[WatchedRank], now_ns: int) -> tuple[NDArray[np.void], list[int]]:
    """One row per rank and live group (``group`` = agent-wide number), and the slot of each row's ring."""
    rows: list[tuple[int, ...]] = []
    slots: list[int] = []
    by_recorder = _seen_by_flight_recorder(ranks)
    for rank in ranks:
        read_ns = read_time_ns(rank, now_ns)
        seen = rank.completion_seen()
        blind = int(is_blind(rank))
        for index, group in rank.groups.items():
            number = rank.group_numbers.get(index)
            if number is None or group.in_use != 1:
                continue
            if rank.slot in by_recorder and number == rank.default_group:
                rows.append(_recorder_row(rank, number, by_recorder[rank.slot], read_ns))
                slots.append(rank.slot)
                continue
            moved_ns = max(group.enqueue_ns, group.complete_ns)
            # A device group of which no end was ever seen may have nobody to tell them.
            told = seen and (index not in rank.device_groups or group.completed > 0)
            opened = group.open if told else -1
            rows.append(
                (
                    rank.rank,
                    number,
                    group.op,
                    group.flags,
                    group.dtype,
                    blind,
                    0,
                    group.peer,
                    group.nbytes,
                    group.enqueued,
                    group.started,
                    group.completed if told else -1,
                    group.p2p_enqueued,
                    group.p2p_completed if told else -1,
                    opened,
                    _age(read_ns, rank.open_since_ns(index)) if told else 0,
                    _age(read_ns, moved_ns),
                )
            )
            slots.append(rank.slot)
    return np.array(rows, GROUP_PROGRESS), slots


def is_blind(rank: WatchedRank) -> bool:
    """Nothing that this rank's group rows say about sequence numbers may be used.

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


def _recorder_row(rank: WatchedRank, number: int, beat: HeartbeatRow, read_ns: int) -> tuple[int, ...]:
    """The default group's row from flight-recorder status: no operation, no sizes, ages as the agent saw them move."""
    numbers = (clamp_i64(beat.fr_enqueued), clamp_i64(beat.fr_completed))
    if numbers != rank.recorder_numbers:
        rank.recorder_numbers, rank.recorder_moved_ns = numbers, read_ns
    enqueued, completed = numbers
    is_open = max(min(enqueued - completed, 1 << 30), 0)
    age_ns = _age(read_ns, rank.recorder_moved_ns)
    open_age_ns = age_ns if is_open else 0
    return rank.rank, number, 0, 0, 0, 0, 0, -1, -1, enqueued, -1, completed, -1, -1, is_open, open_age_ns, age_ns
