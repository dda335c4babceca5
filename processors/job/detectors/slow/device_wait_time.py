"""How long devices stood in collectives: by their rows, or the sums that agents of large jobs tell instead. Pure."""

from __future__ import annotations

import numpy as np

_RANK_BITS, _GROUP_BITS = 24, 16


def stood_in(rows: np.ndarray) -> np.ndarray:
    """By row of COLLECTIVES: from its start on the device to its end, as far as looks tell it. rows: (n,); ns."""
    known = (rows["started_ns"] > 0) & (rows["done_ns"] > 0)
    return np.where(known, np.maximum(rows["done_ns"] - rows["started_ns"], 0), 0)


def stood_by_step(sums: np.ndarray, ranks: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """(steps, ranks) in ns: how long each device stood in its collectives, over all groups; -1 where that was not told.

    sums: DEVICE_STEPS rows; one that comes twice counts once. ranks, steps: ascending.
    """
    stood_ns = np.full((steps.size, ranks.size), -1, np.int64)
    if not sums.size:
        return stood_ns
    key = (sums["step"] << _GROUP_BITS | sums["group"]) << _RANK_BITS | sums["rank"]
    sums = sums[np.unique(key, return_index=True)[1]]
    place, column = np.searchsorted(steps, sums["step"]), np.searchsorted(ranks, sums["rank"])
    known = (place < steps.size) & (column < ranks.size)
    known[known] = (steps[place[known]] == sums["step"][known]) & (ranks[column[known]] == sums["rank"][known])
    place, column = place[known], column[known]
    stood_ns[place, column] = 0
    np.add.at(stood_ns, (place, column), sums["stood_ns"][known])
    return stood_ns
