"""What a job's ledger says when steps, ends and slow ranks are accounted for, and the gaps that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....diagnosis.goodput.gaps import Moments, classify_gap
from ....diagnosis.goodput.interval import Interval, Part, as_slow, slow_excess_ns
from ....diagnosis.goodput.step_time import Reference, reference_step
from ....telemetry.kind_sets import SPEED_KINDS
from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..state.accounting_state import Fault
from .interval_emitter import INTERVAL_NS, interval_between, tell

if TYPE_CHECKING:
    from ..state.job_state import JobState

#: A stretch is twice as long for each so many intervals that no checkpoint holds, so that they stay few.
DOUBLES_AFTER = 32


def usual_step(job: JobState) -> Reference:
    """The reference for a usual step, from the lengths of the newest plain steps."""
    return reference_step(job.ledger.lengths[:, 1])


def covered_ns(job: JobState) -> int:
    """Unix ns up to which the ledger has taken steps, emitted or not."""
    ledger = job.ledger
    if ledger.open is not None:
        return ledger.open.end_ns
    return ledger.first.end_ns if ledger.first is not None else ledger.front_ns


def wanted_length_ns(job: JobState) -> int:
    """The length in ns of a stretch that makes one interval: it doubles as more intervals may still be revised."""
    saved = job.checkpoints.saved_steps
    since = sum(1 for interval in job.ledger.kept if interval.last_step >= saved)
    return INTERVAL_NS << min(since // DOUBLES_AFTER, 16)


def charge_slow(job: JobState, interval: Interval) -> Interval:
    """The interval with what its steps take over the usual charged to the slow rank; changes the ledger's credit.

    Steps differ by chance both ways, so shorter ones count against longer ones; at most one step is carried over.
    """
    ledger = job.ledger
    left_ns = ledger.slow_credit_ns - slow_excess_ns(interval, ledger.slow_reference_ns)
    slow = as_slow(
        interval,
        ledger.slow_reference_ns,
        ledger.slow_cause,
        ledger.slow_credit_ns,
        evaluation_ns=ledger.slow_evaluation_ns,
    )
    ledger.slow_credit_ns = min(max(0, left_ns), ledger.slow_reference_ns)
    return slow


def moments_of(job: JobState) -> Moments:
    """The moments of the current attempt's end as far as they are known, in Unix ns; 0 where not."""
    ledger = job.ledger
    stop = stop_of(ledger.faults)
    asked = next((fault for fault in ledger.faults if fault.kind == Kind.PLANNED_STOP.value), None)
    save, evaluation = (
        each if each is not None and each.step > ledger.last_step >= 0 else None
        for each in (ledger.saving, ledger.evaluating)
    )
    return Moments(
        cause=(stop.cause if stop else "") or (asked.cause if asked else ""),
        onset_ns=stop.onset_ns if stop else 0,
        detected_ns=stop.detected_ns if stop else 0,
        asked_ns=asked.onset_ns if asked else 0,
        first_exit_ns=ledger.first_exit_ns,
        last_exit_ns=ledger.last_exit_ns,
        worked=ledger.last_step >= 0,
        save_begin_ns=save.begin_ns if save else 0,
        save_end_ns=save.end_ns if save and not save.ranks else 0,
        evaluation_begin_ns=evaluation.begin_ns if evaluation else 0,
        evaluation_end_ns=evaluation.end_ns if evaluation and not evaluation.ranks else 0,
        calls_ns=0 if ledger.last_step >= 0 else job.progress.call_gaps.first_call_ns,
    )


def stop_of(faults: list[Fault]) -> Fault | None:
    """The fault that stopped the attempt: the earliest that did not pass, else the earliest; None without any.

    Slow ranks and planned stops do not count.
    """
    stops = [f for f in faults if f.kind not in SPEED_KINDS and f.kind != Kind.PLANNED_STOP.value]
    lasting = [fault for fault in stops if not fault.cleared_ns] or stops
    return min(lasting, key=lambda fault: fault.onset_ns, default=None)


def emit_gap(job: JobState, until_ns: int, moments: Moments, now: int, ctx: Context) -> None:
    """Emits intervals from the ledger's front to ``until_ns`` (Unix), divided by the moments of the interruption."""
    for piece in classify_gap(job.ledger.front_ns, until_ns, moments):
        part = Part(piece.bucket, piece.ns, piece.cause)
        tell(job, interval_between(job, piece.begin_ns, piece.end_ns, (part,), 0), now, ctx)
