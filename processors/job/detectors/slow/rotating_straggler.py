"""Finds the step from which all steps are longer because another rank is late in each of them.

No rank is slower than the others for long, and without the slowest one of each step the pace is nearly as before: the
work itself has become uneven (texts packed without regard to their lengths). Pauses that wander cost less than this.

Method: excess of each step's slowest rank before and after a change of length, and the share of one rank in being it.
"""

from __future__ import annotations

import numpy as np

from ...columns.median import median
from .robust_excess import excess_over_others
from .step_time_changepoint import PaceChange, find_pace_change, sudden_changes
from .step_times import StepTimes
from .straggler import FEWEST_BASELINE_STEPS

#: Of what steps became longer by, how much is in the pace without the slowest rank at most: else all are slower alike.
LARGEST_IN_PACE = 0.67
#: And by how much of it any rank's own work grew beyond the others' at most: else it is that rank's, node's or stage's.
LARGEST_OF_ONE, LARGEST_OF_ONE_AT_ONCE = 0.5, 0.75  # of few steps one rank may be the latest in two
#: Told at once: in each of the steps that have just become longer another rank is the latest, but for one; they are
#: later than usual by this share of the rise on average, and each by this (looks at devices blur single steps), in
#: ranks enough that it is not the same one by chance.
LATEST_SHARE, LEAST_SHARE, FEWEST_RANKS = 0.5, 0.2, 16
#: Who was late must not tell who is late next: the variance of the ranks' means beside that of single steps, which is 1
#: where all ranks are alike (the F statistic of one-way analysis of variance; 3.1 in one of a thousand).
MOST_BETWEEN_RANKS = 3.0
#: As ``pace.SUDDEN_STEPS_AFTER``; lengths that vary leave more room for doubt.
UNEVEN_STEPS_AFTER = {3: 1.0, 4: 0.97, 5: 0.97, 6: 0.97, 8: 0.95}


def find_wandering(
    times: StepTimes, steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray, length_ns: np.ndarray
) -> PaceChange | None:
    """The change from which steps are longer because another rank is late in each; None: no change, or one rank is to
    blame.

    All (n,), of more steps than ``times`` may hold: begin_ns: Unix; pace_ns: lengths without the slowest rank's excess;
    length_ns: whole lengths.
    """
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
    """As ``find_wandering``, of a change in the last few steps; None also with fewer than FEWEST_RANKS ranks.

    A slow rank would be the latest each time; where all are slower, nobody is later than usual.
    """
    if times.ranks.size < FEWEST_RANKS:
        return None
    changes = sudden_changes(steps, begin_ns, length_ns, UNEVEN_STEPS_AFTER)
    return next((change for change in changes if _wanders(times, change, int((steps >= change.step).sum()))), None)


def _wanders(times: StepTimes, change: PaceChange, steps_since: int) -> bool:
    since = times.steps >= change.step
    late = int(since.sum())
    if late < steps_since or int((~since).sum()) < FEWEST_BASELINE_STEPS:
        return False
    excess_ns = excess_over_others(times.self_ns)
    latest = excess_ns.max(axis=1)
    usual_ns = float(median(latest[~since]))
    rise_ns = change.after_ns - change.before_ns
    later_ns = latest[since] - usual_ns
    if later_ns.mean() < LATEST_SHARE * rise_ns or later_ns.min() < LEAST_SHARE * rise_ns:
        return False
    if np.unique(excess_ns[since].argmax(axis=1)).size < late - 1 or _is_of_some(times, since):
        return False
    return _is_of_nobody(times, since, LARGEST_OF_ONE_AT_ONCE * rise_ns)


def _is_of_some(times: StepTimes, since: np.ndarray) -> bool:
    """Whether the same ranks' work has grown in each of these steps: a stage's, or half of a job's."""
    grown = times.self_ns[since] - times.self_ns[~since].mean(axis=0)
    between, within = len(grown) * grown.mean(axis=0).var(ddof=1), grown.var(axis=0, ddof=1).mean()
    return bool(between > MOST_BETWEEN_RANKS * within)


def _is_of_nobody(times: StepTimes, since: np.ndarray, most_ns: float) -> bool:
    """Whether no rank's own work has grown by so much more than the others'."""
    by_rank = times.self_ns[since].mean(axis=0) - times.self_ns[~since].mean(axis=0)
    return bool(by_rank.max() - median(by_rank) < most_ns)
