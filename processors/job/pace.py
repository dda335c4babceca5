"""Finds the step at which the whole job became slower: a change point on step time, nobody's own fault.

The excess of the slowest rank is taken out first, so that one straggler never looks like a job that is slow together.
Located by the largest cumulative deviation, then verified: large, lasting, abrupt, and apart from the usual spread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .median import median

LONGEST_HISTORY = 512
WARM_UP_STEPS = 10
STEPS_BEFORE = 50
STEPS_AFTER = 40
NS_BEFORE = 20_000_000_000
NS_AFTER = 30_000_000_000
SMALLEST_RATIO = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceChange:
    """step: first slow step. before_ns, after_ns: median step times."""

    step: int
    onset_ns: int
    before_ns: int
    after_ns: int

    @property
    def ratio(self) -> float:
        return self.after_ns / max(1, self.before_ns)


def find_pace_change(steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray) -> PaceChange | None:
    """All (n,), in order. pace_ns: step time without the excess of the slowest rank."""
    if pace_ns.size < STEPS_BEFORE + STEPS_AFTER:
        return None
    pace = np.log(np.maximum(pace_ns, 1).astype(np.float64))
    deviation = np.cumsum(pace - pace.mean())
    change = int(np.argmax(np.abs(deviation))) + 1
    before, after = pace[:change], pace[change:]
    if before.size < STEPS_BEFORE or after.size < STEPS_AFTER:
        return None
    if int(pace_ns[:change].sum()) < NS_BEFORE or int(pace_ns[change:].sum()) < NS_AFTER:
        return None
    rise = float(median(after) - median(before))
    if rise < np.log(SMALLEST_RATIO) or np.quantile(after, 0.2) < np.quantile(before, 0.8):
        return None
    # A ramp (growing batches, longer sequences) is planned work: only a jump is a change.
    edge = float(median(after[:5]) - median(before[-5:]))
    if edge < 0.6 * rise:
        return None
    return PaceChange(
        step=int(steps[change]),
        onset_ns=int(begin_ns[change]),
        before_ns=int(np.exp(median(before))),
        after_ns=int(np.exp(median(after))),
    )


def is_back_to_pace(pace_ns: np.ndarray, before_ns: int, after_ns: int) -> bool:
    """True once the last ten steps lie nearer to the old pace than to the new one."""
    return pace_ns.size >= 10 and float(median(pace_ns[-10:])) < (before_ns * after_ns) ** 0.5
