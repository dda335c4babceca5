"""Who waits for whom, over all groups and P2P edges, and who waits for nobody: the root of a hang.

A rank that is late in one group because it waits in another is a victim; the sink of the wait-for graph is not.
A cycle without a way out is a deadlock: the order of calls is wrong, no rank is.

Method: sinks and cycles of the wait-for graph (deadlock detection after Knapp 1987).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An open operation of ``rank``: the oldest of its group, sequence ``seq``.

    missing: members that have not entered it; unknown: members that cannot be seen (blind, silent).
    Both empty: everyone is in, and the operation still does not end.
    launched: those of ``missing`` whose host has called it and whose device has not come to it.
    passed: a send whose rank has begun another phase since: it did not stay in the call.
    within: all have entered it and nobody has left it, so that its rank is held up by what moves the data.
    behind: all have entered it and others have left it: the row is old, or the data comes late to its rank.
    """

    rank: int
    group: int
    seq: int
    op: int
    p2p: bool
    age_ns: int
    since_ns: int
    missing: tuple[int, ...]
    unknown: tuple[int, ...] = ()
    launched: tuple[int, ...] = ()
    passed: bool = False
    within: bool = False
    behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blockage:
    """What a set of waits comes down to.

    sort: "missing" (suspects wait for nobody), "deadlock" (cycle), "unknown" (only unseen ranks could be guilty),
          "inside" (everyone is in and it does not end).
    wait: the oldest wait for a suspect, or the oldest of all; waiting: every rank that stands still.
    """

    sort: str
    suspects: tuple[int, ...]
    wait: Wait
    waiting: tuple[int, ...]
    cycle: tuple[int, ...] = ()


def find_blockage(waits: Sequence[Wait], old_ns: int) -> Blockage | None:
    """Who holds up the waits of ``old_ns`` and more; None: nobody waits so long.

    waits: every open operation, young ones too (a rank that waits since 1 s is no root).
    """
    old = [wait for wait in waits if wait.age_ns >= old_ns]
    if not old:
        return None
    edges = edges_of(waits)
    reached = _reachable(edges, {wait.rank for wait in old if wait.missing})
    everyone = tuple(sorted({wait.rank for wait in waits}))
    # Who stands in a call for ranks that nobody sees is held up by them, and is no root.
    held_unseen = {wait.rank for wait in waits if wait.unknown and not wait.missing}
    ends = {rank for rank in reached if rank not in edges}
    # Nor is who stands in a call that all have entered: what moves the data holds up them all.
    held_within = {wait.rank for wait in waits if wait.within}
    sinks = tuple(sorted(ends - held_unseen - held_within))
    if sinks:
        return _blockage("missing", sinks, old, everyone)
    if reached and not ends:
        return _judge_cycle(waits, old, edges, reached, everyone)
    unseen = tuple(
        sorted({rank for wait in waits if wait.age_ns >= old_ns or wait.rank in ends for rank in wait.unknown})
    )
    if unseen:
        return _blockage("unknown", unseen, old, everyone)
    within = [wait for wait in waits if wait.within and wait.rank in ends] or old
    return Blockage(sort="inside", suspects=(), wait=max(within, key=_age), waiting=everyone)


def edges_of(waits: Sequence[Wait]) -> dict[int, frozenset[int]]:
    """By rank, the ranks it waits for; ranks that wait for nobody are left out. Thousands that wait for the same share
    a set.
    """
    shared: dict[int, frozenset[int]] = {}  # by identity of ``missing``, which ``find_waits`` makes once a call
    edges: dict[int, frozenset[int]] = {}
    for wait in waits:
        if not wait.missing:
            continue
        targets = shared.get(id(wait.missing))
        if targets is None:
            targets = shared[id(wait.missing)] = frozenset(wait.missing)
        before = edges.get(wait.rank)
        edges[wait.rank] = targets if before is None else before | targets
    return edges


def longest_wait_for(waits: Sequence[Wait], rank: int) -> Wait | None:
    """The oldest wait that ``rank`` could end by entering, as one missing or unseen; None: nobody waits for it."""
    return max((wait for wait in waits if rank in wait.missing or rank in wait.unknown), key=_age, default=None)


def _judge_cycle(
    waits: Sequence[Wait],
    old: Sequence[Wait],
    edges: Mapping[int, frozenset[int]],
    reached: set[int],
    everyone: tuple[int, ...],
) -> Blockage:
    """A rank that went on after each of its open calls is not held up by them: it may be elsewhere, and the root."""
    held = {wait.rank for wait in waits if wait.missing and not wait.passed}
    free = {rank for rank in reached if rank not in held}
    if free and held:
        strict = {rank: targets for rank, targets in edges.items() if rank in held}
        sinks = tuple(sorted(_reachable(strict, {wait.rank for wait in old if wait.rank in held}) & free))
        if sinks:
            return _blockage("missing", sinks, old, tuple(rank for rank in everyone if rank not in sinks))
    cycle = tuple(sorted(rank for rank in reached if rank in _reachable(edges, edges[rank])))
    oldest = max((wait for wait in old if wait.rank in cycle), key=_age, default=max(old, key=_age))
    return Blockage(sort="deadlock", suspects=(), wait=oldest, waiting=everyone, cycle=cycle)


def _blockage(sort: str, suspects: tuple[int, ...], old: Sequence[Wait], everyone: tuple[int, ...]) -> Blockage:
    named = frozenset(suspects)
    direct = [wait for wait in old if not named.isdisjoint(wait.missing) or not named.isdisjoint(wait.unknown)]
    waiting = tuple(rank for rank in everyone if rank not in named)
    return Blockage(sort=sort, suspects=suspects, wait=max(direct or old, key=_age), waiting=waiting)


def _reachable(edges: Mapping[int, frozenset[int]], starts: Collection[int]) -> set[int]:
    seen: set[int] = set()
    followed: set[int] = set()  # by identity: a set that thousands share is followed once
    frontier = list(starts)
    while frontier:
        rank = frontier.pop()
        if rank in seen:
            continue
        seen.add(rank)
        targets = edges.get(rank)
        if targets is not None and id(targets) not in followed:
            followed.add(id(targets))
            frontier.extend(targets)
    return seen


def _age(wait: Wait) -> tuple[int, int]:
    """Oldest first; of equals, the lowest rank, so that the order of rows changes nothing."""
    return (wait.age_ns, -wait.rank)
