"""Sends and receives on devices, whose ends nobody tells: who exchanges with whom, and is held up by it unseen.

In a pipeline all ranks of the stages around one that stands still wait for it in receives, and look as idle as its
culprit does. The culprit is the one whose own peers wait for it in a collective; who only exchanges with them is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ....telemetry.vocabulary import Phase
from ..detectors.hang.wait_graph import Blockage, Wait, edges_of, longest_wait_for
from ..state.job_state import JobState

Partners = Mapping[int, frozenset[int]]


def partners_of(job: JobState) -> dict[int, frozenset[int]]:
    """By rank whose device sent or received in a group that tells no ends of that: all other members of
    these groups.
    """
    rows = job.groups.rows
    on_device = np.array([*job.groups.on_device, False], bool)[np.minimum(rows["group"], len(job.groups.on_device))]
    mute = on_device & (job.groups.stamps > 0) & (rows["p2p_enqueued"] > 0) & (rows["p2p_completed"] < 0)
    members = {
        group: frozenset(job.groups.members[group].tolist()) for group in np.unique(rows["group"][mute]).tolist()
    }
    partners: dict[int, frozenset[int]] = {}
    for rank, group in zip(rows["rank"][mute].tolist(), rows["group"][mute].tolist(), strict=True):
        partners[rank] = partners.get(rank, frozenset()) | members[group] - {rank}
    return partners


def without_held_up(job: JobState, blockage: Blockage, waits: Sequence[Wait]) -> Blockage:
    """``blockage`` without suspects that other suspects hold up in sends or receives; as it is where
    that is not known.
    """
    if blockage.sort != "missing" or len(blockage.suspects) < 2:
        return blockage
    partners = partners_of(job)
    if not partners:
        return blockage
    blockage = narrowed(blockage, waits, partners)
    fetching = frozenset(rank for rank in blockage.suspects if _fetches(job, rank))
    return only_fetching(blockage, waits, fetching)


def _fetches(job: JobState, rank: int) -> bool:
    row = job.progress.row_of(rank)
    return row is not None and int(row["phase"]) == Phase.DATA


def only_fetching(blockage: Blockage, waits: Sequence[Wait], fetching: frozenset[int]) -> Blockage:
    """``blockage`` with those suspects only whose hosts still fetch this step's data; as it is where that is not
    enough.

    It is, where all other suspects have called what they are waited for in: these are held up behind them.
    """
    called = {rank for wait in waits for rank in wait.launched}
    late = fetching - called
    if not late or len(late) == len(blockage.suspects) or not called.issuperset(set(blockage.suspects) - late):
        return blockage
    return _with_suspects(blockage, waits, late)


def narrowed(blockage: Blockage, waits: Sequence[Wait], partners: Partners) -> Blockage:
    """``blockage`` with those suspects only for whom their own exchange partners wait: they hold up the others.

    As it is where there are none, or it would be all.
    """
    edges, suspects = edges_of(waits), frozenset(blockage.suspects)
    holding = [_holding_up(rank, suspects, edges, partners) for rank in blockage.suspects]
    kept = tuple(sorted(frozenset().union(*holding)))
    if not kept or len(kept) == len(suspects):
        return blockage
    return _with_suspects(blockage, waits, frozenset(kept))


def _with_suspects(blockage: Blockage, waits: Sequence[Wait], kept: frozenset[int]) -> Blockage:
    direct = max((wait for rank in kept if (wait := longest_wait_for(waits, rank))), key=lambda wait: wait.age_ns)
    waiting = tuple(sorted({*blockage.waiting, *blockage.suspects} - kept))
    return replace(blockage, suspects=tuple(sorted(kept)), wait=direct, waiting=waiting)


def _holding_up(
    rank: int, suspects: frozenset[int], edges: Mapping[int, frozenset[int]], partners: Partners
) -> frozenset[int]:
    """Other suspects for whom somebody waits with whom this one exchanges. Who waits for a rank itself does not keep it
    waiting: that would be a deadlock."""
    nobody: frozenset[int] = frozenset()
    seen, frontier, found = {rank}, [rank], nobody
    while frontier:
        one = frontier.pop()
        waited_for = edges.get(one, nobody) if one != rank else nobody
        found |= waited_for & suspects - {rank}
        through = {other for other in partners.get(one, nobody) if one not in edges.get(other, nobody)}
        new = (waited_for | through) - seen
        seen |= new
        frontier += new
    return found
