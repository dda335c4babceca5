"""How often a job is started again, and after what pause: back-off and breaker. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: Restarts this close together are what the breaker counts.
BREAKER_S = 3600.0
#: A pause never grows beyond this, and is drawn within this share of its length.
LONGEST_PAUSE_S, JITTER = 300.0, 0.25
#: So many failures alike at one step are enough.
ALIKE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """restarts: in all. per_hour: of them within an hour. backoff_s: the first pause; each is twice the one before."""

    restarts: int
    per_hour: int
    backoff_s: float
    alike: int = ALIKE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A restart. at_s: monotonic. what: by what failures are alike (``decision.like``); () not known."""

    at_s: float
    what: tuple[str, ...] = ()


def is_open(tried: Sequence[Tried], limits: RestartLimits, now_s: float) -> bool:
    """Whether the breaker is open: as many restarts as are allowed lie within the last hour."""
    return recent(tried, now_s) >= limits.per_hour


def recent(tried: Sequence[Tried], now_s: float) -> int:
    """Restarts within the last hour: those before it say nothing of what is wrong now."""
    return sum(now_s - one.at_s < BREAKER_S for one in tried)


def pause_s(number: int, limits: RestartLimits, seed: str) -> float:
    """Seconds before restart ``number`` (from 1) of the last hour: doubles each time, is bounded, differs by job.

    seed: the job's; the same job waits the same each time.
    """
    whole = min(LONGEST_PAUSE_S, limits.backoff_s * 2.0 ** min(number - 1, 30))
    return whole * (1.0 + JITTER * (2.0 * random.Random(f"{seed}/{number}").random() - 1.0))
