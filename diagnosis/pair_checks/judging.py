"""Who explains the pairs that stand out: a group's links, a node, one rail of it, or the link between two. Pure.

A node is slow with whomever it meets. A link is a pair that is slow, again and again, while both ends are well with
others. Where many nodes of one group (a leaf, a rack) are slow with those outside, and well among themselves, it is the
group's way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from .measured import Measured, PairLimits, PairPhase, Quantity, StandOut, quantity_of, stand_out

#: A node is guilty that was bad with at least this share of those it met, and with so many of them.
GUILTY_SHARE, GUILTY_PARTNERS = 0.5, 2
#: One that is asked again: a smaller share, if that does not come by chance.
SUSPECT_SHARE, SUSPECT_CHANCE = 0.3, 1e-3
#: A link is named that was bad so often when it was asked again, with such a share, and never by chance at this rate.
LINK_TIMES, LINK_SHARE, LINK_CHANCE, CHANCE_RATE = 3, 0.3, 1e-5, 0.01
#: Asked so often again, without having been bad so often as that, it is well.
LINK_ASKED, LINK_LEAST = 3, 1
#: Of a group's ways out: so many bad pairs, of so many of its nodes, never by chance, and such a share of all.
GROUP_PAIRS, GROUP_NODES, GROUP_CHANCE, GROUP_SHARE = 4, 3, 1e-6, 0.06
#: Of two groups nobody knows whose way out it is.
GROUPS_LEAST = 3
#: Times the rate at which other groups' ways out are bad.
_GROUP_LIFT = 4.0


class SlowPart(str, Enum):
    """What is named."""

    NODE = "node"
    RAIL = "rail"
    LINK = "link"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What is slow. nodes: one; of a link its two ends; of a group all. rail: -1, all of them.

    bad, met: pairs of it that stand out, of those that were measured. worst: in what it stands out, value: of its
    median bad pair, in seconds; usual: what others need.
    """

    part: SlowPart
    nodes: tuple[int, ...]
    rail: int = -1
    group: int = -1
    worst: Quantity
    value: float
    usual: float
    bad: int
    met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What to look at again, on any rail: nodes, links (pairs), groups. clear: nodes that nothing was seen of."""

    nodes: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    groups: tuple[int, ...] = ()
    clear: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(slots=True, kw_only=True)
class _Rail:
    """One rail's rows, and who has been found guilty on it."""

    rows: Measured
    seen: StandOut
    nodes: dict[int, tuple[int, int]] = field(default_factory=dict)
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)
    links: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    doubtful: list[tuple[float, tuple[int, int]]] = field(default_factory=list)


def judge(
    measured: Measured, count: int, groups: npt.NDArray[np.int64] | None, limits: PairLimits
) -> tuple[list[Named], Suspicion]:
    """What is named by now, and what has to be looked at again. count: nodes, 0 to count - 1. groups: of each node."""
    found: list[_Rail] = []
    for rail in np.unique(measured.rail):
        rows = measured.where(measured.rail == rail)
        distance = np.zeros(len(rows), dtype=np.int64)
        if groups is not None:
            distance = (groups[rows.a] != groups[rows.b]).astype(np.int64)
        found.append(_judge_rail(rows, stand_out(rows, distance, limits), count, groups))
    named = _name(found, groups)
    return named, _suspicion(found, count)


def _judge_rail(rows: Measured, seen: StandOut, count: int, groups: npt.NDArray[np.int64] | None) -> _Rail:
    rail = _Rail(rows=rows, seen=seen)
    met = ~rows.of_phases(PairPhase.SWEEP)  # of the sweep only bad ones were kept: they say nothing of a share
    unexplained = np.ones(len(rows), dtype=np.bool_)
    if groups is not None:
        looks = rows.of_phases(PairPhase.LOOK)  # who is asked again is chosen
        for group, counted in _guilty_groups(rows, seen.bad & looks, looks, groups):
            rail.groups[group] = counted
            unexplained &= ~((groups[rows.a] == group) ^ (groups[rows.b] == group))
    while (next_ := _worst_node(rows, seen.bad & met & unexplained, met & unexplained, count)) is not None:
        node, bad, of = next_
        rail.nodes[node] = (bad, of)
        unexplained &= (rows.a != node) & (rows.b != node)
    bad_of, met_of = _counts(rows, seen.bad & met & unexplained, count), _counts(rows, met & unexplained, count)
    chance = max(float(bad_of.sum()) / max(float(met_of.sum()), 1.0), 1e-4)
    for node in np.flatnonzero(bad_of >= GUILTY_PARTNERS).tolist():
        own = int(bad_of[node]), int(met_of[node])
        # Its own bad pairs would hide what is usual of the others.
        others = max((float(bad_of.sum()) - 2 * own[0]) / max(float(met_of.sum()) - 2 * own[1], 1.0), chance / 4)
        if own[0] >= SUSPECT_SHARE * own[1] and tail(own[0], own[1], min(others, 0.5)) < SUSPECT_CHANCE:
            rail.suspects.add(node)
    _take_links(rail, unexplained)
    return rail


def _worst_node(
    rows: Measured, bad: npt.NDArray[np.bool_], met: npt.NDArray[np.bool_], count: int
) -> tuple[int, int, int] | None:
    """The node that is bad with the largest share of those it met, if that is enough: (node, bad, met)."""
    bad_of, met_of = _counts(rows, bad, count), _counts(rows, met, count)
    share = np.where(met_of > 0, bad_of / np.maximum(met_of, 1), 0.0)
    share[bad_of < GUILTY_PARTNERS] = 0.0
    # Of equal shares the one that was seen more often.
    node = int(np.lexsort((bad_of, share))[-1])
    if share[node] < GUILTY_SHARE:
        return None
    mine = bad & ((rows.a == node) | (rows.b == node))
    partners = np.unique(np.where(rows.a[mine] == node, rows.b[mine], rows.a[mine]))
    if len(partners) < GUILTY_PARTNERS:
        return None
    again = rows.of_phases(PairPhase.CONFIRM) & met & ((rows.a == node) | (rows.b == node))
    if again.any() and 3 * int((bad & again).sum()) < int(again.sum()):
        # It was well when it was asked again: what others have is asked of the others.
        return _worst_node(rows, bad & ~mine, met & ~mine, count)
    return node, int(bad_of[node]), int(met_of[node])


def _counts(rows: Measured, chosen: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    return np.bincount(rows.a[chosen], minlength=count) + np.bincount(rows.b[chosen], minlength=count)


def _guilty_groups(
    rows: Measured, bad: npt.NDArray[np.bool_], met: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64]
) -> list[tuple[int, tuple[int, int]]]:
    """Groups whose ways out are bad far more often than others', and with many of their nodes, while those are well
    among themselves: (group, (bad, met)).
    """
    out_a, out_b = groups[rows.a], groups[rows.b]
    crosses = out_a != out_b
    size = int(groups.max()) + 1
    if size < GROUPS_LEAST:
        return []
    guilty: list[tuple[int, tuple[int, int]]] = []
    left = crosses.copy()
    while True:
        bad_of = np.bincount(out_a[left & bad], minlength=size) + np.bincount(out_b[left & bad], minlength=size)
        met_of = np.bincount(out_a[left & met], minlength=size) + np.bincount(out_b[left & met], minlength=size)
        if not bad_of.any():
            return guilty
        group = int(bad_of.argmax())
        own = int(bad_of[group]), int(met_of[group])
        others = (int(bad_of.sum()) - 2 * own[0]) / max(int(met_of.sum()) - 2 * own[1], 1)
        inside = met & (out_a == group) & (out_b == group)
        mine = left & bad & ((out_a == group) | (out_b == group))
        nodes = Counter(np.where(out_a[mine] == group, rows.a[mine], rows.b[mine]).tolist())
        members = int((groups == group).sum())
        outside = Counter(np.where(out_a[mine] == group, rows.b[mine], rows.a[mine]).tolist())
        # Three nodes of eight that are ill alone are three nodes; so is one elsewhere that all of them met.
        is_spread = (
            len(nodes) >= max(GROUP_NODES, 0.25 * members)
            and max(nodes.values()) <= 0.4 * own[0]
            and max(outside.values()) <= 0.4 * own[0]
        )
        is_well_inside = not inside.any() or (inside & bad).sum() / inside.sum() < own[0] / max(own[1], 1) / 3
        rate = max(others, 1e-4)
        if (
            own[0] < max(GROUP_PAIRS, GROUP_SHARE * own[1])
            or own[0] / max(own[1], 1) < _GROUP_LIFT * others
            or tail(own[0], own[1], rate) > GROUP_CHANCE
            or not is_spread
            or not is_well_inside
        ):
            return guilty
        guilty.append((group, own))
        left &= (out_a != group) & (out_b != group)


def _take_links(rail: _Rail, unexplained: npt.NDArray[np.bool_]) -> None:
    """Sorts the pairs that stand out and that nothing else explains: named, or to be asked again."""
    rows, bad = rail.rows, rail.seen.bad & unexplained
    low, high = np.minimum(rows.a, rows.b), np.maximum(rows.a, rows.b)
    ids = low * (int(high.max(initial=0)) + 1) + high
    again = rows.of_phases(PairPhase.CONFIRM)
    odd, first, which = np.unique(ids[np.isin(ids, ids[bad])], return_index=True, return_inverse=True)
    at_rows = np.flatnonzero(np.isin(ids, ids[bad]))
    is_bad, is_again = bad[at_rows], again[at_rows]
    count_of = partial(np.bincount, which, minlength=len(odd))
    all_of, bad_of = count_of(), count_of(weights=is_bad)
    asked_of, bad_again_of = count_of(weights=is_again), count_of(weights=is_again & is_bad)
    most = np.zeros(len(odd))
    np.maximum.at(most, which, np.where(is_bad, rail.seen.excess[at_rows], 0.0))
    for index in range(len(odd)):
        at = int(at_rows[first[index]])
        pair = int(low[at]), int(high[at])
        asked, was_bad = int(asked_of[index]), int(bad_again_of[index])
        if _is_named(was_bad, asked):
            rail.links[pair] = (int(bad_of[index]), int(all_of[index]))
        elif asked < LINK_ASKED or (was_bad >= LINK_LEAST and was_bad >= LINK_SHARE * asked):
            rail.doubtful.append((float(most[index]), pair))


def _is_named(bad: int, asked: int) -> bool:
    return bad >= LINK_TIMES and bad >= LINK_SHARE * asked and tail(bad, asked, CHANCE_RATE) < LINK_CHANCE


def _name(found: Sequence[_Rail], groups: npt.NDArray[np.int64] | None) -> list[Named]:
    """One line for what several rails have in common."""
    named: list[Named] = []
    for group in sorted({group for rail in found for group in rail.groups}):
        on = [rail for rail in found if group in rail.groups]
        assert groups is not None
        member = groups == group
        named.append(
            _named(
                SlowPart.GROUP,
                tuple(np.flatnonzero(member).tolist()),
                on,
                [r.groups[group] for r in on],
                len(found),
                [member[r.rows.a] ^ member[r.rows.b] for r in on],
                group,
            )
        )
    for node in sorted({node for rail in found for node in rail.nodes}):
        on = [rail for rail in found if node in rail.nodes]
        rows = [(r.rows.a == node) | (r.rows.b == node) for r in on]
        named += _by_rail(SlowPart.NODE, (node,), on, [r.nodes[node] for r in on], len(found), rows)
    for pair in sorted({pair for rail in found for pair in rail.links}):
        on = [rail for rail in found if pair in rail.links]
        rows = [np.isin(r.rows.a, pair) & np.isin(r.rows.b, pair) for r in on]
        named += _by_rail(SlowPart.LINK, pair, on, [r.links[pair] for r in on], len(found), rows)
    return named


def _by_rail(
    part: SlowPart,
    nodes: tuple[int, ...],
    on: Sequence[_Rail],
    counted: Sequence[tuple[int, int]],
    rails: int,
    rows: Sequence[npt.NDArray[np.bool_]],
) -> list[Named]:
    """A node that is bad on half of its rails is one thing; on fewer each rail is."""
    if 2 * len(on) >= rails:
        return [_named(part, nodes, on, counted, rails, rows)]
    own = SlowPart.RAIL if part is SlowPart.NODE else part
    return [_named(own, nodes, [r], [c], rails, [w]) for r, c, w in zip(on, counted, rows, strict=True)]


def _named(
    part: SlowPart,
    nodes: tuple[int, ...],
    on: Sequence[_Rail],
    counted: Sequence[tuple[int, int]],
    rails: int,
    rows: Sequence[npt.NDArray[np.bool_]],
    group: int = -1,
) -> Named:
    quantities: Counter[int] = Counter()
    values: dict[int, list[float]] = {}
    for rail, mine in zip(on, rows, strict=True):
        for at in np.flatnonzero(mine & rail.seen.bad):
            which = int(rail.seen.quantity[at])
            quantities[which] += 1
            values.setdefault(which, []).append(float(rail.rows.columns[_COLUMN[quantity_of(which)]][at]))
    which = quantities.most_common(1)[0][0]
    quantity = quantity_of(which)
    return Named(
        part=part,
        nodes=nodes,
        rail=int(on[0].rows.rail[0]) if rails > 1 and len(on) == 1 else -1,
        group=group,
        worst=quantity,
        value=float(np.median(values[which])),
        usual=min(rail.seen.usual.get(quantity, 0.0) for rail in on),
        bad=sum(bad for bad, _ in counted),
        met=sum(met for _, met in counted),
    )


_COLUMN = {
    Quantity.SECONDS: "seconds",
    Quantity.LATENCY: "latency_s",
    Quantity.STALL: "stall_s",
    Quantity.FAILED: "failed",
}


def _suspicion(found: Sequence[_Rail], count: int) -> Suspicion:
    nodes = dict.fromkeys(node for rail in found for node in (*rail.nodes, *sorted(rail.suspects)))
    worst: dict[tuple[int, int], float] = {}
    for rail in found:
        for excess, pair in rail.doubtful:
            worst[pair] = max(excess, worst.get(pair, 0.0))
    links = sorted(worst, key=lambda pair: (-worst[pair], pair))
    touched = np.zeros(count, dtype=np.bool_)
    for rail in found:
        bad = rail.seen.bad
        guilty = np.isin(rail.rows.a, list(rail.nodes)) | np.isin(rail.rows.b, list(rail.nodes))
        touched[rail.rows.a[bad & ~guilty]] = True
        touched[rail.rows.b[bad & ~guilty]] = True
        touched[list(rail.nodes)] = True
    return Suspicion(
        nodes=tuple(nodes),
        links=tuple(links),
        groups=tuple(sorted({group for rail in found for group in rail.groups})),
        clear=np.flatnonzero(~touched),
    )


def tail(bad: int, met: int, rate: float) -> float:
    """P(at least ``bad`` of ``met``) where each is bad at this rate."""
    if bad <= 0:
        return 1.0
    total = 0.0
    for k in range(bad, met + 1):
        chosen = lgamma(met + 1) - lgamma(k + 1) - lgamma(met - k + 1)
        total += exp(chosen + k * log(rate) + (met - k) * log1p(-rate))
    return min(total, 1.0)


def without(count: int, named: Collection[Named]) -> list[int]:
    """The nodes that are not named, and of each link its lower end out."""
    gone = {node for each in named if each.part in (SlowPart.NODE, SlowPart.RAIL) for node in each.nodes}
    for each in named:
        if each.part is SlowPart.LINK and gone.isdisjoint(each.nodes):
            gone.add(each.nodes[0])
    return [node for node in range(count) if node not in gone]
