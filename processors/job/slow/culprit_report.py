"""Who is named for what slows a job down, and what those who are named have in common. Pure."""

from __future__ import annotations

from typing import Any

from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody, SuspectEntry
from ..findings.finding_body import body, evidence, node_suspect, share, suspect
from ..findings.wording import ranks_words
from ..state.job_state import JobState
from ..topology.culprit import Culprit


def slow_body(job: JobState, *, scope: Scope, severity: Severity = Severity.TICKET, **rest: Any) -> FindingBody:
    """A body of kind ``rank_slow``. rest: what ``finding_body.body`` asks for besides."""
    return body(job, Kind.RANK_SLOW, bucket=Bucket.SPEED_REGRESSION, scope=scope, severity=severity, **rest)


def suspects_of(job: JobState, culprit: Culprit, phase: str | None = None) -> list[SuspectEntry]:
    """Suspects to name: the node, its ranks, or nobody where the program is at fault. phase: where the
    ranks are slow.
    """
    if culprit.scope is Scope.NODE:
        return [node_suspect(culprit.node, culprit.ranks)]
    if culprit.scope is not Scope.RANK and not culprit.like:
        return []
    return [suspect(job, rank, share(culprit.ranks), phase) for rank in culprit.ranks]


def evidence_of_company(culprit: Culprit, now: int) -> list[EvidenceRow]:
    """A row on what slow ranks have in common; empty where one rank is slow by itself."""
    common = _in_common(culprit)
    return [evidence("steps.company", ranks_words(culprit.ranks), now, common)] if common else []


def _in_common(culprit: Culprit) -> str:
    if culprit.scope is Scope.NODE:
        return f"{ranks_words(culprit.ranks)} are slower in the same steps: all ranks of {culprit.node}, and no others"
    if culprit.group:
        return (
            f"{ranks_words(culprit.ranks)} are slower in the same steps: all members of group {culprit.group} and no "
            "others; the part of the work that they do is longer"
        )
    if culprit.like:
        return (
            f"{ranks_words(culprit.ranks)} are slower in the same steps: those that have the same place in group "
            f"{culprit.like} and in each one like it, and no others; the part of the work that they do is longer"
        )
    if culprit.scope is Scope.APPLICATION:
        return (
            f"{ranks_words(culprit.ranks)} was the longest stage from the first step on: most likely the work is cut "
            "so; a machine that is slow from the start would look the same"
        )
    if len(culprit.ranks) > 1:
        return f"{ranks_words(culprit.ranks)} are slower in the same steps; they share neither node nor group"
    return ""
