"""Finds the rank whose device comes late by little: steps that are longer by two percent or more, over many of them.

As ``small_group``, only that here single looks say nothing: in a small group, over eight steps and more, the peers
stand longer than they did and one of them does not, by far more than looks make of it, and in no other group. What they
wait may be more than what the steps lose, where others have time to spare: a pipeline's other stages. Pure.

Method: means of two windows in standard errors (a z test), within the smallest groups.
"""

from __future__ import annotations

import numpy as np

from ....columns.median import median
from ..step_times import StepTimes
from .occupancy import LateDevice
from .small_group import FEWEST_GROUPS, LEAST_PEERS, MOST_ELSEWHERE, MOST_WAITED
from .step_window import MOST_BEFORE, RISE_SIGMAS, SMALLEST_NOISE, late_rank

WINDOWS = (8, 12, 16, 24, 32)
#: For each step of the window so many before it, that say what was usual.
BEFORE = 2
#: Of the step: by how much it is longer at least.
LEAST_RISE = 0.02
#: Of the rise: what the peers wait longer at most.
MOST_PEERS = 4.0
#: In standard deviations of what looks and chance make of a mean over the window; and in how many of its steps the late
#: one waits less than its peers, by half of that at least.
SIGMAS, PERSISTENT_SHARE = 6.0, 0.75


def find_late_by_little(times: StepTimes, inner: np.ndarray, group_of: np.ndarray) -> LateDevice | None:
    """The rank whose device comes late by little, found over windows of 8 to 32 steps in the smallest groups; else
    None.

    inner: (n, 1 + ranks) as ``smallest_group_waits`` has it; group_of: by rank, its smallest group, -1 none.
    """
    if inner.shape[1] != 1 + times.ranks.size:
        return None
    for window in WINDOWS:
        if min(times.steps.size, len(inner)) < (1 + BEFORE) * window:
            return None
        rise_ns = _rise_ns(times.duration_ns, window)
        keep = min(len(inner), times.steps.size, window + MOST_BEFORE)
        if rise_ns <= 0 or not np.array_equal(inner[-keep:, 0], times.steps[-keep:]):
            continue  # nearly always, and cheap
        known = np.flatnonzero(group_of >= 0)
        if np.unique(group_of[known]).size < FEWEST_GROUPS:
            return None
        columns = known[np.argsort(group_of[known], kind="stable")]
        found = _who_is_waited_for(times, inner[-keep:, 1:], columns, group_of[columns], window, rise_ns)
        if found is not None:
            return found
    return None


def _rise_ns(duration_ns: np.ndarray, window: int) -> float:
    """By how much the last steps are longer than those before them; 0 where chance may have made it."""
    before, after = duration_ns[-window - MOST_BEFORE : -window], duration_ns[-window:]
    usual, now = float(median(before)), float(median(after))
    noise = max(1.4826 * float(median(np.abs(before - usual))), SMALLEST_NOISE * usual)
    least = max(LEAST_RISE * now, RISE_SIGMAS * noise * (1.0 / window + 1.0 / before.size) ** 0.5)
    return now - usual if now - usual > least else 0.0


def _who_is_waited_for(
    times: StepTimes, stood_ns: np.ndarray, columns: np.ndarray, groups: np.ndarray, window: int, rise_ns: float
) -> LateDevice | None:
    """stood_ns: (n, ranks) in the smallest groups; columns: ranks by group; groups: the group of each of them."""
    begins = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    sizes = np.diff(np.append(begins, groups.size))
    of_members = stood_ns[:, columns].astype(np.float64)
    sums = np.add.reduceat(of_members, begins, axis=1)
    means = sums / sizes
    gain_ns = means[-window:].mean(axis=0) - means[:-window].mean(axis=0)
    most = int(np.argmax(gain_ns))
    if not LEAST_PEERS * rise_ns < gain_ns[most] < MOST_PEERS * rise_ns:
        return None
    if np.delete(gain_ns, most).max() > MOST_ELSEWHERE * gain_ns[most]:
        return None
    peers_ns = (np.repeat(sums, sizes, axis=1) - of_members) / (np.repeat(sizes, sizes) - 1)
    less_ns = peers_ns - of_members
    # Looks are coarse, so that most of these may be nothing at all: of all of them, not of the middle one.
    noise_ns = max(1.0, float(less_ns[:-window].std())) * (1.0 / window + 1.0 / (len(less_ns) - window)) ** 0.5
    mine = slice(int(begins[most]), int(begins[most] + sizes[most]))
    before, after = less_ns[:-window, mine], less_ns[-window:, mine]
    # One long pause must not carry a window: what stands out counts twice the middle at most.
    level_ns = np.minimum(after, np.maximum(2.0 * median(after, axis=0), 0.0)).mean(axis=0) - before.mean(axis=0)
    late = int(np.argmax(level_ns))
    z = float(level_ns[late]) / noise_ns
    if z < SIGMAS or (after[:, late] > level_ns[late] / 2.0).mean() < PERSISTENT_SHARE:
        return None
    if of_members[-window:, mine][:, late].mean() > MOST_WAITED * peers_ns[-window:, mine][:, late].mean():
        return None
    return late_rank(times, int(columns[mine][late]), window, z=z)
