"""Whether slow ranks are a rank's affair, a node's, or that of a role in the program (a pipeline stage). Pure.

Blame follows what the slow ranks have in common: all of one node and nobody else is the node; all of one process group
is the part that they play, and would move with it to other nodes. A stage that was longest from the first step on was
most likely cut so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...telemetry.vocabulary import Scope
from .state import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """ranks: all that are slow; node: with scope node; group: name of the group that they are, with a role."""

    scope: Scope
    ranks: tuple[int, ...]
    node: str = ""
    group: str = ""


def whose_slowness(job: JobState, ranks: Sequence[int], *, always: bool) -> Culprit:
    """always: they were slow from the start, so that nothing happened to them."""
    slow = tuple(sorted(ranks))
    group = _group_of(job, slow)
    nodes = {job.node_of(rank) for rank in slow}
    of_node = tuple(sorted(rank for rank in job.ranks if job.node_of(rank) in nodes))
    if always and (group or _has_stages(job)):
        return Culprit(scope=Scope.APPLICATION, ranks=slow, group=group)
    if len(slow) > 1 and len(nodes) == 1 and of_node == slow and len(of_node) < len(job.ranks):
        return Culprit(scope=Scope.NODE, ranks=slow, node=nodes.pop())
    if group:
        return Culprit(scope=Scope.APPLICATION, ranks=slow, group=group)
    return Culprit(scope=Scope.RANK, ranks=slow)


def _group_of(job: JobState, ranks: tuple[int, ...]) -> str:
    """Name of the smaller group whose members are exactly these ranks, "" if there is none or it is a single rank."""
    if len(ranks) < 2 or len(ranks) == len(job.ranks):
        return ""
    for index, members in enumerate(job.members):
        if tuple(members.tolist()) == ranks:
            return job.group_name(index)
    return ""


def _has_stages(job: JobState) -> bool:
    """Ranks that send to one another do different parts of the work."""
    return bool((job.group_rows["p2p_enqueued"] > 0).any())
