"""How often to save: what saves cost, against what is lost between them. Pure.

A save holds the job up for w seconds, a failure comes every M seconds on average, and on average half an interval D
of work is lost with it: a share w/D + D/(2 M) of the time. It is least at D = sqrt(2 w M) (Young 1974); Daly's (2006)
terms of higher order matter where w is not small beside M.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...telemetry.vocabulary import TimeBucket
from .interval import Interval
from .mean_time_to_failure import TimeToFailure

#: Below this nobody changes anything.
WORTH_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInterval:
    """What saving costs and would cost. Seconds, steps, shares of running time; None: not known.

    saves: seen. blocked_s: that one holds the job up for, on average. interval_s, interval_steps: between two.
    mttf_s: the measured mean, or, where nothing has failed yet, its lower bound (``is_bound``). best_*: the cheapest
    interval for it. share, best_share: lost to saves and to work since the last one, now and then.
    """

    saves: int
    blocked_s: float
    interval_s: float
    interval_steps: float
    mttf_s: float | None
    is_bound: bool
    best_interval_s: float | None
    best_interval_steps: int | None
    share: float | None
    best_share: float | None

    @property
    def saved_share(self) -> float:
        """Which share of the time the best interval would save; 0 where nothing is known."""
        return 0.0 if self.share is None or self.best_share is None else max(0.0, self.share - self.best_share)


def best_interval_s(blocked_s: float, mttf_s: float) -> float:
    """Daly's interval between the ends of two saves, in seconds of work. blocked_s, mttf_s > 0."""
    ratio = blocked_s / (2.0 * mttf_s)
    if ratio >= 1.0:
        return mttf_s
    root = math.sqrt(ratio)
    return math.sqrt(2.0 * blocked_s * mttf_s) * (1.0 + root / 3.0 + ratio / 9.0) - blocked_s


def lost_share(blocked_s: float, interval_s: float, mttf_s: float) -> float:
    """Share of running time that goes to saves every interval_s and to work that failures undo; at most 1."""
    return min(1.0, blocked_s / (interval_s + blocked_s) + interval_s / (2.0 * mttf_s))


def checkpoint_interval(intervals: Sequence[Interval], mttf: TimeToFailure) -> CheckpointInterval | None:
    """What one run's saves cost, and the interval that would cost least; None where fewer than two were seen.

    intervals: of the run; each save begins one. mttf: of the run's unplanned interruptions.
    """
    saving = [each.of(TimeBucket.CHECKPOINT_SAVE) for each in intervals if each.steps]
    saves = sum(1 for ns in saving if ns > 0)
    steps = sum(each.steps for each in intervals)
    if saves < 2 or not steps:
        return None
    worked_s = sum(each.ns for each in intervals if each.steps) * 1e-9 - sum(saving) * 1e-9
    blocked_s, interval_s = sum(saving) * 1e-9 / saves, worked_s / saves
    is_bound = mttf.mean_s is None
    mttf_s = mttf.low_s if is_bound else mttf.mean_s
    best_s = share = best_share = best_steps = None
    if mttf_s and blocked_s > 0 and interval_s > 0:
        best_s = best_interval_s(blocked_s, mttf_s)
        best_steps = max(1, round(best_s / (worked_s / steps)))
        share, best_share = lost_share(blocked_s, interval_s, mttf_s), lost_share(blocked_s, best_s, mttf_s)
    return CheckpointInterval(
        saves=saves,
        blocked_s=blocked_s,
        interval_s=interval_s,
        interval_steps=steps / saves,
        mttf_s=mttf_s,
        is_bound=is_bound,
        best_interval_s=best_s,
        best_interval_steps=best_steps,
        share=share,
        best_share=best_share,
    )
