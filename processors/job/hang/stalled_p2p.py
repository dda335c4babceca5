"""Devices that all stand in sends and receives, whose ends nobody tells: what moves the data does not get on.

One rank that stands still holds up its pipeline, and all others wait in a collective. So where devices of many
pipelines have not come to what their hosts have launched, none of them is the reason. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..columns.rows import pick
from ..detectors.hang.wait_graph import Blockage, Wait
from ..intake.device_groups import has_device_groups, longest_on_device_ns
from ..intake.progress import read_ns
from ..intake.wait_thresholds import FLOOR_NS
from ..state.job_state import FRESH_NS, JobState
from ..topology.p2p_peers import Partners, partners_of
from .urgency import ladder

#: So many devices that have nothing to do with each other do not stop at one time, each for a reason of its own.
FEWEST_APART = 3
_NEVER = np.iinfo(np.int64).max


def are_held_up_by_exchanges(job: JobState, blockage: Blockage, waits: Sequence[Wait]) -> bool:
    """Whether all suspects have called everything, and their devices may stand in sends or receives in
    several places.
    """
    called = {rank for wait in waits for rank in wait.launched}
    if blockage.sort != "missing" or not called.issuperset(blockage.suspects):
        return False
    return _places(job, blockage.suspects) >= FEWEST_APART


def find_stalled_exchanges(job: JobState, waits: Sequence[Wait]) -> Blockage | None:
    """A blockage whose suspects are ranks whose devices may all stand in sends or receives; None: it is not so.

    It is, where no device of the job has ended anything for long, though each has something to do.
    """
    if not has_device_groups(job):
        return None
    rows = job.groups.rows
    stands = (
        (job.groups.stamps > 0)
        & (rows["open"] > 0)
        & (rows["completed"] >= 0)
        & job.groups.are_on_device()[rows["group"]]
    )
    if not stands.any() or int(job.groups.open_ages_ns[stands].min()) < FLOOR_NS:
        return None  # cheap, and nearly always the answer
    ranks, rows = job.alive(), pick(rows, stands)
    age_ns = np.full(max(int(rows["rank"].max()), *job.ranks, 0) + 1, _NEVER)
    np.minimum.at(age_ns, rows["rank"], rows["open_age_ns"])
    if len(ranks) < max(job.world_size, 2) or (age_ns[ranks] == _NEVER).any():
        return None  # a device without anything to do waits for its host
    limit_ns = max(_patience_ns(job, group) for group in np.unique(rows["group"]).tolist())
    if int(age_ns[ranks].min()) < limit_ns or not _are_seen_well(job, ranks):
        return None
    waiting = {wait.rank for wait in waits}
    standing = tuple(rank for rank in ranks if rank not in waiting)
    if _places(job, standing) < FEWEST_APART:
        return None
    rows = pick(rows, np.isin(rows["rank"], standing))
    row = rows[int(rows["open_age_ns"].argmax())]
    rank, waited_ns = int(row["rank"]), int(row["open_age_ns"])
    wait = Wait(
        rank=rank,
        group=int(row["group"]),
        seq=int(row["completed"]) + 1,
        op=int(row["op"]),
        p2p=False,
        age_ns=waited_ns,
        since_ns=read_ns(job, rank) - waited_ns,
        missing=(),
    )
    return Blockage(sort="inside", suspects=standing, wait=wait, waiting=tuple(sorted(waiting)))


def _patience_ns(job: JobState, group: int) -> int:
    return ladder(job, longest_on_device_ns(job, group), job.groups.known[group].timeout_s).notice_ns


def _are_seen_well(job: JobState, ranks: Sequence[int]) -> bool:
    """All rows are new, and no process is stopped."""
    fresh = job.progress.stamps[list(ranks)] >= job.progress.newest_stamp_ns - FRESH_NS
    return bool(fresh.all()) and not job.blind_ranks and not any(job.ranks[rank].stopped_ns for rank in ranks)


def _places(job: JobState, ranks: Sequence[int]) -> int:
    return places_apart({rank: job.node_of(rank) for rank in ranks}, partners_of(job))


def places_apart(node_of: Mapping[int, str], partners: Partners) -> int:
    """In how many sets ranks fall that share no exchange and no node, directly or through others.

    node_of: by rank, its node; partners: by rank, whom it exchanges with. 0 where a rank exchanges with nobody.
    """
    if not partners.keys() >= node_of.keys():
        return 0
    on_node: dict[str, set[int]] = {}
    for rank, node in node_of.items():
        on_node.setdefault(node, set()).add(rank)
    left, places = set(node_of), 0
    while left:
        frontier = [left.pop()]
        places += 1
        while frontier:
            rank = frontier.pop()
            reached = (partners[rank] | on_node[node_of[rank]]) & left
            left -= reached
            frontier += reached
    return places
