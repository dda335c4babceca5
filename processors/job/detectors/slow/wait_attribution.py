"""How long each rank's host stood still for others: the waits that turn step time into self time.

Arrivals (enqueue times) on a shared clock are exact, completions seen by polling are not, so a wait lasts from a rank's
own arrival to the last arrival, never beyond its own completion. Between nodes only durations compare.
Overlapping waits count once. What C++ waits for (DDP's buckets) is taken to be waited for where it is called, as no
ring tells. Who waits for a call only later, maybe steps later, stands still from then on, or not at all if it has ended
by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....telemetry.vocabulary import EventFlag, Op, Phase
from ...columns.rows import concatenate, copy_of
from ..desync.matching import Joined

#: A wait() that begins later than this after its call was not made with it.
LATE_NS = 1_000_000
_RANK_BITS = 32
_TIME_BITS = 48  # 78 hours from the first row: more than a step lasts
_FROM_ROOT = np.zeros(256, bool)
_FROM_ROOT[[int(Op.BROADCAST), int(Op.SCATTER)]] = True
_TO_ROOT = np.zeros(256, bool)
_TO_ROOT[[int(Op.REDUCE), int(Op.GATHER)]] = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Where a rank stands within a group. Sorted: a table of groups by ranks has 34 million places in a large job."""

    keys: np.ndarray  # group and rank of every member in one number, ascending
    place: np.ndarray  # of each of these within its group
    groups: int  # how many there are

    @classmethod
    def of(cls, members: Sequence[np.ndarray]) -> Places:
        """Places within groups. members: by group index, the ranks of each, in the group's order."""
        if not members:
            return cls(keys=np.zeros(0, np.int64), place=np.zeros(0, np.int64), groups=0)
        sizes = [each.size for each in members]
        keys = np.repeat(np.arange(len(members)), sizes) << _RANK_BITS | np.concatenate(members)
        order = np.argsort(keys, kind="stable")
        place = np.concatenate([np.arange(size) for size in sizes])
        return cls(keys=keys[order], place=place[order], groups=len(members))

    def with_more(self, members: Sequence[np.ndarray]) -> Places:
        """A new table with groups added after the known ones, whose indices continue theirs. members:
        ranks by group.
        """
        more = Places.of(members)
        return Places(
            keys=np.concatenate([self.keys, more.keys + (self.groups << _RANK_BITS)]),
            place=np.concatenate([self.place, more.place]),
            groups=self.groups + more.groups,
        )

    def find(self, group: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """By row, the place of ``rank`` within ``group``, -1 where the rank is no member. group, rank: (n,)."""
        if not self.keys.size:
            return np.full(group.size, -1, np.int64)
        wanted = group.astype(np.int64) << _RANK_BITS | rank
        at = np.searchsorted(self.keys, wanted, side="right") - 1
        return np.where(self.keys[at] == wanted, self.place[at], -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupShape:
    """Per group index: how many members it has, whether one clock serves all of them, and where each stands."""

    sizes: np.ndarray
    one_clock: np.ndarray
    places: Places


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepEdges:
    """When each rank's steps began and ended: (rows,) by rank, then step."""

    rank: np.ndarray
    step: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray

    def end_of(self, rank: np.ndarray, step: np.ndarray) -> np.ndarray:
        """By row, when the rank's step ended, in ns; 0 where that is not known. rank, step: (n,)."""
        key, wanted = (self.rank << _TIME_BITS) + self.step, (rank << _TIME_BITS) + step
        place = np.minimum(np.searchsorted(key, wanted), key.size - 1)
        return np.where(key[place] == wanted, self.end_ns[place], 0)

    def step_at(self, rank: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
        """The step in which each of these ranks was at that time, -1 where it is not known."""
        base = int(self.begin_ns.min())
        key, time = (self.rank << _TIME_BITS) + (self.begin_ns - base), np.maximum(time_ns - base, -1)
        place = np.searchsorted(key, (rank << _TIME_BITS) + time, side="right") - 1
        known = (place >= 0) & (self.rank[place] == rank) & (time_ns <= self.end_ns[place])
        return np.where(known, self.step[place], -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """blocked_ns[rank index, step index, phase]; ranks and steps name the indices (both ascending)."""

    ranks: np.ndarray
    steps: np.ndarray
    blocked_ns: np.ndarray


def release_times(joined: Joined, shape: GroupShape, edges: StepEdges | None = None) -> np.ndarray:
    """By row of ``joined``, in ns, when the last member arrived that it waits for; its own arrival where it waits for
    nobody.

    Also its own where not all members' rows are there. edges: tell more of ends that were seen by polling, where
    members are on several clocks and only durations compare.
    """
    rows = joined.rows
    # Side by side in memory: each is gone over several times.
    arrived, done, group = (np.ascontiguousarray(rows[name]) for name in ("enqueued_ns", "done_ns", "group"))
    last = np.maximum.reduceat(arrived, joined.first)[joined.instance]
    op = rows["op"]
    rooted = _FROM_ROOT[op] | _TO_ROOT[op]
    if rooted.any():
        place = shape.places.find(group, rows["rank"])
        is_root = place == rows["peer"]
        known = rooted & (rows["peer"] >= 0)
        root_arrival = np.maximum.reduceat(np.where(known & is_root, arrived, 0), joined.first)[joined.instance]
        # A root that sends and a member that sends to its root need wait for nobody. Whether they do is the backend's
        # affair (gloo's senders wait for their receivers), so they are taken to have when their call lasted until then.
        everyone, needed = last, np.where(is_root, arrived, np.maximum(root_arrival, arrived))
        last = np.where(known & _FROM_ROOT[op], needed, last)
        last = np.where(known & _TO_ROOT[op] & ~is_root, arrived, last)
        sends = known & (is_root == _FROM_ROOT[op])
        taker = np.where(is_root, everyone, root_arrival)
        last = np.where(sends & (done >= taker), taker, last)
    one_clock = shape.one_clock[group]
    if not one_clock.all():
        ended = done if edges is None else _ended_with_step(joined, edges)
        length = np.where(ended > 0, ended - arrived, np.iinfo(np.int64).max)
        transfer = np.minimum.reduceat(length, joined.first)[joined.instance]
        last = np.where(one_clock, last, np.where(done > 0, arrived + length - transfer, arrived))
    last = np.where(done > 0, np.minimum(last, done), last)
    complete = joined.count[joined.instance] == shape.sizes[group]
    return np.where(complete, np.maximum(last, arrived), arrived)


def _ended_with_step(joined: Joined, edges: StepEdges) -> np.ndarray:
    """Ends of the rows; one that polling saw only after its rank's step is put to the step's end.

    Only where another member's is known to lie within its step: then nobody carried the call on into the next one.
    """
    rows = joined.rows
    done = rows["done_ns"]
    step_end = edges.end_of(rows["rank"].astype(np.int64), rows["step"])
    within = (done > 0) & (step_end > 0) & (done <= step_end)
    seen = np.logical_or.reduceat(within, joined.first)[joined.instance]
    polled = (rows["flags"] & int(EventFlag.POLLED)) != 0
    late = seen & polled & (done > step_end) & (step_end > rows["enqueued_ns"])
    return np.where(late, step_end, done)


def waited_late(rows: np.ndarray) -> np.ndarray:
    """By row of host groups, whether its rank began to wait() for it only after doing something else.

    rows: (n,) of COLLECTIVES.
    """
    since = rows["started_ns"]
    return np.asarray((since > 0) & (since - rows["enqueued_ns"] > LATE_NS))


def place_late_waits(
    joined: Joined, release: np.ndarray, shape: GroupShape, edges: StepEdges
) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows and releases (ns) with each late wait moved to when, and to the step in which, it was waited; None without
    any.

    release: as ``release_times`` gives it. The recorder tells since when a host stood in wait(). Where it does not, the
    call had ended before that, or C++ waited (DDP): then the rank stayed in its step. A member that left its step
    before all had come, or that waited late, shows that nobody waits for this call where it is made.
    """
    rows = joined.rows
    rank, step, since = rows["rank"].astype(np.int64), rows["step"], rows["enqueued_ns"]
    late = waited_late(rows)
    end = edges.end_of(rank, step)
    left = (end > 0) & (release > end)
    if not (late | left).any():
        return None
    shown = np.logical_or.reduceat(late | left, joined.first)[joined.instance]
    polled = (rows["done_ns"] == 0) | ((rows["flags"] & int(EventFlag.POLLED)) != 0)
    ends = np.where(left | (shown & polled), since, release)
    which = late.nonzero()[0]
    if which.size:
        began, at = rows["started_ns"][which], edges.step_at(rank[which], rows["started_ns"][which])
        ends[which] = since[which]
        known = at >= 0  # what is waited for in a step that is not closed is measured with that one
        which, began, at = which[known], began[known], at[known]
        apart = ~shape.one_clock[rows["group"][which]]  # how long it took tells nothing where all waited late
        ends[which] = np.maximum(np.where(apart, rows["done_ns"][which], release[which]), began)
        rows = copy_of(rows)
        rows["enqueued_ns"][which], rows["step"][which] = began, at
    return rows, ends


def measure_waits(rows: np.ndarray, release: np.ndarray, p2p: np.ndarray) -> Waits:
    """How long each rank was blocked, by step and phase, over collectives and P2P; overlapping waits count once.

    rows: COLLECTIVES without P2P; release: by row of ``rows``, ns; p2p: COLLECTIVES with EventFlag.P2P, of which only
    exact receives count.
    """
    if p2p.size:
        p2p = copy_of(p2p)
        p2p["enqueued_ns"] = np.where(waited_late(p2p), p2p["started_ns"], p2p["enqueued_ns"])
        exact = (p2p["done_ns"] > 0) & ((p2p["flags"] & int(EventFlag.POLLED)) == 0)
        waits = exact & (p2p["op"] == int(Op.RECV))
        release = np.concatenate([release, np.where(waits, p2p["done_ns"], p2p["enqueued_ns"])])
        rows = concatenate([rows, p2p], rows.dtype)
    rank = rows["rank"].astype(np.int64)
    arrived = rows["enqueued_ns"]
    if not rows.size:
        return Waits(
            ranks=np.zeros(0, np.int64), steps=np.zeros(0, np.int64), blocked_ns=np.zeros((0, 0, len(Phase)), np.int64)
        )
    base = int(arrived.min())
    clock = (rank << _TIME_BITS) + (arrived - base)
    order = np.argsort(clock)
    clock, rank, release = clock[order], rank[order], release[order]
    offset = (rank << _TIME_BITS) - base  # turns a time into the clock of its rank
    ends = release + offset
    reach = np.maximum.accumulate(ends)
    begins = clock.copy()
    begins[1:] = np.maximum(clock[1:], reach[:-1])  # a lower rank's reach lies below every time of the next rank
    blocked = np.maximum(0, ends - begins)
    return sum_by_rank_and_step(rank, rows["step"][order], rows["phase"][order], blocked)


def sum_by_rank_and_step(rank: np.ndarray, step: np.ndarray, phase: np.ndarray, blocked: np.ndarray) -> Waits:
    """Sums of ``blocked`` (ns) by rank, step and phase. All (n,), n > 0. Steps between may be in it, with 0, where they
    are no more than the rows: what a row says must not decide how much memory is taken.
    """
    ranks = np.flatnonzero(np.bincount(rank))
    row_of = np.zeros(int(ranks[-1]) + 1, np.int64)
    row_of[ranks] = np.arange(ranks.size)
    lowest, highest = int(step.min()), int(step.max())
    if highest - lowest < step.size:
        steps, column = np.arange(lowest, highest + 1), step - lowest
    else:
        steps, column = np.unique(step, return_inverse=True)
    phases = len(Phase)
    place = (row_of[rank] * steps.size + column) * phases + np.minimum(phase, phases - 1)
    total = np.bincount(place, weights=blocked, minlength=ranks.size * steps.size * phases)
    return Waits(ranks=ranks, steps=steps, blocked_ns=total.reshape(ranks.size, steps.size, phases).astype(np.int64))
