"""The arithmetic of scores: shares with their intervals, rates of rare events, calibration of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Of the normal distribution, two-sided 95 %.
_Z = 1.959964
_BINS = 10
#: (probability that was told, whether it was right)
Told = tuple[float, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """k of n, with Wilson's 95 % interval. Without cases the share is unknown: 0 to 1."""

    k: int
    n: int

    @property
    def value(self) -> float:
        """k / n; NaN without cases."""
        return self.k / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share; (0, 1) without cases."""
        if not self.n:
            return 0.0, 1.0
        z2, share = _Z * _Z, self.k / self.n
        middle = (share + z2 / (2 * self.n)) / (1 + z2 / self.n)
        half = _Z / (1 + z2 / self.n) * math.sqrt(share * (1 - share) / self.n + z2 / (4 * self.n * self.n))
        return max(0.0, middle - half), min(1.0, middle + half)


def share_of(cases: Sequence[bool]) -> Share:
    """How many of the cases are True."""
    return Share(k=sum(cases), n=len(cases))


def poisson_upper(count: int, *, confidence: float = 0.95) -> float:
    """The one-sided upper bound of a Poisson mean of which ``count`` were seen: 3.0 for none at 95 %."""
    low, high = 0.0, 10.0 + 4.0 * count
    for _ in range(100):
        middle = (low + high) / 2
        if _poisson_at_most(count, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def _poisson_at_most(count: int, mean: float) -> float:
    if mean == 0.0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))


def calibration_error(told: Sequence[Told]) -> float:
    """Expected calibration error over ten bins of equal width; nan without cases.

    told: (probability told, whether it held).
    """
    if not told:
        return math.nan
    bins: list[list[Told]] = [[] for _ in range(_BINS)]
    for probability, right in told:
        bins[min(_BINS - 1, int(probability * _BINS))].append((probability, right))
    gaps = (abs(math.fsum(p for p, _ in each) - sum(r for _, r in each)) for each in bins)
    return math.fsum(gaps) / len(told)


def brier(told: Sequence[Told]) -> float:
    """Brier score: the mean squared distance of probability told and outcome; nan without cases."""
    return math.fsum((p - right) ** 2 for p, right in told) / len(told) if told else math.nan


def brier_of_constant(told: Sequence[Told]) -> float:
    """The Brier score of always telling the share that was right, the best constant; nan without cases."""
    share = share_of([right for _, right in told]).value
    return brier([(share, right) for _, right in told])


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share ``q`` of them does not exceed; ``inf`` is a value. nan for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan
