"""Finds the step from which all steps are longer because another rank is late in each of them.

No rank is slower than the others for long, and without the slowest one of each step the pace is nearly as before: the
work itself has become uneven (texts packed without regard to their lengths). Pauses that wander cost less than this.
"""

from __future__ import annotations

import numpy as np

from .excess import excess_over_others
from .median import median
from .pace import PaceChange, find_pace_change, find_sudden_change
from .straggler import FEWEST_BASELINE_STEPS, StepTimes

#: Of what steps became longer by, how much is in the pace without the slowest rank at most: else all are slower alike.
LARGEST_IN_PACE = 0.67
#: And by how much of it any rank's own work grew beyond the others' at most: else it is that rank's, node's or stage's.
LARGEST_OF_ONE, LARGEST_OF_ONE_AT_ONCE = 0.5, 0.75  # of few steps one rank may be the latest in two
#: Told at once: in each of the steps that have just become longer another rank is the latest, but for one; it is
#: later than usual by this share of the rise, in ranks enough that it is not the same one by chance.
LATEST_SHARE, FEWEST_RANKS = 0.5, 16
#: As ``pace.SUDDEN_STEPS_AFTER``: of three steps one slow rank may by chance be the latest in two only.
UNEVEN_STEPS_AFTER = {4: 1.0, 5: 0.97}


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
    return change if _is_of_nobody(times, since, LARGEST_OF_ONE * rise_ns) else None


def find_sudden_wandering(
    times: StepTimes, steps: np.ndarray, begin_ns: np.ndarray, length_ns: np.ndarray
) -> PaceChange | None:
    """The same of a change that has just come. A slow rank would be the latest each time; where all are slower, nobody
    is later than usual."""
    if times.ranks.size < FEWEST_RANKS:
        return None
    change = find_sudden_change(steps, begin_ns, length_ns, UNEVEN_STEPS_AFTER)
    if change is None:
        return None
    since = times.steps >= change.step
    late = int(since.sum())
    if late < int((steps >= change.step).sum()) or int((~since).sum()) < FEWEST_BASELINE_STEPS:
        return None
    excess_ns = excess_over_others(times.self_ns)
    latest = excess_ns.max(axis=1)
    usual_ns = float(median(latest[~since]))
    rise_ns = change.after_ns - change.before_ns
    if (latest[since] - usual_ns).min() < LATEST_SHARE * rise_ns:
        return None
    wanders = np.unique(excess_ns[since].argmax(axis=1)).size >= late - 1
    return change if wanders and _is_of_nobody(times, since, LARGEST_OF_ONE_AT_ONCE * rise_ns) else None


def _is_of_nobody(times: StepTimes, since: np.ndarray, most_ns: float) -> bool:
    """Whether no rank's own work has grown by so much more than the others'."""
    by_rank = times.self_ns[since].mean(axis=0) - times.self_ns[~since].mean(axis=0)
    return bool(by_rank.max() - median(by_rank) < most_ns)
