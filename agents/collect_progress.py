"""PROGRESS and GROUP_PROGRESS rows: where each rank stands, with ages measured here and now.

Pure functions over WatchedRank, once a second and at once when something is wrong. A row of a rank whose process is
gone is aged by the ring's own last sign of life, so that it tells how things stood then, not how long it is dead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..telemetry.tables import GROUP_PROGRESS, PROGRESS
from ..telemetry.vocabulary import HookState, Level
from .progress_page import clamp_i64
from .watched_rank import WatchedRank

_U32 = 0xFFFF_FFFF


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
    for rank in ranks:
        read_ns = read_time_ns(rank, now_ns)
        seen = rank.completion_seen()
        blind = int(is_blind(rank))
        for index, group in rank.groups.items():
            number = rank.group_numbers.get(index)
            if number is None or group.in_use != 1:
                continue
            moved_ns = max(group.enqueue_ns, group.complete_ns)
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
                    group.completed if seen else -1,
                    group.p2p_enqueued,
                    group.p2p_completed if seen else -1,
                    group.open if seen else -1,
                    _age(read_ns, group.oldest_open_ns) if seen else 0,
                    _age(read_ns, moved_ns),
                )
            )
            slots.append(rank.slot)
    return np.array(rows, GROUP_PROGRESS), slots


def is_blind(rank: WatchedRank) -> bool:
    """Nothing that this rank's groups say about sequence numbers may be used."""
    row = rank.rank_row
    if row is None:  # its writer died inside the row: the events still speak for it
        return not rank.last_event
    return row.level < Level.EVENTS or bool(row.hook_state & HookState.DISABLED)
