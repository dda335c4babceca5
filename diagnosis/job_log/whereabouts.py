"""Where the statement that decides comes from, if its own line does not say: from what others of the log say of it.

A rank's node stands in another line of that rank or in the launcher's report; a driver's word has no rank, and the
rank that was hit says the same. Nothing is taken from statements about others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from ...telemetry.vocabulary import Bucket
from .model import Episode, Form, LogLine, StatementGroup, Witness

Name = TypeVar("Name", int, str)
#: Lines of one process stand so close where none says whose it is.
NEAR_LINES = 4


def located(primary: StatementGroup, episode: Episode) -> Witness:
    """The first statement of ``primary`` with the rank, node and device that the episode tells of it."""
    first = primary.first
    if first.points_elsewhere or first.failure.bucket is Bucket.PLANNED:
        return first
    others = [group for group in episode.groups if group is not primary and not group.first.points_elsewhere]
    line = first.line
    if line.rank is None and len(primary.ranks) < 2:
        line = _with_rank(line, first, others)
    if not line.node and line.rank is not None:
        line = replace(line, node=_one(g.first.line.node for g in others if g.first.line.rank == line.rank))
    if not line.node and len(primary.ranks) < 2:
        line = replace(line, node=_one(g.first.line.node for g in others if _is_near(g.first, first, line)))
    device = first.device
    if device is None and line.rank is not None:
        same = [group for group in others if group.first.failure is first.failure]
        device = _one(group.first.device for group in same if group.first.line.rank == line.rank)
    return first if line is first.line and device is first.device else replace(first, line=line, device=device)


def _with_rank(line: LogLine, first: Witness, others: list[StatementGroup]) -> LogLine:
    """The one rank that says the same, else the one whose end the launcher reports."""
    same = [group for group in others if group.first.failure is first.failure and len(group.ranks) < 2]
    rank = _one(group.first.line.rank for group in same if _fits(group.first.line, line))
    if rank is not None:
        return replace(line, rank=rank)
    reports = {
        (group.first.line.rank, group.first.line.node)
        for group in others
        if group.first.form is Form.LAUNCHER and group.first.line.node and len(group.ranks) < 2
    }
    if len(reports) != 1:
        return line
    rank, node = reports.pop()
    return replace(line, rank=rank, node=node) if line.node in (None, "", node) else line


def _is_near(other: Witness, first: Witness, line: LogLine) -> bool:
    """Of the same trouble and the same process, as far as its line tells."""
    apart = abs(other.line.number - line.number)
    return (
        (apart <= 1 or (apart <= NEAR_LINES and other.failure.scope is first.failure.scope))
        and other.line.source == line.source
        and other.line.rank in (None, line.rank)
    )


def _fits(other: LogLine, line: LogLine) -> bool:
    return not other.node or not line.node or other.node == line.node


def _one(names: Iterable[Name | None]) -> Name | None:
    """The name, where all that are told are the same."""
    told = {name for name in names if name is not None and name != ""}
    return told.pop() if len(told) == 1 else None
