"""Sends and receives on devices, whose ends nobody tells: who exchanges with whom, and is held up by it unseen.

In a pipeline all ranks of the stages around one that stands still wait for it in receives, and look as idle as its
culprit does. The culprit is the one whose own peers wait for it in a collective; who only exchanges with them is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .state import JobState
from .waiting import Blockage, Wait, edges_of, longest_wait_for

Partners = Mapping[int, frozenset[int]]


def partners_of(job: JobState) -> dict[int, frozenset[int]]:
    """By rank whose device has sent or received in a group that tells no end of it: the group's other members."""
    rows = job.group_rows
    on_device = np.array([*job.on_device, False], bool)[np.minimum(rows["group"], len(job.on_device))]
    mute = on_device & (job.group_stamps > 0) & (rows["p2p_enqueued"] > 0) & (rows["p2p_completed"] < 0)
    members = {group: frozenset(job.members[group].tolist()) for group in np.unique(rows["group"][mute]).tolist()}
    partners: dict[int, frozenset[int]] = {}
    for rank, group in zip(rows["rank"][mute].tolist(), rows["group"][mute].tolist(), strict=True):
        partners[rank] = partners.get(rank, frozenset()) | members[group] - {rank}
    return partners


def without_held_up(job: JobState, blockage: Blockage, waits: Sequence[Wait]) -> Blockage:
    """``blockage`` without the suspects that others of them hold up. As it is where that is not known."""
    if blockage.sort != "missing" or len(blockage.suspects) < 2:
        return blockage
    partners = partners_of(job)
    return narrowed(blockage, waits, partners) if partners else blockage


def narrowed(blockage: Blockage, waits: Sequence[Wait], partners: Partners) -> Blockage:
    """With those suspects only for whom ranks wait that exchange, directly or through others, with other suspects:
    these are held up by them. As it is where there are none."""
    edges, suspects = edges_of(waits), frozenset(blockage.suspects)
    holding = [_holding_up(rank, suspects, edges, partners) for rank in blockage.suspects]
    kept = tuple(sorted(frozenset().union(*holding)))
    if not kept or len(kept) == len(suspects):
        return blockage
    direct = max((wait for rank in kept if (wait := longest_wait_for(waits, rank))), key=lambda wait: wait.age_ns)
    waiting = tuple(sorted({*blockage.waiting, *suspects} - set(kept)))
    return replace(blockage, suspects=kept, wait=direct, waiting=waiting)


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
