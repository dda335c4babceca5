"""How each rank stands at a time, as its progress page would show it: calls, phase and step, by its recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.vocabulary import EventFlag
from .clock import NEVER
from .recording import StepRecording

Ints = NDArray[np.int64]
_P2P = int(EventFlag.P2P)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stand:
    """How a stage's ranks stand at a time; nanoseconds of the simulation, by rank. rows: calls by group row."""

    step: Ints
    phase: Ints
    phase_since: Ints
    step_since: Ints
    rows: dict[int, CallStand]


@dataclass(frozen=True, kw_only=True, eq=False)
class CallStand:
    op: Ints
    nbytes: Ints
    peer: Ints
    flags: Ints
    enqueued: Ints
    started: Ints
    completed: Ints
    p2p_enqueued: Ints
    p2p_completed: Ints
    open: Ints
    open_since: Ints
    moved: Ints


@dataclass(kw_only=True, eq=False)
class _Row:
    """Counted up over the steps that are looked at."""

    last_called: Ints
    last_done: Ints
    started_at: Ints
    oldest: Ints
    op: Ints
    nbytes: Ints
    peer: Ints
    flags: Ints
    enqueued: list[Ints]
    completed: list[Ints]
    started: Ints


def stand_at(recordings: Sequence[StepRecording], at: Ints) -> Stand:
    """How the ranks of one stage stand at ``at`` (by rank, ns of the simulation).

    recordings: of that stage, oldest first, not empty; steps before the first one have all ended.
    """
    first = recordings[0]
    size = at.size
    step = np.full(size, first.step)
    step_since = np.where(first.begin >= NEVER, first.since, first.begin)
    phase, phase_since = np.full(size, first.phase_before), first.since.copy()
    for recording in recordings:
        for (_, word), began in zip(recording.plan.phases, recording.phase_at, strict=True):
            come = began <= at
            phase[come], phase_since[come] = word, began[come]
        begun = recording.begin <= at
        step[begun], step_since[begun] = recording.step, recording.begin[begun]
        over = recording.end <= at
        step[over], step_since[over] = recording.step + 1, recording.end[over]
    rows = _count(recordings, at)
    on_device = first.plan.on_device
    device_done = np.max([row.last_done for row in rows.values()], axis=0) if rows else np.zeros(size, np.int64)
    return Stand(
        step=step,
        phase=phase,
        phase_since=phase_since,
        step_since=step_since,
        rows={number: _told(row, device_done if on_device else None) for number, row in rows.items()},
    )


def _count(recordings: Sequence[StepRecording], at: Ints) -> dict[int, _Row]:
    first, size = recordings[0], at.size
    rows: dict[int, _Row] = {}

    def zeros() -> Ints:
        return np.zeros(size, np.int64)

    keys = {(call.row, call.is_p2p) for recording in recordings for call in recording.plan.calls} | set(first.before)
    for number in sorted({row for row, _ in keys}):
        collectives, p2p = first.before.get((number, False), 0), first.before.get((number, True), 0)
        rows[number] = _Row(
            last_called=zeros(), last_done=zeros(), started_at=zeros(), oldest=np.full(size, NEVER), op=zeros(),
            nbytes=zeros(), peer=np.full(size, -1), flags=zeros(),
            started=first.started_before[number].copy() if number in first.started_before else np.full(size, -1),
            enqueued=[np.full(size, collectives), np.full(size, p2p)],
            completed=[np.full(size, collectives), np.full(size, 0 if first.plan.on_device else p2p)],
        )  # fmt: skip
    for recording in recordings:
        for number, call in enumerate(recording.plan.calls):
            row, sort = rows[call.row], int(call.is_p2p)
            called, done = recording.called[number], recording.done[number]
            come, ended = called <= at, done <= at
            row.enqueued[sort] += come
            row.op[come], row.peer[come], row.flags[come] = call.op, call.peer, _P2P if call.is_p2p else 0
            row.nbytes[come] = call.nbytes if recording.nbytes is None else recording.nbytes[number][come]
            row.last_called[come] = called[come]
            if call.is_p2p and recording.plan.on_device:
                continue  # nobody tells its end
            row.completed[sort] += ended
            np.maximum(row.last_done, np.where(ended, done, 0), out=row.last_done)
            still = come & ~ended
            np.minimum(row.oldest, np.where(still, called, NEVER), out=row.oldest)
            begun = recording.started[number] <= at
            if recording.plan.on_device and not call.is_p2p:
                sequence = recording.before.get((call.row, False), 0) + call.order
                row.started[begun], row.started_at[begun] = sequence, recording.started[number][begun]
    return rows


def _told(row: _Row, device_done: Ints | None) -> CallStand:
    """device_done: when any group's call last ended on the device; None: the host does them.

    Since when the oldest open call has kept it: see ``agents.ranks.watched_rank.WatchedRank.open_since_ns``.
    """
    oldest = np.where(row.oldest >= NEVER, 0, row.oldest)
    enqueued, completed = row.enqueued[0], row.completed[0]
    opened = enqueued - completed
    since = oldest
    if device_done is None:
        opened = opened + row.enqueued[1] - row.completed[1]
    else:
        opened = opened + row.enqueued[1]
        begun = np.maximum(oldest, row.started_at)
        since = np.where(row.started > completed, begun, np.maximum(oldest, device_done))
        since = np.where((oldest > 0) & (completed > 0), since, 0)
    return CallStand(
        op=row.op,
        nbytes=row.nbytes,
        peer=row.peer,
        flags=row.flags,
        enqueued=enqueued,
        started=row.started if device_done is not None else np.full(oldest.size, -1),
        completed=completed,
        p2p_enqueued=row.enqueued[1],
        p2p_completed=row.completed[1],
        open=opened,
        open_since=since,
        moved=np.maximum(row.last_called, row.last_done),
    )
