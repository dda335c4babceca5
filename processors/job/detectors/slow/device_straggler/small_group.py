"""Finds the rank whose device comes late by the waits in small groups: within three or four steps, at any job's size.

The steps became longer, by as much waits grew in one of the smallest groups and in no other, and there one rank is
found waiting in hardly any look, its peers in many. In small groups little is transferred, so hardly a look errs; and
neither more work for all nor a slower network makes waits grow in one of them alone. Pure.

Method: rise of the waits per group against the rise of the steps; counts of looks in standard deviations of chance.
"""

from __future__ import annotations

import numpy as np

from ....columns.median import median
from ..step_times import StepTimes
from .occupancy import LOOK_NS, MOST_OTHERS, LateDevice
from .step_window import FEWEST_BEFORE, FEWEST_STEPS, MOST_BEFORE, MOST_STEPS, became_longer, late_rank

FEWEST_GROUPS = 2
#: Of the rise, by how much the peers wait longer at least; of that, how much waits grew in any other group at most.
LEAST_PEERS, MOST_ELSEWHERE = 0.4, 0.5
#: The late one is found waiting in fewer looks than the next one by so many, and in this share of its peers' at most.
LEAST_LOOKS_APART, MOST_WAITED = 2.5, 0.25
#: In standard deviations of a number of looks that chance makes, by how much it is found less often than its peers.
CHANCE_SIGMAS = 2.0


def find_late_in_group(times: StepTimes, inner: np.ndarray, group_of: np.ndarray) -> LateDevice | None:
    """The rank that one of the smallest groups waits for, since the steps became longer by as much; else None.

    inner: (n, 1 + ranks) as ``smallest_group_waits`` has it; group_of: by rank, its smallest group, -1 none.
    """
    groups = [np.flatnonzero(group_of == group) for group in np.unique(group_of[group_of >= 0])]
    if len(groups) < FEWEST_GROUPS or inner.shape[1] != 1 + times.ranks.size:
        return None
    for window in range(FEWEST_STEPS, MOST_STEPS + 1):
        if min(times.steps.size, len(inner)) < window + FEWEST_BEFORE:
            return None
        if not became_longer(times.duration_ns, window):
            continue
        keep = min(len(inner), times.steps.size, window + MOST_BEFORE)
        if not np.array_equal(inner[-keep:, 0], times.steps[-keep:]):
            return None
        found = _who_is_waited_for(times, inner[-keep:, 1:].astype(np.float64), groups, window)
        if found is not None:
            return found
    return None


def _who_is_waited_for(
    times: StepTimes, stood_ns: np.ndarray, groups: list[np.ndarray], window: int
) -> LateDevice | None:
    """stood_ns: (n, ranks) in the smallest groups."""
    before, after = stood_ns[:-window], stood_ns[-window:]
    usual_ns = float(median(times.duration_ns[-len(stood_ns) : -window]))
    rise_ns = float(median(times.duration_ns[-window:])) - usual_ns
    # One step's pause must not carry a window: of the means of each step the middle one counts.
    gain_ns = np.array(
        [float(median(after[:, columns].mean(axis=1)) - before[:, columns].mean(axis=1).mean()) for columns in groups]
    )
    most = int(np.argmax(gain_ns))
    if not LEAST_PEERS * rise_ns < gain_ns[most] < MOST_OTHERS * rise_ns:
        return None
    if np.delete(gain_ns, most).max() > MOST_ELSEWHERE * gain_ns[most]:
        return None
    columns = groups[most]
    of_group = after[:, columns]
    usually_ns = 2.0 * float(median(of_group.mean(axis=1)))
    looks = np.minimum(of_group, usually_ns).sum(axis=0) / LOOK_NS
    order = np.argsort(looks, kind="stable")
    least, peers = float(looks[order[0]]), float(looks[order[1:]].mean())
    if looks[order[1]] - least < LEAST_LOOKS_APART or least > MOST_WAITED * peers:
        return None
    z = (peers - least) / peers**0.5
    if z < CHANCE_SIGMAS:
        return None
    return late_rank(times, int(columns[order[0]]), window, z=z)
