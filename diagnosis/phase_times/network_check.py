"""Verdicts over tests that pair nodes: who is broken, who is slow. Pure.

A pair that fails accuses two nodes; who fails with every partner is guilty, and who was not tested is not cleared.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

#: Twice the typical time is slow.
SLOW_TIMES = 2.0

Node = TypeVar("Node", bound=Hashable)


def failed_in_every_round(rounds: Sequence[Mapping[Node, bool]]) -> tuple[Node, ...]:
    """Nodes without one good round: a good one with any partner clears a node.

    rounds: node -> whether its test went well.
    """
    nodes = _in_order(rounds)
    return tuple(node for node in nodes if not any(each.get(node, False) for each in rounds))


def slow_nodes(rounds: Sequence[Mapping[Node, float]], times: float = SLOW_TIMES) -> tuple[Node, ...]:
    """Nodes of which even the best round took more than ``times`` the median of all nodes' best.

    rounds: node -> seconds.
    """
    best = {node: min(each[node] for each in rounds if node in each) for node in _in_order(rounds)}
    if not best:
        return ()
    limit = times * median(best.values())
    return tuple(node for node, seconds in best.items() if seconds > limit)


def suspects_of_pairs(
    nodes: Collection[Node],
    batches: Sequence[Sequence[Sequence[Node]]],
    failed: Sequence[Collection[Sequence[Node]]],
    *,
    own_check_failed: Collection[Node] = (),
) -> tuple[Node, ...]:
    """Nodes to leave out: whose own check failed, that were in no pair, or of whose pairs none went well.

    batches: rounds of pairs; failed: those of each round that failed or were too slow.
    """
    met: dict[Node, int] = dict.fromkeys(nodes, 0)
    bad: dict[Node, int] = dict.fromkeys(nodes, 0)
    for at, pairs in enumerate(batches):
        failures = {frozenset(pair) for pair in (failed[at] if at < len(failed) else ())}
        for pair in pairs:
            for node in pair:
                if node in met:
                    met[node] += 1
                    bad[node] += frozenset(pair) in failures
    return tuple(node for node in nodes if node in own_check_failed or bad[node] == met[node])


def bus_bandwidth_gibps(elements: int, bytes_per_element: int, milliseconds: float, world: int) -> float:
    """Bus bandwidth of a ring all-reduce in GiB/s: what each link carried. Raises ValueError without work or time."""
    if elements <= 0 or milliseconds <= 0 or world < 2:
        raise ValueError("bus bandwidth needs elements, a time, and two ranks or more")
    return elements * bytes_per_element / 2**30 / (milliseconds / 1e3) * 2 * (world - 1) / world


def round_robin(nodes: Sequence[Node], batches: int) -> list[list[tuple[Node, Node]]]:
    """Rounds of disjoint pairs in which nobody meets anybody twice. Raises ValueError for an odd number of nodes."""
    if len(nodes) % 2:
        raise ValueError(f"pairs need an even number of nodes, not {len(nodes)}")
    ring = list(nodes)
    rounds = []
    for _ in range(min(batches, max(len(ring) - 1, 0))):
        rounds.append([(ring[at], ring[-1 - at]) for at in range(len(ring) // 2)])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def _in_order(rounds: Sequence[Mapping[Node, object]]) -> list[Node]:
    return list(dict.fromkeys(node for each in rounds for node in each))
