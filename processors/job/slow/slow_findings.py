"""Findings about slow ranks, opened and ended by the steps that were closed."""

from __future__ import annotations

from dataclasses import replace

from ....telemetry.vocabulary import Kind, Severity
from ...operator import Context
from ..detectors.slow.lag_coupling import lead_over
from ..detectors.slow.straggler import find_straggler
from ..detectors.slow.straggler_memory import StragglerMemory
from ..findings.register import clear_finding, open_finding, raise_severity, replace_finding
from ..intake.device_groups import has_device_groups
from ..state.finding_memory import FindingDetail, SlowRankMemory
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from . import slow_rank_report
from .pace_findings import judge_pace
from .rank_detectors import (
    SLOW_RANK_DETECTORS,
    comparable_times,
    detected_straggler,
    is_coupled,
    was_always_slow,
    why_over,
)

#: A rank that is slow as long as its steps are known is noticed at once, and a ticket when that has lasted so long.
ALWAYS_SLOW_TICKET_NS = 60_000_000_000


def judge_speed(job: JobState, now: int, ctx: Context) -> None:
    """Opens and clears findings of ranks that are slow in their steps or saves; then judges the pace of all ranks."""
    slow = job.findings.of_kind(Kind.RANK_SLOW)
    for finding in slow:
        if because := why_over(job, finding):
            clear_finding(job, ctx, now, finding, because)
        else:
            _ask_if_it_lasts(job, finding, now, ctx)
    if job.findings.stopping() is None:
        if slow:
            _look_for_another(job, slow, now, ctx)
        else:
            _look_for_slow_ranks(job, now, ctx)
    judge_pace(job, now, ctx)


def _look_for_slow_ranks(job: JobState, now: int, ctx: Context) -> None:
    for detector in SLOW_RANK_DETECTORS:
        found = detector.find(job, now)
        if found is not None:
            detail = FindingDetail(memory=found.memory)
            open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=found.place, body=found.body, detail=detail)
            return


def _look_for_another(job: JobState, slow: list[OpenFinding], now: int, ctx: Context) -> None:
    """A standing finding masks no other: who became slow is left out of the comparison, who always was stays in it, as
    it is part of what is usual here, and may have become slower still."""
    on_device = has_device_groups(job)
    if on_device and not all(map(was_always_slow, slow)):
        return
    became = {rank for finding in slow if not was_always_slow(finding) for rank in _slow_ranks(finding)}
    times = comparable_times(job)
    found = find_straggler(times.without(became) if became else times, on_device=on_device)
    if found is None or not found.based or not is_coupled(job, found):
        return
    known = {rank for finding in slow for rank in _slow_ranks(finding)}
    lead_ns = lead_over(times, found, known)
    # Who became slow before the first one was told became so with it.
    together = next((each for each in slow if not was_always_slow(each) and found.onset_ns <= each.found_ns), None)
    if together is not None:
        memory = together.detail.memory
        if isinstance(memory, StragglerMemory) and lead_ns > -found.excess_ns / 2.0:
            company = {*_slow_ranks(together), *found.company} - {found.rank}
            body = slow_rank_report.straggler_body(job, replace(found, company=tuple(sorted(company))), now)
            others = {*company, found.rank} - {memory.rank}
            detail = FindingDetail(memory=replace(memory, company=tuple(sorted(others))))
            replace_finding(job, ctx, now, together, kind=Kind.RANK_SLOW, body=body, detail=detail)
    elif lead_ns > 0.0:
        told = detected_straggler(job, found, now)
        detail = FindingDetail(memory=told.memory)
        before = next((finding for finding in slow if _slowest(finding) == found.rank), None)
        if before is not None:
            replace_finding(job, ctx, now, before, kind=Kind.RANK_SLOW, body=told.body, detail=detail)
        elif found.rank not in known:
            open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=told.place, body=told.body, detail=detail)


def _slowest(finding: OpenFinding) -> int:
    """The rank that was found; -1 of a release that did not say."""
    memory = finding.detail.memory
    return memory.rank if isinstance(memory, SlowRankMemory) else -1


def _slow_ranks(finding: OpenFinding) -> set[int]:
    """Nobody is suspected where they play one part: the finding remembers them."""
    company = finding.detail.memory.company if isinstance(finding.detail.memory, StragglerMemory) else ()
    return {_slowest(finding), *company, *finding.suspects}


def _ask_if_it_lasts(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
    if finding.body.severity is Severity.INFO and now - finding.found_ns >= ALWAYS_SLOW_TICKET_NS:
        raise_severity(job, ctx, now, finding, Severity.TICKET)
