"""Findings about the pace of all ranks: steps that take longer, uneven work, recurring stalls, one stage with more."""

from __future__ import annotations

import numpy as np

from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..detectors.slow.data_stalls import are_over, find_recurring_stalls
from ..detectors.slow.pipeline_stage_time import HeavyStage, are_enough, find_heavy_stage
from ..detectors.slow.rotating_straggler import find_sudden_wandering, find_wandering
from ..detectors.slow.step_time_changepoint import (
    PaceChange,
    find_fresh_change,
    find_pace_change,
    find_sudden_change,
    is_back_to_pace,
    is_of_all,
    with_parts,
)
from ..findings.register import clear_finding, open_finding, replace_finding
from ..intake.device_groups import has_device_groups
from ..state.finding_memory import FindingDetail, LateMemory, PaceMemory, StallMemory
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from ..topology.pipeline_stages import order_of_stages, stages_of
from . import slow_device_report, throughput_report
from .rank_detectors import was_always_slow

PACE_CHECK_STEPS = 4


def judge_pace(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding where steps of all ranks take longer, or stall again and again; clears it once they do not.

    A sudden change is looked for at each call, a lasting one each PACE_CHECK_STEPS steps.
    """
    if not len(job.steps.pace):
        return
    is_due = job.steps.closed_step >= job.steps.pace_checked_step + PACE_CHECK_STEPS
    if is_due:
        job.steps.pace_checked_step = job.steps.closed_step
    steps, begins, pace, length_ns = (
        job.steps.pace[:, 0],
        job.steps.pace[:, 1],
        job.steps.pace[:, 2],
        job.steps.pace[:, 6],
    )
    # How long one device of many stood is only looked at: what is left of a step without it varies far more than steps.
    judged = length_ns if has_device_groups(job) else pace
    reported = job.findings.of_kind(Kind.SLOW_TOGETHER)
    for finding in reported:
        memory = finding.detail.memory
        if isinstance(memory, StallMemory):
            if are_over(pace, job.steps.pace[:, 4], memory.pause_steps):
                clear_finding(job, ctx, now, finding, "no step has waited for its data any more")
        elif isinstance(memory, PaceMemory):
            since = (length_ns if memory.wanders else judged)[steps >= finding.step]
            if is_back_to_pace(since, memory.before_ns, memory.after_ns):
                clear_finding(job, ctx, now, finding, "the step time is as before again")
            else:
                _name_the_stage(job, finding, memory, now, ctx)
    became_slow = not all(map(was_always_slow, job.findings.of_kind(Kind.RANK_SLOW)))
    if reported or became_slow or job.findings.stopping() is not None:
        return
    uneven = find_sudden_wandering(job.steps.times, steps, begins, length_ns)
    if uneven is None and is_due:
        uneven = find_wandering(job.steps.times, steps, begins, pace, length_ns)
    if uneven is not None:
        body = throughput_report.wandering_body(job, uneven, now)
        memory = PaceMemory(before_ns=uneven.before_ns, after_ns=uneven.after_ns, wanders=True)
        detail = FindingDetail(memory=memory)
        open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {uneven.step}", body=body, detail=detail)
        return
    if not is_due:
        _tell_change(job, _just_changed(steps, begins, judged), now, ctx)
        return
    change = find_pace_change(steps, begins, judged) or _just_changed(steps, begins, judged)
    if _tell_change(job, change, now, ctx):
        return
    stalls = find_recurring_stalls(steps, begins, pace, job.steps.pace[:, 4])
    if stalls is not None:
        body = throughput_report.stalls_body(job, stalls, now)
        detail = FindingDetail(memory=StallMemory(pause_steps=stalls.pause_steps))
        open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {stalls.step}", body=body, detail=detail)


def _just_changed(steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray) -> PaceChange | None:
    return find_sudden_change(steps, begin_ns, pace_ns) or find_fresh_change(steps, begin_ns, pace_ns)


def _tell_change(job: JobState, change: PaceChange | None, now: int, ctx: Context) -> bool:
    """Whether it is of all ranks, and so was told."""
    steps, pace = job.steps.pace[:, 0], job.steps.pace[:, 2]
    if change is None or (has_device_groups(job) and not is_of_all(change, steps, pace)):
        return False
    change = with_parts(change, steps, job.steps.pace[:, 3:6])
    is_pipeline = has_device_groups(job) and bool((order_of_stages(job, job.steps.times.ranks) >= 0).any())
    body = throughput_report.slow_together_body(job, change, now, has_unseen_waits=is_pipeline)
    heavy = _heavy_stage(job, change.step, body.grew) if is_pipeline else None
    if heavy is not None:
        body = slow_device_report.heavy_stage_body(job, heavy, change, now)
        place = f"rank {heavy.ranks[0]} step {change.step}"
        detail = _late_stage(heavy, change)
        open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)
        return True
    detail = FindingDetail(memory=PaceMemory(before_ns=change.before_ns, after_ns=change.after_ns))
    open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {change.step}", body=body, detail=detail)
    return True


def _name_the_stage(job: JobState, finding: OpenFinding, memory: PaceMemory, now: int, ctx: Context) -> None:
    """What was said of all ranks is that of one stage, once its passes are seen to take longer."""
    if memory.wanders or not has_device_groups(job):
        return
    heavy = _heavy_stage(job, finding.step, finding.body.grew)
    if heavy is not None:
        change = PaceChange(
            step=finding.step,
            onset_ns=finding.onset_ns,
            before_ns=memory.before_ns,
            after_ns=memory.after_ns,
        )
        finding.detail = _late_stage(heavy, change)
        body = slow_device_report.heavy_stage_body(job, heavy, change, now)
        replace_finding(job, ctx, now, finding, kind=Kind.RANK_SLOW, body=body)


def _late_stage(heavy: HeavyStage, change: PaceChange) -> FindingDetail:
    memory = LateMemory(rank=heavy.ranks[0], usual_step_ns=change.before_ns, late_step_ns=change.after_ns)
    return FindingDetail(memory=memory)


def _heavy_stage(job: JobState, onset_step: int, grew: str | None) -> HeavyStage | None:
    """grew: what makes the steps longer, as far as it is known: a slower network or data are no stage's work."""
    passes, ranks = job.steps.window.passes, job.steps.times.ranks
    # Asked of every step while all are slower, for hours perhaps.
    if grew in ("exchange", "data") or not are_enough(passes, onset_step):
        return None
    return find_heavy_stage(passes, ranks, stages_of(job, ranks), onset_step)
