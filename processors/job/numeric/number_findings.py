"""Findings of numbers gone bad: opened once, told anew when ranks say what they fed into operations, ended by good
steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....telemetry.vocabulary import Kind, StepFlag
from ...finding_document import FindingBody
from ...operator import Context
from ..detectors.numeric.bad_numbers import (
    EXPLOSION_RATIO,
    EXPLOSION_STEPS,
    EXPLOSION_WINDOW,
    BadNumber,
    Numbers,
    find_explosion,
    find_non_finite,
)
from ..findings.register import clear_finding, open_finding, replace_finding
from ..state.finding_memory import AskedCall, FindingDetail, NumberMemory
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from . import number_report
from .bad_inputs import find_feeders

GOOD_STEPS_TO_CLEAR = 3
_HAS_NUMBERS = int(StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM)


def open_number_finding(job: JobState, ctx: Context, now: int, bad: BadNumber, *, place: str) -> None:
    """Opens a finding of ``bad``. place: ``step N`` or ``call N``, the first bad one, part of the finding's key."""
    kind, body, detail = _described(job, bad, now)
    open_finding(job, ctx, now, kind=kind, place=place, body=body, detail=detail)


def revise_number_findings(job: JobState, ctx: Context, now: int) -> None:
    """Describes open numeric findings anew where the calls to ask for have changed, as other nodes' records may come
    later.
    """
    for finding in job.findings.of_kind(Kind.NUMERIC_ALL) + job.findings.of_kind(Kind.NUMERIC_FIRST_RANK):
        memory = finding.detail.memory
        if not isinstance(memory, NumberMemory) or memory.bad is None:
            continue
        kind, body, detail = _described(job, memory.bad, now)
        if detail.calls != finding.detail.calls:
            detail = replace(finding.detail, calls=detail.calls or finding.detail.calls)
            replace_finding(job, ctx, now, finding, kind=kind, body=body, detail=detail)


def _described(job: JobState, bad: BadNumber, now: int) -> tuple[Kind, FindingBody, FindingDetail]:
    feeders = find_feeders(job, -1 if bad.calls_before >= 0 else bad.step)
    kind, body = number_report.number_body(job, bad, feeders, now)
    calls = (AskedCall(rank, found.group, found.point_to_point, found.seq) for rank, found in sorted(feeders.items()))
    memory = NumberMemory(bad=bad, usual=bad.usual_norm or None)
    return kind, body, FindingDetail(memory=memory, calls=tuple(calls))


def judge_numbers(job: JobState, rows: np.ndarray, now: int, ctx: Context) -> None:
    """Opens a numeric finding where numbers of these steps are bad; else counts good steps, which end an open one.

    rows: (n,) of STEPS that were closed.
    """
    bad = find_non_finite(rows)
    if bad is None and len(job.steps.norms):
        bad = _find_explosion(job, int(rows["step"].min()) if rows.size else 0)
    reported = job.findings.of_kind(Kind.NUMERIC_ALL) + job.findings.of_kind(Kind.NUMERIC_FIRST_RANK)
    if bad is None:
        for finding in reported:
            if not _is_still_exploded(job, finding):
                _count_good_steps(job, finding, rows, now, ctx)
        return
    job.steps.number_due_ns = 0
    for finding in reported:
        _remember_good(finding, 0)
    if not reported:
        open_number_finding(job, ctx, now, bad, place=f"step {bad.step}")


def _find_explosion(job: JobState, first: int) -> BadNumber | None:
    """Steps of short jobs are closed by the hundred: each is judged against those before it, as if they came singly.

    first: the first step that was closed just now.
    """
    count = len(job.steps.norms)
    known = int((job.steps.norm_steps[:, 0] < first).sum())
    for end in sorted({count, *range(known + EXPLOSION_STEPS, count, EXPLOSION_STEPS)}):
        part = slice(max(0, end - EXPLOSION_WINDOW), end)
        numbers = Numbers(
            ranks=job.steps.times.ranks,
            steps=job.steps.norm_steps[part, 0],
            ends_ns=job.steps.norm_steps[part, 1],
            norms=job.steps.norms[part],
            losses=job.steps.losses[part],
        )
        bad = find_explosion(numbers)
        if bad is not None:
            return bad
    return None


def _is_still_exploded(job: JobState, finding: OpenFinding) -> bool:
    """Large norms become the usual ones in the window; the finding remembers what was usual before."""
    usual = _memory(finding).usual
    return usual is not None and len(job.steps.norms) > 0 and float(job.steps.norms[-1].max()) > EXPLOSION_RATIO * usual


def _count_good_steps(job: JobState, finding: OpenFinding, rows: np.ndarray, now: int, ctx: Context) -> None:
    told = (rows["flags"] & _HAS_NUMBERS) != 0  # of a step without numbers nobody knows that they are good
    good = _memory(finding).good + int(np.unique(rows["step"][told]).size)
    _remember_good(finding, good)
    job.unsaved.facts = True
    if good >= GOOD_STEPS_TO_CLEAR:
        clear_finding(job, ctx, now, finding, f"the numbers are good again since {good} steps")


def _memory(finding: OpenFinding) -> NumberMemory:
    memory = finding.detail.memory
    return memory if isinstance(memory, NumberMemory) else NumberMemory(bad=None)


def _remember_good(finding: OpenFinding, good: int) -> None:
    finding.detail = replace(finding.detail, memory=replace(_memory(finding), good=good))
