"""Compares signatures when it may matter: near calls that stay open, at closing, before anything else is blamed.

A mismatch explains whatever else stops an attempt, also what was said before its rows came in.
"""

from __future__ import annotations

import numpy as np

from ...telemetry.vocabulary import Kind
from ..operator import Context
from . import desync_story
from .findings import open_finding, replace_finding
from .matching import Mismatch, judge_mismatch
from .rows import pick
from .state import JobState

#: A call that is still open when the next flush (250 ms) has come may never end.
OPEN_LOOK_NS = 310_000_000
MOST_OPEN_CALLS = 4096


def report_mismatch(job: JobState, mismatch: Mismatch, now: int, ctx: Context) -> None:
    """A mismatch explains whatever else stops this attempt, also what was said before its rows came in."""
    finding = job.stopping_finding()
    if finding is not None and finding.kind in (Kind.DESYNC.value, Kind.RANK_STOPPED.value):
        return
    if job.has_kind(Kind.PLANNED_STOP):
        return
    earlier = job.recent[job.recent["step"] < max(member.step for member in mismatch.members)]
    divergence = judge_mismatch(mismatch, earlier)
    body = desync_story.mismatch_body(job, mismatch, divergence, now)
    if finding is not None:
        replace_finding(job, ctx, now, finding, kind=Kind.DESYNC, body=body)
        return
    place = f"{job.groups[mismatch.group].uid}:{mismatch.seq}"
    open_finding(job, ctx, now, kind=Kind.DESYNC, place=place, body=body, group=mismatch.group, seq=mismatch.seq)


def note_open_calls(job: JobState, rows: np.ndarray, closed_ns: int, stamp_ns: int) -> None:
    """A call that does not match never ends: those still open after the next flush are worth a look."""
    if len(job.open_calls):
        late = (rows["enqueued_ns"] <= job.flushed_ns) & (rows["done_ns"] > 0)
        if late.any():
            job.open_calls = _still_open(job.open_calls, pick(rows, late))
    still = rows["done_ns"] == 0
    if still.any() and len(job.open_calls) < MOST_OPEN_CALLS:
        job.open_calls = np.concatenate([job.open_calls, _calls(pick(rows, still), stamp_ns)])
        job.schedule(stamp_ns + OPEN_LOOK_NS)
    job.flushed_ns = max(job.flushed_ns, closed_ns)


def _calls(rows: np.ndarray, stamp_ns: int) -> np.ndarray:
    """(n, 4): rank, group, sequence, stamp."""
    out = np.empty((rows.size, 4), np.int64)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = rows["rank"], rows["group"], rows["seq"], stamp_ns
    return out


def _still_open(calls: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Calls beyond the last of their rank and group that ended (calls of a group end in order, or nearly)."""
    shape = (
        int(max(calls[:, 0].max(), ended["rank"].max())) + 1,
        int(max(calls[:, 1].max(), ended["group"].max())) + 1,
    )
    last = np.full(shape, -1, np.int64)
    np.maximum.at(last, (ended["rank"], ended["group"]), ended["seq"])
    return np.asarray(calls[calls[:, 2] > last[calls[:, 0], calls[:, 1]]])
