"""Whether slow ranks are a rank's affair, a node's, or that of a role in the program (a pipeline stage). Pure.

Blame follows what the slow ranks have in common: all of one node and nobody else is the node; all of one process group
is the part that they play, and would move with it to other nodes. A stage that was longest from the first step on was
most likely cut so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....telemetry.vocabulary import Scope
from ..state.job_state import JobState
from .pipeline_stages import sends


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Whom slowness is blamed on. ranks: all that are slow; node: with scope node; group: name of the group that they
    are.

    like: name of one of the groups in each of which they have the same places.
    """

    scope: Scope
    ranks: tuple[int, ...]
    node: str = ""
    group: str = ""
    like: str = ""


def whose_slowness(job: JobState, ranks: Sequence[int], *, always: bool) -> Culprit:
    """Whom to blame for slow ranks: the program, their node, or the ranks. ranks: not empty.

    always: they were slow from the start, so that nothing happened to them.
    """
    slow = tuple(sorted(ranks))
    group = _group_of(job, slow)
    nodes = {job.node_of(rank) for rank in slow}
    of_node = tuple(sorted(rank for rank in job.ranks if job.node_of(rank) in nodes))
    if always and (group or sends(job)):
        return Culprit(scope=Scope.APPLICATION, ranks=slow, group=group)
    if len(slow) > 1 and len(nodes) == 1 and of_node == slow and len(of_node) < len(job.ranks):
        return Culprit(scope=Scope.NODE, ranks=slow, node=nodes.pop())
    if group:
        return Culprit(scope=Scope.APPLICATION, ranks=slow, group=group)
    if len(slow) > 1 and (like := _part_of(job, slow)):
        return Culprit(scope=Scope.APPLICATION, ranks=slow, like=like)
    return Culprit(scope=Scope.RANK, ranks=slow)


def have_something_in_common(job: JobState, ranks: Sequence[int]) -> bool:
    """Whether these ranks are whole nodes, one group, or play one part in every group of a kind.

    One look in a tenth of a second is coarse where steps are as long as some whole number of looks: for many steps on
    end the same ranks seem to work longer, and they are anywhere.
    """
    slow = tuple(sorted(ranks))
    nodes = {job.node_of(rank) for rank in slow}
    of_nodes = tuple(sorted(rank for rank in job.ranks if job.node_of(rank) in nodes))
    return slow == of_nodes or bool(_group_of(job, slow)) or bool(_part_of(job, slow))


def _part_of(job: JobState, ranks: tuple[int, ...]) -> str:
    """A group in which they have the places that they have in each group of its size, "" none: an expert, say."""
    slow = set(ranks)
    places: dict[int, set[tuple[int, ...]]] = {}
    named: dict[int, str] = {}
    covered: dict[int, set[int]] = {}
    for index, members in enumerate(job.groups.members):
        if 1 < members.size < len(job.ranks):
            whose = members.tolist()
            places.setdefault(members.size, set()).add(tuple(at for at, rank in enumerate(whose) if rank in slow))
            covered.setdefault(members.size, set()).update(whose)
            named.setdefault(members.size, job.groups.name_of(index))
    for size, found in sorted(places.items()):
        if len(found) == 1 and 0 < len(next(iter(found))) < size and len(covered[size]) == len(job.ranks):
            return named[size]
    return ""


def _group_of(job: JobState, ranks: tuple[int, ...]) -> str:
    """Name of the smaller group whose members are exactly these ranks, "" if there is none or it is a single rank."""
    if len(ranks) < 2 or len(ranks) == len(job.ranks):
        return ""
    for index, members in enumerate(job.groups.members):
        if tuple(members.tolist()) == ranks:
            return job.groups.name_of(index)
    return ""
