"""Which ranks share a node's slots, and whose partner is who."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


def node_of(folder: Path) -> str:
    """Equal for ranks that see the same folder: machines by name, folders by what the file system calls them."""
    state = os.stat(folder)
    return f"{socket.gethostname()}/{state.st_dev}/{state.st_ino}"


@dataclass(frozen=True, slots=True)
class Partners:
    """By rank: who holds its copy, whose copy it holds. is_apart: whether each copy is on another node."""

    next_rank: tuple[int, ...]
    previous_rank: tuple[int, ...]
    is_apart: bool


def partners(nodes: Sequence[str]) -> Partners | None:
    """Ranks in order of their nodes, each one's copy a node further on, the last node's on the first.

    nodes: of each rank. None: there is one node alone. Where nodes have unlike numbers of ranks some copies may stay on
    their node (``is_apart``).
    """
    by_node: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    if len(by_node) < 2:
        return None
    order = [rank for ranks in by_node.values() for rank in ranks]
    shift = max(map(len, by_node.values()))
    following, before = [0] * len(order), [0] * len(order)
    for at, rank in enumerate(order):
        partner = order[(at + shift) % len(order)]
        following[rank], before[partner] = partner, rank
    is_apart = all(nodes[rank] != nodes[partner] for rank, partner in enumerate(following))
    return Partners(tuple(following), tuple(before), is_apart)


def keep_ranks(rank: int, nodes: Sequence[str], found: Partners | None) -> frozenset[int] | None:
    """Whose slots belong on this rank's node; None where a lower rank of the node clears up."""
    here = [each for each, node in enumerate(nodes) if node == nodes[rank]]
    if rank != here[0]:
        return None
    return frozenset(here) | (frozenset() if found is None else frozenset(found.previous_rank[each] for each in here))
