"""Finds the step from which all steps are longer because another rank is late in each of them.

No rank is slower than the others for long, and without the slowest one of each step the pace is nearly as before: the
work itself has become uneven (texts packed without regard to their lengths). Pauses that wander cost less than this.
"""

from __future__ import annotations

import numpy as np

from .median import median
from .pace import PaceChange, find_pace_change
from .straggler import FEWEST_BASELINE_STEPS, StepTimes

#: Of what steps became longer by, how much is in the pace without the slowest rank at most: else all are slower alike.
LARGEST_IN_PACE = 0.67
#: And by how much of it any rank's own work grew beyond the others' at most: else it is that rank's, node's or stage's.
LARGEST_OF_ONE = 0.5


def find_wandering(
    times: StepTimes, steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray, length_ns: np.ndarray
) -> PaceChange | None:
    """steps, begin_ns, pace_ns, length_ns: (n,), of more steps than ``times`` may hold; its lengths change."""
    change = find_pace_change(steps, begin_ns, length_ns)
    if change is None:
        return None
    rise_ns, late = change.after_ns - change.before_ns, steps >= change.step
    if median(pace_ns[late]) - median(pace_ns[~late]) > LARGEST_IN_PACE * rise_ns:
        return None
    known = late & np.isin(steps, times.steps)
    if not known.any() or median(length_ns[known]) - change.before_ns < LARGEST_OF_ONE * rise_ns:
        return None  # who was slow in them is known, and over: these steps are not compared any more
    since = times.steps >= change.step
    if min(int(since.sum()), int((~since).sum())) < FEWEST_BASELINE_STEPS:
        return None
    by_rank = times.self_ns[since].mean(axis=0) - times.self_ns[~since].mean(axis=0)
    return change if by_rank.max() - median(by_rank) < LARGEST_OF_ONE * rise_ns else None
