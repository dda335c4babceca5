"""Every second of a job's world gets its bucket, and closed intervals go out as findings (docs/accounting.md).

A step's time runs from the end of the step before to the last rank's end. Steps are told in stretches of about a
minute, cut where a checkpoint was written; what lies between the last step of one attempt and the first of the next is
divided by the moments of the interruption. When an attempt goes on from an older step, the intervals of the steps that
are lost are told again; so are those of a slow rank, which is known only when it has lasted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....diagnosis.goodput.gaps import Moments
from ....diagnosis.goodput.interval import Part, merge
from ....diagnosis.goodput.step_time import (
    LONG_STEP,
    NO_REFERENCE,
    OF_PHASES,
    Reference,
    mean_step_ns,
    split_steps,
)
from ....telemetry.kind_sets import SPEED_KINDS
from ....telemetry.vocabulary import Kind, Phase, TimeBucket
from ...operator import Context
from ..state.accounting_state import KEPT_EVALUATIONS, KEPT_LENGTHS, Fault, FirstStep, Stretch
from .interval_emitter import INTERVAL_NS, emit, interval_between, tell
from .ledger_views import charge_slow, covered_ns, emit_gap, moments_of, stop_of, usual_step, wanted_length_ns
from .resumed_checkpoint import lose_steps, settle_resume

if TYPE_CHECKING:
    from ..state.job_state import JobState

_BUCKETS = (*(bucket for bucket, _ in OF_PHASES), TimeBucket.PRODUCTIVE, TimeBucket.UNKNOWN)
_RESTORE, _SAVE, _EVALUATION, _DATA, _OWN, _UNKNOWN = 0, 1, 2, len(OF_PHASES) - 1, len(OF_PHASES), len(OF_PHASES) + 1
_EVAL, _CHECKPOINT = int(Phase.EVAL), int(Phase.CHECKPOINT)
_WORK = [int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER)]


# --- steps ------------------------------------------------------------------------------------------------------------
def take_steps(job: JobState, rows: np.ndarray, now: int, ctx: Context) -> None:
    """rows: (n,) of STEPS that were closed now, of one attempt, in Unix time."""
    ledger = job.ledger
    if not rows.size or job.judged_by:
        return
    covered = covered_ns(job)
    fresh = rows["end_ns"] > covered
    again = fresh & (rows["step"] <= ledger.last_step)
    is_again = bool(again.any())
    if is_again and int(rows["begin_ns"][again].min()) < covered:
        fresh, is_again = fresh & ~again, False  # of a rank that is far behind
    if not fresh.all():
        rows = rows[fresh]
        if not rows.size:
            return
    order = np.argsort(rows["step"], kind="stable")
    step = rows["step"][order]
    first = np.flatnonzero(np.concatenate([[True], step[1:] != step[:-1]]))
    steps = step[first]
    ends = np.maximum.accumulate(np.maximum.reduceat(rows["end_ns"][order], first))
    phases = np.maximum.reduceat(rows["phase_ns"][order], first, axis=0)
    phases = _without_waits_between(rows["phase_ns"][order], first, phases)
    begin_ns = int(rows["begin_ns"][order[: first[1] if first.size > 1 else None]].min())
    if ledger.problem:
        _go_on_after_error(job, int(steps[0]), begin_ns, now, ctx)
    if not ledger.front_ns:  # nobody told when it began
        ledger.front_ns = begin_ns
        ledger.last_step = int(steps[0]) - 1
    elif ledger.last_step < 0 and ledger.first is None:
        settle_resume(job, now, ctx)
        # The phases of a first step go back to the process's start.
        length = np.array([max(0, int(ends[0]) - max(ledger.front_ns, ledger.started_ns))])
        parts = split_steps(length, phases[:1])[0].tolist()
        work_ns = int(phases[0, _WORK].sum())
        ledger.first = FirstStep(int(ends[0]), int(steps[0]), int(steps[0]) + 1, parts, work_ns)
        ledger.last_step = int(steps[0])
        steps, ends, phases = steps[1:], ends[1:], phases[1:]
    elif is_again:
        _hidden_restart(job, int(steps[0]), begin_ns, now, ctx)
    if steps.size:
        _add_steps(job, steps, ends, phases, now, ctx)
    ledger.changed = True


def _go_on_after_error(job: JobState, step: int, begin_ns: int, now: int, ctx: Context) -> None:
    """Whatever was known of the time before this step is lost. Within an attempt's start nothing is."""
    ledger = job.ledger
    if ledger.last_step < 0:
        return
    if begin_ns > ledger.front_ns:
        part = Part(TimeBucket.UNKNOWN, begin_ns - ledger.front_ns)
        tell(job, interval_between(job, ledger.front_ns, begin_ns, (part,), 0), now, ctx)
    ledger.last_step = step - 1


def _without_waits_between(of_ranks: np.ndarray, first: np.ndarray, longest: np.ndarray) -> np.ndarray:
    """Where a step has both an evaluation and a checkpoint: who is early in one waits for the others in the other.

    of_ranks: (rows, phases), by step; first: of each step; longest: (steps, phases) that any rank was in each.
    """
    both = (longest[:, _EVAL] > 0) & (longest[:, _CHECKPOINT] > 0)
    if not both.any():
        return longest
    together = np.maximum.reduceat(of_ranks[:, _EVAL] + of_ranks[:, _CHECKPOINT], first)
    waited = np.where(both, longest[:, _EVAL] + longest[:, _CHECKPOINT] - together, 0)
    longest = longest.copy()
    longest[:, _CHECKPOINT] -= np.minimum(waited, longest[:, _CHECKPOINT])
    return longest


def _add_steps(job: JobState, steps: np.ndarray, ends: np.ndarray, phases: np.ndarray, now: int, ctx: Context) -> None:
    ledger = job.ledger
    begins = np.concatenate([[covered_ns(job)], ends[:-1]])
    lengths = ends - begins
    parts = np.concatenate([split_steps(lengths, phases), np.zeros((steps.size, 1), np.int64)], axis=1)
    counts = np.diff(steps, prepend=ledger.last_step)
    plain = (counts == 1) & (parts[:, :_DATA].sum(axis=1) * 50 < lengths)
    slow_since = min((fault.onset_ns for fault in ledger.faults if fault.kind in SPEED_KINDS), default=0)
    if slow_since:
        plain &= ends < slow_since
    evaluated = parts[:, _EVALUATION] > 0
    _note_evaluations(job, ends, parts, evaluated & (ends < slow_since) if slow_since else evaluated)
    more = np.stack([ends[plain], parts[plain, _OWN]], axis=1)
    ledger.lengths = np.concatenate([ledger.lengths, more])[-KEPT_LENGTHS:]
    # A fault of which was told while a step went on, and which that step has survived.
    stops = [
        fault for fault in ledger.faults if fault.kind not in SPEED_KINDS and fault.kind != Kind.PLANNED_STOP.value
    ]
    odd: set[int] = set()
    reference = NO_REFERENCE
    if stops or _may_be_long(job, parts[:, _OWN]):
        reference = usual_step(job)
    if reference.step_ns:
        odd.update(np.flatnonzero(parts[:, _OWN] > LONG_STEP * reference.step_ns * counts).tolist())
    for fault in stops:
        passed = np.flatnonzero(ends > max(fault.onset_ns, fault.detected_ns))
        odd.update(passed[:1].tolist())
    borders = sorted({*odd, *(place + 1 for place in odd), *np.flatnonzero(parts[:, _SAVE] > 0).tolist()})
    at = 0
    for border in [*borders, steps.size]:
        while at < border:
            until = _fit(job, begins, at, border)
            if until > at:
                whole = parts[at:until].sum(axis=0)
                _extend(
                    job,
                    int(begins[at]),
                    int(ends[until - 1]),
                    whole,
                    int(counts[at:until].sum()),
                    int(steps[until - 1]),
                    int(evaluated[at:until].sum()),
                )
            is_odd, at = until - 1 in odd, until
            if is_odd:
                _close_odd(job, stops, reference, now, ctx)
            elif at < border:
                _close_open(job, now, ctx)
        if border < steps.size:
            _close_open(job, now, ctx)
    length_ns = ledger.open.end_ns - ledger.open.begin_ns if ledger.open else 0
    if length_ns >= INTERVAL_NS and length_ns >= wanted_length_ns(job):
        _close_open(job, now, ctx)


def _may_be_long(job: JobState, own_ns: np.ndarray) -> bool:
    """Whether to ask for the usual step at all: it is dear beside the rest, and steps are nearly always even."""
    shortest = job.ledger.lengths[-8:, 1]
    return not shortest.size or int(own_ns.max()) > (LONG_STEP - 1.0) * int(shortest.min())


def _fit(job: JobState, begins: np.ndarray, at: int, border: int) -> int:
    """Up to which step the open stretch goes on: it is cut at the first step that begins when it is long enough."""
    stretch = job.ledger.open
    begin_ns = stretch.begin_ns if stretch else int(begins[at])
    if begins[border - 1] - begin_ns < INTERVAL_NS:
        return border
    long_enough = np.flatnonzero(begins[at:border] - begin_ns >= wanted_length_ns(job))
    return at + int(long_enough[0]) if long_enough.size else border


def _note_evaluations(job: JobState, ends: np.ndarray, parts: np.ndarray, usual: np.ndarray) -> None:
    """usual: in which steps there was one that no slow rank made longer."""
    if usual.any():
        more = np.stack([ends[usual], parts[usual, _EVALUATION]], axis=1).tolist()
        job.ledger.evaluations = [*job.ledger.evaluations, *more][-KEPT_EVALUATIONS:]


def _extend(
    job: JobState, begin_ns: int, end_ns: int, parts: np.ndarray, steps: int, last: int, evaluations: int
) -> None:
    """More steps in the open stretch. last: the newest of them."""
    ledger = job.ledger
    stretch, before = ledger.open, ledger.steps_before
    if stretch is None:
        first = before + ledger.last_step + 1
        ledger.open = Stretch(begin_ns, end_ns, parts.tolist(), steps, first, before + last, evaluations)
    else:
        stretch.evaluations += evaluations
        stretch.end_ns, stretch.last_step, stretch.steps = end_ns, before + last, stretch.steps + steps
        stretch.parts = [old + new for old, new in zip(stretch.parts, parts.tolist(), strict=True)]
    ledger.last_step = last


def _close_odd(job: JobState, stops: list[Fault], reference: Reference, now: int, ctx: Context) -> None:
    """The open stretch is one step that a fault held up, or that took far longer than steps do and nobody knows why."""
    ledger = job.ledger
    stretch = ledger.open
    assert stretch is not None
    excess_ns = max(0, stretch.parts[_OWN] - (reference.step_ns * stretch.steps or stretch.parts[_OWN]))
    over = [fault for fault in stops if max(fault.onset_ns, fault.detected_ns) < stretch.end_ns]
    inside = sorted(over, key=lambda fault: fault.onset_ns)
    if not inside:
        stretch.parts[_OWN] -= excess_ns
        stretch.parts[_UNKNOWN] += excess_ns
        _close_open(job, now, ctx)
        return
    fault = inside[0]
    began_ns = max(fault.onset_ns, stretch.begin_ns)
    excess_ns = min(stretch.parts[_OWN], excess_ns or stretch.end_ns - began_ns)
    before_ns = min(excess_ns, max(0, min(each.detected_ns for each in inside) - began_ns))
    stretch.parts[_OWN] -= excess_ns
    more = (
        Part(TimeBucket.FAULT_BEFORE_DETECTION, before_ns, fault.cause),
        Part(TimeBucket.FAULT_AFTER_DETECTION, excess_ns - before_ns, fault.cause),
    )
    _close_open(job, now, ctx, more)
    ledger.faults = [each for each in ledger.faults if each not in inside]
    stops[:] = [each for each in stops if each not in inside]


# --- attempts ---------------------------------------------------------------------------------------------------------
def begin_attempt(job: JobState, steps_before: int, now: int, ctx: Context) -> None:
    """Closes the last attempt's account as another begins, from a checkpoint that holds ``steps_before`` steps.

    Steps done since that checkpoint are told again as lost. To be called before the job's state forgets the attempt.
    """
    ledger = job.ledger
    if job.judged_by:
        return
    _take_rest(job, now, ctx)
    _close_open(job, now, ctx)
    moments = moments_of(job)
    if ledger.last_step >= 0:
        ledger.past = replace(moments, was_over=ledger.is_over)
    elif began_ns := moments.onset_ns or moments.asked_ns or moments.first_exit_ns:
        _leave_start(job, began_ns, now, ctx)  # it ended before its first step
        ledger.past = replace(moments, was_over=ledger.is_over)
    lose_steps(job, steps_before, moments.cause, now, ctx)
    ledger.leave_attempt(steps_before)


def _take_rest(job: JobState, now: int, ctx: Context) -> None:
    """The last steps, which nobody has closed: those that all ranks have ended."""
    rows = job.open_steps.steps.all()
    rows = rows[rows["step"] > job.steps.closed_step]
    if rows.size:
        steps, ranks = np.unique(rows["step"], return_counts=True)
        take_steps(job, rows[np.isin(rows["step"], steps[ranks >= max(1, len(job.ranks))])], now, ctx)


def _leave_start(job: JobState, until_ns: int, now: int, ctx: Context) -> None:
    """The attempt's start is over, and with it what came before."""
    ledger = job.ledger
    if until_ns > ledger.front_ns:
        emit_gap(job, until_ns, replace(ledger.past, restarted_ns=ledger.started_ns), now, ctx)


def _hidden_restart(job: JobState, step: int, begin_ns: int, now: int, ctx: Context) -> None:
    """Step numbers come again within an attempt: it was started anew, and nobody told."""
    ledger = job.ledger
    _close_open(job, now, ctx)
    lose_steps(job, ledger.steps_before + step, "", now, ctx)
    if begin_ns > ledger.front_ns:
        emit_gap(job, begin_ns, Moments(restarted_ns=begin_ns), now, ctx)
    ledger.last_step, ledger.saving, ledger.evaluating = step - 1, None, None


def finish(job: JobState, ended_ns: int, now: int, ctx: Context, *, well: bool, has_left: bool = True) -> None:
    """Closes the account up to ``ended_ns`` (Unix): the job is over. Nothing where none was begun, or it is closed
    already.

    well: the job had done its work, or somebody wanted it to end. has_left: it holds no GPU any more. Else what comes
    before its next start, if there is one, was no queue.
    """
    ledger = job.ledger
    if not ledger.front_ns or job.judged_by or ledger.is_over:
        return
    _take_rest(job, now, ctx)
    _close_open(job, now, ctx)
    moments = replace(moments_of(job), finished=well)
    if ledger.last_step < 0:
        _leave_start(job, moments.onset_ns or moments.asked_ns or moments.first_exit_ns or ended_ns, now, ctx)
    ended_ns = max(ended_ns, ledger.last_exit_ns)
    if ended_ns > ledger.front_ns:
        emit_gap(job, ended_ns, moments, now, ctx)
    ledger.is_over, ledger.changed = has_left, True


def look(job: JobState, stamp_ns: int, ctx: Context) -> None:
    """While it stands still: what that costs is told each minute."""
    ledger = job.ledger
    if not ledger.faults or stamp_ns - ledger.front_ns < INTERVAL_NS or ledger.is_over or job.judged_by:
        return
    stop = stop_of(ledger.faults)
    if stop is None or stop.cleared_ns or not ledger.front_ns or stop.onset_ns > stamp_ns - INTERVAL_NS:
        return
    _take_rest(job, stamp_ns, ctx)
    _close_open(job, stamp_ns, ctx)
    if ledger.last_step < 0:
        _leave_start(job, stop.onset_ns, stamp_ns, ctx)
    if stamp_ns - ledger.front_ns >= INTERVAL_NS:
        emit_gap(job, stamp_ns, moments_of(job), stamp_ns, ctx)


# --- slow ranks -------------------------------------------------------------------------------------------------------
def judge_slow(job: JobState, now: int, ctx: Context) -> None:
    """A rank was found slow, or is no more: what its steps take too long is charged to it, those before included."""
    ledger = job.ledger
    slow = next((fault for fault in ledger.faults if fault.kind in SPEED_KINDS and not fault.cleared_ns), None)
    if slow is None and not ledger.slow_cause:
        return
    if slow is not None and ledger.slow_cause == slow.cause:
        return
    _close_open(job, now, ctx)
    ledger.end_slow()
    ledger.faults = [fault for fault in ledger.faults if fault.kind not in SPEED_KINDS or not fault.cleared_ns]
    if slow is None:
        return
    ledger.lengths = ledger.lengths[ledger.lengths[:, 0] < slow.onset_ns]
    ledger.slow_cause, ledger.slow_reference_ns = slow.cause, mean_step_ns(ledger.lengths[:, 1])
    ledger.evaluations = [each for each in ledger.evaluations if each[0] < slow.onset_ns]
    lengths_ns = np.array([length_ns for _, length_ns in ledger.evaluations], np.int64)
    ledger.slow_evaluation_ns = mean_step_ns(lengths_ns) or int(np.median(lengths_ns) if lengths_ns.size else 0)
    kept = []
    for interval in ledger.kept:
        changed = interval
        if interval.steps and interval.end_ns > slow.onset_ns:
            changed = charge_slow(job, interval)
        if changed != interval:
            emit(job, changed, now, ctx)
        kept.append(changed)
    ledger.kept = kept


# --- telling ----------------------------------------------------------------------------------------------------------
def _close_open(job: JobState, now: int, ctx: Context, more: tuple[Part, ...] = ()) -> None:
    """The open stretch, and before it what the attempt began with."""
    ledger = job.ledger
    _settle_first(job, now, ctx)
    stretch, ledger.open = ledger.open, None
    if stretch is None:
        return
    parts = merge([*(Part(bucket, ns) for bucket, ns in zip(_BUCKETS, stretch.parts, strict=True)), *more])
    reference_ns = ledger.slow_reference_ns or usual_step(job).step_ns
    interval = interval_between(job, stretch.begin_ns, stretch.end_ns, parts, reference_ns)
    interval = replace(
        interval,
        steps=stretch.steps,
        first_step=stretch.first_step,
        last_step=stretch.last_step,
        evaluations=stretch.evaluations,
    )
    if ledger.slow_cause:
        interval = charge_slow(job, interval)
    tell(job, interval, now, ctx)


def _settle_first(job: JobState, now: int, ctx: Context) -> None:
    """What came before the attempt's first step, and of that step what was its own work."""
    ledger = job.ledger
    first, ledger.first = ledger.first, None
    if first is None:
        return
    usual_ns = usual_step(job).step_ns * first.steps or first.work_ns
    own_ns = min(first.parts[_OWN], usual_ns)
    kept = [ns if place not in (_RESTORE, _OWN) else 0 for place, ns in enumerate(first.parts)]
    starting = next(place for place, (bucket, _) in enumerate(OF_PHASES) if bucket is TimeBucket.STARTING)
    kept[starting] = 0
    kept[_OWN] = own_ns
    step_ns, restore_ns = sum(kept), first.parts[_RESTORE]
    begin_ns = first.end_ns - step_ns
    _leave_start(job, begin_ns - restore_ns, now, ctx)
    if begin_ns > ledger.front_ns:
        part = Part(TimeBucket.CHECKPOINT_RESTORE, begin_ns - ledger.front_ns, ledger.past.cause)
        tell(job, interval_between(job, ledger.front_ns, begin_ns, (part,), 0), now, ctx)
    whole, number = [*kept, 0], ledger.steps_before
    stretch = ledger.open
    if stretch is None:
        ledger.open = Stretch(
            begin_ns, first.end_ns, whole, first.steps, number + first.step + 1 - first.steps, number + first.step
        )
        return
    stretch.begin_ns, stretch.first_step = begin_ns, number + first.step + 1 - first.steps
    stretch.parts = [old + new for old, new in zip(stretch.parts, whole, strict=True)]
    stretch.steps += first.steps
