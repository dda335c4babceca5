"""Findings of numbers gone bad: opened once, and told anew when ranks say what they fed into operations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ....telemetry.vocabulary import Kind
from ...finding_document import FindingBody
from ...operator import Context
from ..detectors.numeric.bad_numbers import BadNumber
from ..findings.call_sites import Asked, asked_detail
from ..findings.register import open_finding, replace_finding
from ..state.job_state import JobState
from . import number_report
from .bad_inputs import find_feeders


def open_number_finding(job: JobState, ctx: Context, now: int, bad: BadNumber, *, place: str) -> None:
    """place: the first bad one, as in ``open_finding``."""
    kind, body, detail = _described(job, bad, now)
    open_finding(job, ctx, now, kind=kind, place=place, body=body, detail=detail)


def revise_number_findings(job: JobState, ctx: Context, now: int) -> None:
    """What other nodes' ranks fed into operations may come after the numbers."""
    for finding in job.findings.of_kind(Kind.NUMERIC_ALL) + job.findings.of_kind(Kind.NUMERIC_FIRST_RANK):
        told = finding.detail.get("bad")
        if told is None:
            continue
        bad = BadNumber(**{**told, "ranks": tuple(told["ranks"]), "all_ranks": tuple(told["all_ranks"])})
        kind, body, detail = _described(job, bad, now)
        if detail.get("calls") != finding.detail.get("calls"):
            replace_finding(job, ctx, now, finding, kind=kind, body=body, detail={**finding.detail, **detail})


def _described(job: JobState, bad: BadNumber, now: int) -> tuple[Kind, FindingBody, dict[str, Any]]:
    feeders = find_feeders(job, -1 if bad.calls_before >= 0 else bad.step)
    kind, body = number_report.number_body(job, bad, feeders, now)
    detail: dict[str, Any] = {"bad": asdict(bad)}
    if bad.usual_norm:
        detail["usual"] = bad.usual_norm
    if feeders:
        asked = (Asked(rank, found.group, found.point_to_point, found.seq) for rank, found in sorted(feeders.items()))
        detail |= asked_detail(asked)
    return kind, body, detail
