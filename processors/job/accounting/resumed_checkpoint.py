"""From which checkpoint an attempt goes on: the newest that was written, unless a rank was seen to read another one.

A checkpoint is known by its place (``checkpoint`` of RANK_CHECKPOINT): the attempts before have written there, with so
many steps of the training in it. What is read before an attempt's first step is what it goes on from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....diagnosis.goodput.interval import Interval, Part, as_lost
from ....telemetry.vocabulary import TimeBucket
from ...operator import Context
from .interval_emitter import emit

if TYPE_CHECKING:
    from ..state.job_state import JobState

#: Places that are remembered, the newest.
MOST_CHECKPOINTS = 256


def note_checkpoint(job: JobState, place: str, *, step: int, is_read: bool) -> None:
    """Notes that a checkpoint was written, or read as what the attempt goes on from.

    place: its path or name. step: the attempt's, at which it was written (0: none, then nothing is noted). A place that
    was never written is ignored when it is read.
    """
    if not is_read:
        if step <= 0:
            return  # before any step: a cache, a vocabulary
        note_place(job, place, job.checkpoints.steps_before + step)
    elif place in job.checkpoints.by_place:
        # Of several (model and optimizer apart, an older one to compare with) the newest.
        job.checkpoints.restored_steps = max(job.checkpoints.restored_steps, job.checkpoints.by_place[place])


def note_place(job: JobState, place: str, step: int) -> None:
    """Notes that the checkpoint at this place holds so many steps of the training."""
    written = {known: steps for known, steps in job.checkpoints.by_place.items() if known != place}
    written[place] = step
    job.checkpoints.by_place = dict(list(written.items())[-MOST_CHECKPOINTS:])


def settle_resume(job: JobState, now: int, ctx: Context) -> None:
    """At the attempt's first step: corrects from which step it went on, if it read another checkpoint than assumed.

    Intervals that this makes lost, or not lost after all, are emitted again.
    """
    steps, assumed = job.checkpoints.restored_steps, job.checkpoints.steps_before
    if steps < 0 or steps == assumed or not job.ledger.attempts:
        return
    job.checkpoints.steps_before = job.checkpoints.saved_steps = job.ledger.steps_before = steps
    job.unsaved.steps = job.unsaved.facts = job.ledger.changed = True
    if steps < assumed:
        lose_steps(job, steps, job.ledger.past.cause, now, ctx)
    else:
        _regain_steps(job, assumed, steps, now, ctx)


def lose_steps(job: JobState, step: int, cause: str, now: int, ctx: Context) -> None:
    """Marks steps from ``step`` on (counted over attempts) in kept intervals as lost to ``cause``;
    emits what changes.
    """
    kept = []
    for interval in job.ledger.kept:
        lost = interval
        if interval.steps and interval.last_step >= step:
            lost = as_lost(interval, cause) if interval.first_step >= step else _partly_lost(interval, step, cause)
        if lost != interval:
            emit(job, lost, now, ctx)
        kept.append(lost)
    job.ledger.kept = kept


def _regain_steps(job: JobState, assumed: int, steps: int, now: int, ctx: Context) -> None:
    """A checkpoint was whole after all: the last attempt's steps up to it count."""
    attempt = next((each.attempt for each in reversed(job.ledger.kept) if each.steps), "")
    kept = []
    for interval in job.ledger.kept:
        mine = interval.attempt == attempt and interval.first_step >= assumed and 0 < interval.last_step < steps
        counts = interval.relabelled(_as_productive) if mine and interval.steps else interval
        if counts != interval:
            emit(job, counts, now, ctx)
        kept.append(counts)
    job.ledger.kept = kept


def _as_productive(part: Part) -> tuple[Part, ...]:
    return (Part(TimeBucket.PRODUCTIVE, part.ns),) if part.bucket is TimeBucket.REWORK else (part,)


def _partly_lost(interval: Interval, step: int, cause: str) -> Interval:
    """A border within it: its steps took the same time each."""
    share_ns = interval.of(TimeBucket.PRODUCTIVE) * (interval.last_step - step + 1) // max(1, interval.steps)
    left = [min(share_ns, interval.of(TimeBucket.PRODUCTIVE))]

    def lose(part: Part) -> tuple[Part, ...]:
        if part.bucket is not TimeBucket.PRODUCTIVE:
            return (part,)
        taken = min(left[0], part.ns)
        left[0] -= taken
        return Part(part.bucket, part.ns - taken, part.cause), Part(TimeBucket.REWORK, taken, cause)

    return interval.relabelled(lose)
