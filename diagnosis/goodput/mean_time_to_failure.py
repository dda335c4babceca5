"""Mean time to failure with its confidence interval.

With k failures in a time T under a constant rate, MTTF is T / k and lies, with confidence 1 - a, within
[2T / chi2(1 - a/2; 2k + 2), 2T / chi2(a/2; 2k)] (exact, from the Poisson distribution; for a time that was not ended
by a failure). Never extrapolated to other sizes of job: small jobs die of software, large ones of hardware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToFailure:
    """Seconds; None where there was no failure: then only ``low_s`` is known. confidence: of [low_s, high_s]."""

    failures: int
    time_s: float
    mean_s: float | None
    low_s: float
    high_s: float | None
    confidence: float


def time_to_failure(failures: int, time_s: float, confidence: float = 0.95) -> TimeToFailure:
    """The mean time to failure with its confidence interval, for ``failures`` in ``time_s`` of running.

    (Of a job, a node, a tenant's jobs together.)
    """
    tail = (1.0 - confidence) / 2.0
    return TimeToFailure(
        failures=failures,
        time_s=time_s,
        mean_s=time_s / failures if failures else None,
        low_s=2.0 * time_s / chi2_quantile(1.0 - tail, 2 * failures + 2),
        high_s=2.0 * time_s / chi2_quantile(tail, 2 * failures) if failures else None,
        confidence=confidence,
    )


def chi2_quantile(probability: float, degrees: int) -> float:
    """The quantile of the chi-square distribution with an even number of degrees of freedom, by bisection.

    Raises ValueError for a probability that has no quantile, and for an odd number.
    """
    if degrees < 2 or degrees % 2 or not 0.0 < probability < 1.0:
        raise ValueError(f"no quantile {probability} of {degrees} degrees of freedom")
    low, high = 0.0, 2.0 * degrees + 100.0
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2.0
        if _chi2_below(middle, degrees // 2) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _chi2_below(x: float, half: int) -> float:
    """P(X <= x) of 2 * half degrees: 1 - P(Poisson(x / 2) < half)."""
    rate = x / 2.0
    if rate <= 0.0:
        return 0.0
    logs = [k * math.log(rate) - rate - math.lgamma(k + 1) for k in range(half)]
    return max(0.0, 1.0 - math.fsum(math.exp(value) for value in logs))
