"""How long devices stood in the calls of their smallest group: there nobody waits but for a rank next to it.

A late rank is waited for by its tensor-parallel peers in each layer; everybody else waits for all of them, in larger
groups. So where waits grow in one small group only, the late one is a member of it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .device_wait_time import stood_by_step, stood_in

#: A group of fewer tells nobody apart.
FEWEST_MEMBERS = 4
KEPT_STEPS = 96


def no_inner_waits(ranks: int) -> np.ndarray:
    """An empty table of waits, (0, 1 + ranks) in ns, for ``with_inner_waits``.

    Columns: step, and how long each rank's device stood in the calls of its smallest group.
    """
    return np.zeros((0, 1 + ranks), np.int64)


def inner_groups(
    members: Sequence[np.ndarray], on_device: Sequence[bool] | np.ndarray, ranks: np.ndarray
) -> np.ndarray:
    """By rank of ``ranks``: the index of the smallest group on devices that it is in, -1 none smaller than all are.

    Of two that are as small, the one whose ranks lie closer together: on one node, that is.
    members: ranks by group; on_device: by group; ranks: (ranks,).
    """
    inner = np.full(ranks.size, -1, np.int64)
    size = np.full(ranks.size, ranks.size, np.int64)
    order = sorted(range(len(members)), key=lambda index: int(np.ptp(members[index])) if members[index].size else 0)
    for index in order:
        group = members[index]
        if not on_device[index] or not FEWEST_MEMBERS <= group.size < ranks.size:
            continue
        place = np.searchsorted(ranks, group)
        place = place[place < ranks.size]
        smaller = place[(group.size < size[place]) & np.isin(ranks[place], group)]
        inner[smaller], size[smaller] = index, group.size
    return inner


def with_inner_waits(
    kept: np.ndarray, inner: np.ndarray, rows: np.ndarray, sums: np.ndarray, ranks: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """The table with these steps added, the last KEPT_STEPS; with another number of ranks it begins anew.

    inner: by rank, its smallest group (``inner_groups``). rows: COLLECTIVES of devices; sums: DEVICE_STEPS, used
    instead of rows for the steps in them. ranks, steps: ascending.
    """
    if kept.shape[1] != 1 + ranks.size:
        kept = no_inner_waits(ranks.size)
    stood_ns = np.maximum(stood_by_step(_of_inner(sums, inner, ranks), ranks, steps), 0)
    summed = np.isin(steps, sums["step"])
    mine = _of_inner(rows, inner, ranks)
    place, column = np.searchsorted(steps, mine["step"]), np.searchsorted(ranks, mine["rank"])
    known = place < steps.size
    known[known] = (steps[place[known]] == mine["step"][known]) & ~summed[place[known]]
    np.add.at(stood_ns, (place[known], column[known]), stood_in(mine)[known])
    return np.concatenate([kept, np.column_stack([steps, stood_ns])])[-KEPT_STEPS:]


def _of_inner(rows: np.ndarray, inner: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Those that are of their rank's smallest group."""
    column = np.minimum(np.searchsorted(ranks, rows["rank"]), ranks.size - 1)
    of_inner: np.ndarray = rows[(ranks[column] == rows["rank"]) & (inner[column] == rows["group"])]
    return of_inner
