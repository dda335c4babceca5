"""Sends and receives on devices, whose ends nobody tells: who exchanges with whom, and is held up by it unseen.

In a pipeline all ranks of the stages around one that stands still wait for it in receives, and look as idle as its
culprit does. The culprit is the one whose own peers wait for it in a collective; who only exchanges with them is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...telemetry.vocabulary import Phase
from .state import JobState
from .waiting import Blockage, Wait, edges_of, longest_wait_for

Partners = Mapping[int, frozenset[int]]
#: So many devices that have nothing to do with each other do not stop at one time, each for a reason of its own.
FEWEST_APART = 3


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
    if not partners:
        return blockage
    blockage = narrowed(blockage, waits, partners)
    fetching = frozenset(rank for rank in blockage.suspects if _fetches(job, rank))
    return only_fetching(blockage, waits, fetching)


def _fetches(job: JobState, rank: int) -> bool:
    row = job.progress_row(rank)
    return row is not None and int(row["phase"]) == Phase.DATA


def only_fetching(blockage: Blockage, waits: Sequence[Wait], fetching: frozenset[int]) -> Blockage:
    """With those suspects only whose hosts still fetch this step's data, where those of all others have called what
    they are waited for in: these are held up behind them, whatever their devices stand in. As it is else."""
    called = {rank for wait in waits for rank in wait.launched}
    late = fetching - called
    if not late or len(late) == len(blockage.suspects) or not called.issuperset(set(blockage.suspects) - late):
        return blockage
    return _with_suspects(blockage, waits, late)


def are_held_up_by_exchanges(job: JobState, blockage: Blockage, waits: Sequence[Wait]) -> bool:
    """Whether the suspects' hosts have called everything and their devices may stand in sends and receives, in so many
    places apart that none of these ranks is the reason: what moves the data between them does not get on."""
    called = {rank for wait in waits for rank in wait.launched}
    partners = partners_of(job)
    if blockage.sort != "missing" or not called.issuperset(blockage.suspects) or not partners:
        return False
    ranks = np.array(sorted(job.ranks))
    waited_in = {wait.group for wait in waits}
    inner = dict(zip(ranks.tolist(), job.inner_groups(ranks).tolist(), strict=True))
    near = {
        rank: (job.node_of(rank), -1 if inner.get(rank, -1) in waited_in else inner[rank]) for rank in blockage.suspects
    }
    return places_apart(near, partners) >= FEWEST_APART


def places_apart(near: Mapping[int, tuple[str, int]], partners: Partners) -> int:
    """In how many places suspects stand that share no exchange, no node and no smallest group, directly or through
    others of them; 0 where one of them exchanges with nobody. near: by suspect, its node and its smallest group, -1
    none, or one in which others wait for it.
    """
    if not partners.keys() >= near.keys():
        return 0
    beside: dict[str | int, set[int]] = {}
    for rank, places in near.items():
        for place in places:
            beside.setdefault(place, set()).add(rank)
    beside.pop(-1, None)
    left, places_found = set(near), 0
    while left:
        frontier = [left.pop()]
        places_found += 1
        while frontier:
            rank = frontier.pop()
            reached = partners[rank].union(*(beside.get(place, ()) for place in near[rank])) & left
            left -= reached
            frontier += reached
    return places_found


def narrowed(blockage: Blockage, waits: Sequence[Wait], partners: Partners) -> Blockage:
    """With those suspects only for whom ranks wait that exchange, directly or through others, with other suspects:
    these are held up by them. As it is where there are none."""
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
