"""The accounting behind a wall: an error in it must not end the attribution.

Whatever it raises is counted, the seconds that it had not told become unknown, and it begins anew from there. What went
wrong stands in the next interval, so that whoever reads the account knows (``Interval.problem``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ....diagnosis.goodput.interval import Part
from ....telemetry.vocabulary import TimeBucket
from ...operator import Context
from . import accounting, checkpoint_progress
from .interval_emitter import INTERVAL_NS, interval_between, tell

if TYPE_CHECKING:
    from ..state.job_state import JobState

#: Of what an exception says.
_MOST_CHARACTERS = 200


def take_steps(job: JobState, rows: np.ndarray, now: int, ctx: Context) -> None:
    """Adds closed steps to the account (``accounting.take_steps``); an error there only makes the untold seconds
    unknown.

    rows: (n,) of STEPS.
    """
    _softly(job, now, ctx, lambda: accounting.take_steps(job, rows, now, ctx))


def judge_slow(job: JobState, now: int, ctx: Context) -> None:
    """Charges slow steps to a rank found slow (``accounting.judge_slow``); an error only makes the untold seconds
    unknown.
    """
    _softly(job, now, ctx, lambda: accounting.judge_slow(job, now, ctx))


def look(job: JobState, stamp_ns: int, ctx: Context) -> None:
    """Emits what a standstill has cost so far (``accounting.look``); an error only makes the untold seconds unknown."""
    _softly(job, stamp_ns, ctx, lambda: accounting.look(job, stamp_ns, ctx))


def note_saves(job: JobState, rows: np.ndarray, before: np.ndarray, known: np.ndarray) -> None:
    """Notes begin and end of saves and evaluations (``checkpoint_progress.note_saves``), but raises nothing.

    rows, before: (n,) of PROGRESS, before: each rank's row before it; known: (n,) bool, whether there was one.
    """
    _runs_through(job, lambda: checkpoint_progress.note_saves(job, rows, before, known))


def begin_attempt(job: JobState, steps_before: int, now: int, ctx: Context) -> None:
    """Closes the last attempt's account (``accounting.begin_attempt``); the ledger leaves that attempt even after an
    error.
    """
    _softly(job, now, ctx, lambda: accounting.begin_attempt(job, steps_before, now, ctx))
    if job.ledger.steps_before != steps_before or job.ledger.last_step >= 0:  # it did not come so far
        job.ledger.leave_attempt(steps_before)


def finish(job: JobState, ended_ns: int, now: int, ctx: Context, *, well: bool, has_left: bool = True) -> None:
    """Closes the account of a job that is over (``accounting.finish``); an error only makes the untold
    seconds unknown.
    """
    _softly(job, now, ctx, lambda: accounting.finish(job, ended_ns, now, ctx, well=well, has_left=has_left))


def _softly(job: JobState, now: int, ctx: Context, act: Callable[[], None]) -> None:
    if not _runs_through(job, act):
        _tell_unknown(job, now, ctx)


def _runs_through(job: JobState, act: Callable[[], None]) -> bool:
    try:
        act()
    except Exception as error:  # the edge of the accounting: who waits for findings must not miss them for its sake
        job.ledger.break_off(f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS])
        return False
    return True


def _tell_unknown(job: JobState, now: int, ctx: Context) -> None:
    """Where it fails again and again, its seconds are told as unknown each minute."""
    front_ns = job.ledger.front_ns
    if not front_ns or job.judged_by or now - front_ns < INTERVAL_NS:
        return
    part = Part(TimeBucket.UNKNOWN, now - front_ns)
    tell(job, interval_between(job, front_ns, now, (part,), 0), now, ctx)
