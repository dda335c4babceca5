"""Sends and receives: who waits for a partner that has not called. Pure.

Their numbers (``p2p_seq_id``) count all sends and receives of a rank in a group, so two ranks' numbers only agree where
both talk to nobody else there. Elsewhere open receives are counted against open sends of the same pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .process_groups import ProcessGroup
from .rank_dump import DumpEntry


@dataclass(frozen=True, slots=True)
class PairWait:
    """``rank`` is in ``entry``, a send to or a receive from ``peer``, which is not in its part of it.

    is_silent: there is no dump of the peer.
    """

    rank: int
    peer: int
    entry: DumpEntry
    is_silent: bool


def pair_waits(group: ProcessGroup) -> Iterator[PairWait]:
    """For each two ranks of a group the first open send or receive that the partner has not joined."""
    peers = {rank: {peer for entry in view.pairs if (peer := peer_of(group, rank, entry)) is not None}
             for rank, view in group.views.items()}  # fmt: skip
    opened: dict[tuple[int, int, bool], list[DumpEntry]] = defaultdict(list)
    for rank, view in group.views.items():
        for entry in view.pairs:
            peer = peer_of(group, rank, entry) if entry.is_open else None
            if peer is not None:
                opened[rank, peer, entry.op == "send"].append(entry)
    told: set[tuple[int, int]] = set()
    for (rank, peer, is_send), entries in opened.items():
        if (rank, peer) in told:
            continue
        first = _first_alone(group, rank, peer, entries, opened.get((peer, rank, not is_send), []), peers)
        if first is not None:
            told.add((rank, peer))
            yield PairWait(rank, peer, first, peer not in group.views)


def peer_of(group: ProcessGroup, rank: int, entry: DumpEntry) -> int | None:
    """The global rank at the other end of a send or receive.

    None: no such entry, any source, or a place that is outside the group or the rank's own.
    """
    place = entry.target if entry.op == "send" else entry.source if entry.op == "recv" else None
    if place is None or place >= len(group.members) or group.members[place] == rank:
        return None
    return group.members[place]


def _first_alone(
    group: ProcessGroup,
    rank: int,
    peer: int,
    mine: list[DumpEntry],
    theirs: list[DumpEntry],
    peers: dict[int, set[int]],
) -> DumpEntry | None:
    view = group.views.get(peer)
    if view is None:
        return mine[0]
    if peers[rank] == {peer} and peers[peer] <= {rank}:
        reached = max((entry.p2p_sequence for entry in view.pairs), default=-1)
        if not view.pairs and view.status is not None:
            reached = view.status.enqueued
        return next((entry for entry in mine if entry.p2p_sequence > reached), None)
    return mine[len(theirs)] if len(mine) > len(theirs) else None
