"""The soonest at which a slow rank can be told by somebody who knows who it is, by how much, and the noise.

Page's cumulative sum of the log likelihood ratio (Page 1954), which has the shortest delay of all tests with as few
false alarms (Moustakides 1986). What it is told: the ranks that become slow, by which factor, and of a step's own work
the median, standard deviation, autocorrelation and how often steps are long. One false alarm in 10,000 steps of a sound
job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

FALSE_ALARM_STEPS = 10_000
#: Steps drawn to find the threshold; how often the sum gets from zero to REACHED is counted, and beyond it the chance
#: falls by e for each unit, as for every likelihood ratio.
DRAWN_STEPS, REACHED = 200_000, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Of the logarithm of a rank's own work: standard deviation of what is new in a step, how much of a deviation is
    carried on to the next step, the share of long steps, and by how much they are longer on average."""

    fresh: float
    carried_on: float
    long_share: float
    long_mean: float


def steps_to_decide(
    logarithms: np.ndarray, first: int, shift: float, noise: Noise, *, false_alarm_steps: float = FALSE_ALARM_STEPS
) -> int | None:
    """Slow steps until the test decides; None: it has not by the end.

    logarithms: (steps, ranks) of the own work of those ranks that become slow at step ``first``, less the usual.
    """
    ranks = logarithms.shape[1]
    fresh = logarithms.copy()
    fresh[1:] -= noise.carried_on * np.clip(logarithms[:-1], -3.0 * noise.fresh, shift + 3.0 * noise.fresh)
    ratios = _ratio(fresh, shift * (1.0 - noise.carried_on), noise).sum(axis=1)
    threshold = _threshold(shift, ranks, noise) + float(np.log(false_alarm_steps / FALSE_ALARM_STEPS))
    total = 0.0
    for step, ratio in enumerate(ratios.tolist()):
        total = max(0.0, total) + ratio
        if total < threshold:
            continue
        if step >= first:
            return step - first + 1
        total = 0.0
    return None


def _ratio(fresh: np.ndarray, shift: float, noise: Noise) -> np.ndarray:
    """Logarithm of how much likelier a step's news are if its rank is slow."""
    return np.asarray(np.log(_density(fresh - shift, noise)) - np.log(_density(fresh, noise)))


def _density(fresh: np.ndarray, noise: Noise) -> np.ndarray:
    usual = np.exp(-0.5 * (fresh / noise.fresh) ** 2) / (noise.fresh * (2.0 * np.pi) ** 0.5)
    long = np.where(fresh > 0.0, np.exp(-np.maximum(fresh, 0.0) / noise.long_mean) / noise.long_mean, 0.0)
    return np.asarray((1.0 - noise.long_share) * usual + noise.long_share * long + 1e-12)


@lru_cache(maxsize=4096)
def _threshold(shift: float, ranks: int, noise: Noise) -> float:
    chance = np.random.default_rng(1)
    size = (DRAWN_STEPS // ranks, ranks)
    fresh = chance.normal(0.0, noise.fresh, size)
    fresh += (chance.random(size) < noise.long_share) * chance.exponential(noise.long_mean, size)
    ratios = _ratio(fresh, shift * (1.0 - noise.carried_on), noise).sum(axis=1)
    sums = np.cumsum(ratios)
    above = sums - np.minimum(0.0, np.minimum.accumulate(sums))
    begins = np.flatnonzero((above[1:] > 0.0) & (above[:-1] <= 0.0)) + 1
    tops = np.maximum.reduceat(above, begins) if begins.size else np.zeros(0)
    rate = max(0.5, int((tops >= REACHED).sum())) / len(ratios)
    return float(max(0.5, REACHED + np.log(FALSE_ALARM_STEPS * rate)))
