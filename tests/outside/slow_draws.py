"""Slow ranks, drawn: which rank, by how much, from which step on, and how long its and the others' work takes.

Steps of 20 to 500 ms (log-uniform), jitter of 3 to 20 %, a rank or all of them 15 to 40 % slower for the rest of the
job, or nobody. The shape of the jitter is that of five torchrun jobs of three ranks that computed all of their time on
two busy cores, in steps of 13 to 360 ms (``scripts_slow/drawn.py`` with SLOW_WORKS): of a deviation the next step still
had 10, 18, 29, 46 and 68 %; steps longer by more than four standard deviations were none in three of them, 5 and 9 % in
two, by 3 and 1.6 times. What struck all ranks at once (a correlation of 0.3 to 0.85) is left out: no test would need it
that compares ranks.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

SHARES = (0.15, 0.20, 0.30, 0.40)
#: Of the logarithm of a rank's own work: how much of a deviation the next step still has; the middle one of the five.
CARRIED_ON = 0.29
#: So many steps are longer than jitter makes them, and by how much on average (exponential), of the logarithm: between
#: those jobs that had none and those that had many.
LONG_SHARE, LONG_MEAN = 0.01, 0.4
SHORTEST_S, LONGEST_S = 0.02, 0.5
LEAST_JITTER, MOST_JITTER = 0.03, 0.20
#: Before a fault, and the whole job: real ones take ten seconds to start and last no more than 90.
BEFORE_S, FEWEST_BEFORE, WHOLE_S = (15.0, 35.0), 60, 75.0
HEALTHY_S = 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """who: "one", "all" or "" nobody. jitter: standard deviation of the logarithm of a rank's own work. first: slow
    step. seconds: of the job, about."""

    name: str
    seed: int
    who: str
    share: float
    step_s: float
    jitter: float
    ranks: int
    rank: int
    first: int
    steps: int

    @property
    def shift(self) -> float:
        """Of the logarithm of slow work."""
        return math.log1p(self.share)


def draw(seed: int, number: int, *, healthy: bool, is_real: bool) -> Drawn:
    """Shares and who is slow come in turn, all else is drawn."""
    chance = random.Random(f"{seed} {number} {healthy} {is_real}")
    step_s = math.exp(chance.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
    jitter = chance.uniform(LEAST_JITTER, MOST_JITTER)
    ranks = 3 if is_real else chance.randint(4, 8)
    first = max(FEWEST_BEFORE, round(chance.uniform(*BEFORE_S) / step_s))
    length_s = step_s * (1.0 + jitter)  # the last of some ranks is waited for
    who = "" if healthy else ("one", "all")[number % 2]
    share = 0.0 if healthy else SHARES[number // 2 % len(SHARES)]
    return Drawn(
        name=f"{number:04d}-{'sound' if healthy else f'{who}-{share:.0%}'}",
        seed=chance.randrange(1 << 30),
        who=who,
        share=share,
        step_s=step_s,
        jitter=jitter,
        ranks=ranks,
        rank=chance.randrange(ranks),
        first=first,
        steps=round((HEALTHY_S if healthy else WHOLE_S) / length_s),
    )


def own_seconds(drawn: Drawn) -> np.ndarray:
    """(steps, ranks): how long each rank's own work takes in each step."""
    chance = np.random.default_rng(drawn.seed)
    size = (drawn.steps, drawn.ranks)
    logarithm = carried_on(chance.normal(0.0, drawn.jitter, size))
    logarithm += (chance.random(size) < LONG_SHARE) * chance.exponential(LONG_MEAN, size)
    slow = np.zeros(size, bool)
    if drawn.who:
        slow[drawn.first :, slice(None) if drawn.who == "all" else drawn.rank] = True
    return np.asarray(drawn.step_s * np.exp(logarithm) * np.where(slow, 1.0 + drawn.share, 1.0))


def carried_on(fresh: np.ndarray) -> np.ndarray:
    """A first-order autoregression with the standard deviation of ``fresh``."""
    out = fresh.copy()
    for step in range(1, len(out)):
        out[step] = CARRIED_ON * out[step - 1] + (1.0 - CARRIED_ON**2) ** 0.5 * fresh[step]
    return np.asarray(out)
