"""Joins collectives of all members by group and sequence, and finds those whose members did not do the same thing.

Signatures come before any rule about lateness: a rank that skips a collective makes the innocent majority look late
(seen in 4 of 4 runs). Everything here works on whole arrays; only a mismatch itself is looked at row by row.

Method: rows grouped by group and sequence number; signatures of the members compared, as flight recorder analysers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from .....telemetry.tables import NO_GROUP
from .....telemetry.vocabulary import SIZE_COMPARABLE_OPS, EventFlag, Op
from ...columns.rows import pick

#: What has to agree, in the order in which people name it. A signature is a tuple (op, bytes, dtype, peer).
Signature = tuple[int, int, int, int]
ROOTED_OPS = frozenset({Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER})

_SIZED = np.zeros(256, bool)
_SIZED[[int(op) for op in SIZE_COMPARABLE_OPS]] = True
_ROOTED = np.zeros(256, bool)
_ROOTED[[int(op) for op in ROOTED_OPS]] = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """Collectives sorted by (group, seq, rank), one row each. P2P is left out: it has no instance to agree on.

    first: index of the first row of every instance; count: its rows; instance: instance number of every row.
    """

    rows: np.ndarray
    first: np.ndarray
    count: np.ndarray
    instance: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What one rank called at the sequence number in question. bytes, peer: -1 not to be compared; done_ns: 0 not
    ended.
    """

    rank: int
    op: int
    bytes: int
    dtype: int
    peer: int
    step: int
    phase: int
    enqueued_ns: int
    done_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first sequence number of a group at which its members differ."""

    group: int
    seq: int
    members: tuple[Member, ...]
    onset_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Who left the common path. guilty: empty = cannot tell; by: "majority" | "history" | "both" | "none".

    expected: what the place was in earlier steps, None = no history.
    """

    guilty: tuple[int, ...]
    innocent: tuple[int, ...]
    by: str
    expected: Signature | None
    confidence: float


def join_instances(rows: np.ndarray) -> Joined:
    """Rows without P2P, sorted so that all members' rows of a collective lie together.

    rows: (n,) of COLLECTIVES in arrival order (a later one of the same rank, group and seq replaces the earlier).
    """
    plain = (rows["flags"] & int(EventFlag.P2P)) == 0
    plain &= rows["group"] != NO_GROUP
    if not plain.all():
        rows = pick(rows, plain)
    if not rows.size:
        empty = np.zeros(0, np.int64)
        return Joined(rows=rows, first=empty, count=empty, instance=empty)
    order, place = _sorted_places(rows)
    rows = pick(rows, order)
    starts = np.ones(rows.size, bool)
    np.not_equal(place[1:], place[:-1], out=starts[1:])
    first = np.flatnonzero(starts)
    count = np.empty(first.size, np.int64)
    count[:-1] = first[1:] - first[:-1]
    count[-1] = rows.size - first[-1]
    return Joined(rows=rows, first=first, count=count, instance=np.cumsum(starts) - 1)


def _sorted_places(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order by (group, seq, rank) with only the last arrival of each, and a number per row that tells its (group, seq).

    One number holds place, rank and arrival where they fit into 63 bits: numpy sorts plain integers several times
    faster than it finds a stable order.
    """
    group, seq, rank = rows["group"].astype(np.int64), rows["seq"], rows["rank"].astype(np.int64)
    lowest = int(seq.min())
    seqs = int(seq.max()) - lowest + 1
    place = group * seqs + (seq - lowest)
    rank_bits, arrival_bits = int(rank.max()).bit_length(), rows.size.bit_length()
    if ((int(group.max()) + 1) * seqs).bit_length() + rank_bits + arrival_bits < 63:
        key = (((place << rank_bits) + rank) << arrival_bits) + np.arange(rows.size)
        key.sort()
        who = key >> arrival_bits
        last = np.ones(key.size, bool)
        np.not_equal(who[1:], who[:-1], out=last[:-1])
        if not last.all():
            key, who = key[last], who[last]
        return key & ((1 << arrival_bits) - 1), who >> rank_bits
    order = np.lexsort((rank, seq, group))
    place, rank = place[order], rank[order]
    last = np.append((place[1:] != place[:-1]) | (rank[1:] != rank[:-1]), True)
    return order[last], place[last]


def find_mismatch(joined: Joined, blind: Collection[tuple[int, int]] = ()) -> Mismatch | None:
    """The mismatch with the earliest onset among the first of each group; None if all members agree.

    blind: (group, rank) pairs that are left out.
    """
    rows = joined.rows
    if rows.size < 2:
        return None
    here, there = rows[1:], rows[:-1]
    op = here["op"]
    no_size = ((here["flags"] | there["flags"]) & int(EventFlag.NO_SIZE)) != 0
    differs = (here["bytes"] != there["bytes"]) | (here["dtype"] != there["dtype"])
    differs &= _SIZED[op] & ~no_size
    peers = (here["peer"] != there["peer"]) & (here["peer"] >= 0) & (there["peer"] >= 0) & _ROOTED[op]
    differs |= peers
    differs |= op != there["op"]
    differs &= joined.instance[1:] == joined.instance[:-1]
    if not differs.any():
        return None
    found: list[Mismatch] = []
    seen_groups: set[int] = set()
    for number in np.unique(joined.instance[1:][differs]):
        start = int(joined.first[number])
        group = int(rows["group"][start])
        if group in seen_groups:
            continue
        members = tuple(
            read_member(row)
            for row in rows[start : start + int(joined.count[number])]
            if (group, int(row["rank"])) not in blind
        )
        if len({comparable(member) for member in members}) < 2:
            continue
        seen_groups.add(group)
        onset = max(member.enqueued_ns for member in members)
        found.append(Mismatch(group=group, seq=int(rows["seq"][start]), members=members, onset_ns=onset))
    return min(found, key=lambda mismatch: mismatch.onset_ns, default=None)


def judge_mismatch(mismatch: Mismatch, recent: np.ndarray, reached: int | None = None) -> Divergence:
    """Who left the common path, by the majority and by what earlier steps called at this place.

    recent: one row of COLLECTIVES per instance of the last closed steps that were shipped whole (any order). reached:
    the group's sequence number after the last closed step; None: it is not known.
    """
    signatures = {member.rank: comparable(member) for member in mismatch.members}
    ranks = tuple(sorted(signatures))
    expected = expected_signature(recent, mismatch.group, mismatch.seq, reached)
    counts = Counter(signatures.values()).most_common()
    majority = counts[0][0] if counts[0][1] * 2 > len(ranks) else None
    loyal = tuple(rank for rank in ranks if expected is not None and _agree(signatures[rank], expected))
    # If this place of the program never looked like what anybody does now, history has no say.
    strays = tuple(rank for rank in ranks if rank not in loyal) if loyal else ()
    if majority is None:
        if not strays:
            return _divergence(ranks, ranks, "none", expected, 0.5)
        return _divergence(ranks, strays, "history", expected, 0.9)
    minority = tuple(rank for rank in ranks if signatures[rank] != majority)
    return _divergence(ranks, minority, "both" if strays == minority else "majority", expected, 0.95)


def expected_signature(recent: np.ndarray, group: int, seq: int, reached: int | None = None) -> Signature | None:
    """What stood at this place one step earlier, if the two steps before agree about how many there are per step.

    reached: as in ``judge_mismatch``. Where it is no whole steps later than ``recent``, nothing is known of the place.
    """
    mine = recent[recent["group"] == group]
    if not mine.size:
        return None
    steps, counts = np.unique(mine["step"], return_counts=True)
    if steps.size > 2 and counts[-1] < counts[-2] == counts[-3] and _repeats(mine, int(steps[-1]), int(counts[-2])):
        mine, counts = mine[mine["step"] != steps[-1]], counts[:-1]  # its last calls are still open on somebody
    if counts.size < 2 or counts[-1] != counts[-2]:
        return None
    period, newest = int(counts[-1]), int(mine["seq"].max())
    if reached is not None and reached > newest and (reached - newest) % period:
        return None
    earlier = seq - period * max(1, -(-(seq - newest) // period))
    found = [comparable(read_member(row)) for row in mine[np.isin(mine["seq"], [earlier, earlier - period])]]
    return found[0] if found and all(signature == found[0] for signature in found) else None


def _repeats(rows: np.ndarray, step: int, period: int) -> bool:
    """Whether the calls of this step are those that stood a period earlier."""
    known = {int(row["seq"]): comparable(read_member(row)) for row in rows}
    seqs = rows["seq"][rows["step"] == step].tolist()
    return all(known.get(seq - period) == known[seq] for seq in seqs)


def short_steps(counts: dict[int, int], usual: int | None) -> tuple[int, ...]:
    """Ranks whose number of a group's collectives in one step differs from most; where no majority, from ``usual``;
    else all.

    counts: by rank. () where all are equal. A skip among identical calls shows only in the count.
    """
    if len(set(counts.values())) < 2:
        return ()
    common = Counter(counts.values()).most_common()
    if common[0][1] * 2 > len(counts):
        return tuple(sorted(rank for rank, count in counts.items() if count != common[0][0]))
    if usual is not None and usual in counts.values():
        return tuple(sorted(rank for rank, count in counts.items() if count != usual))
    return tuple(sorted(counts))


def _divergence(
    ranks: tuple[int, ...], guilty: tuple[int, ...], by: str, expected: Signature | None, confidence: float
) -> Divergence:
    innocent = tuple(rank for rank in ranks if rank not in guilty)
    return Divergence(guilty=guilty, innocent=innocent, by=by, expected=expected, confidence=confidence)


def read_member(row: np.void) -> Member:
    """One row of collectives as a member's call; bytes -1 where sizes must not be compared."""
    return Member(
        rank=int(row["rank"]),
        op=int(row["op"]),
        bytes=-1 if int(row["flags"]) & int(EventFlag.NO_SIZE) else int(row["bytes"]),
        dtype=int(row["dtype"]),
        peer=int(row["peer"]),
        step=int(row["step"]),
        phase=int(row["phase"]),
        enqueued_ns=int(row["enqueued_ns"]),
        done_ns=int(row["done_ns"]),
    )


def comparable(member: Member) -> Signature:
    """The part of a signature that must be equal on every member; -1 = this field need not be."""
    sized = bool(_SIZED[member.op]) and member.bytes >= 0
    peer = member.peer if _ROOTED[member.op] else -1
    return (member.op, member.bytes, member.dtype, peer) if sized else (member.op, -1, -1, peer)


def _agree(one: Signature, other: Signature) -> bool:
    return one[0] == other[0] and all(a == b or -1 in (a, b) for a, b in zip(one[1:], other[1:], strict=True))
