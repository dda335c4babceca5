"""Disjoint pairs of nodes, round by round: the rounds of a tournament, in which nobody meets anybody twice. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: (pairs, 2), node numbers; each node is in one pair at most.
Pairing = npt.NDArray[np.int32]


def rounds_of(count: int) -> int:
    """How many rounds a tournament of ``count`` nodes has: each node meets each other one in them, once."""
    return max(count - 1 + count % 2, 0) if count > 1 else 0


def pairing_of(members: Sequence[int] | npt.NDArray[np.int32], number: int) -> Pairing:
    """Rows of (pairs, 2) node indices: one round of the tournament of (n,) members, of an odd n one rests.

    number: of the round, modulo ``rounds_of``.
    """
    nodes = np.asarray(members, dtype=np.int32)
    size = len(nodes) + len(nodes) % 2
    if size < 2:
        return np.empty((0, 2), dtype=np.int32)
    turns = size - 1
    step = np.arange(1, size // 2)
    left = np.concatenate(([turns], (number + step) % turns))
    right = np.concatenate(([number % turns], (number - step) % turns))
    here = (left < len(nodes)) & (right < len(nodes))
    return np.stack((nodes[left[here]], nodes[right[here]]), axis=1)


def pairing_within(groups: Sequence[npt.NDArray[np.int32]], number: int) -> Pairing:
    """Rows of (pairs, 2) node indices: the same round of each group's own tournament, at once. groups: (n,) each."""
    parts = [pairing_of(group, number) for group in groups if len(group) > 1]
    return np.concatenate(parts) if parts else np.empty((0, 2), dtype=np.int32)
