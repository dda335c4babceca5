"""How much evidence speaks for a shared cause: log-likelihood ratios, a greedy cover, a Gamma posterior. Pure.

All scores are natural logarithms of odds. A cause must earn more than ``LEAST_GAIN`` beyond what its being one of many
costs; the fewest causes that explain the most are taken, best first (a greedy noisy-OR cover).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....telemetry.incident_document import EvidenceRow, Value
from .rules import Rule

LEAST_GAIN = 3.0
#: Chance that a job has trouble of its own within a window.
CHANCE = 0.02
#: What may be said at most: a cause that nobody has thought of is always possible.
MOST_SURE = 0.97
#: Below it the causes that remain are all named, and none is blamed.
DECIDES = 0.6
#: Log-odds are divided by it: jobs that share one thing share others, so their evidence is not independent.
TEMPER = 1.5
#: Prior of a node's failure rate: as if so many failures had been seen at the fleet's rate.
PRIOR_FAILURES = 0.05
#: An incident that is a node's with such a probability by itself: no error of a program explains it.
OF_THE_NODE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cause that may explain several troubles.

    covers: by trouble, the log-likelihood ratio of it under this cause against chance. against: of those that are
    exposed and well, not above 0. prior: log-odds before any of them was seen, with its cost as one of many values.
    words: for the sentences of its rule.
    """

    rule: Rule
    value: str
    covers: Mapping[str, float]
    against: float = 0.0
    prior: float = 0.0
    onset: float = 0.0
    exposed: int = 0
    words: Mapping[str, Value] = field(default_factory=dict)
    evidence: Sequence[EvidenceRow] = ()
    jobs: frozenset[str] = frozenset()
    culprit: str = ""  # job that did it, where one did
    is_lone: bool = False  # one job is enough: several of its nodes were hit together

    def gain(self, explained: Iterable[str] = ()) -> float:
        """Log-odds for it, beyond what it costs. explained: troubles that another cause has taken already; they add
        nothing.
        """
        taken = set(explained)
        return sum(llr for trouble, llr in self.covers.items() if trouble not in taken) + self.against + self.prior


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A cause that is taken. rivals: others that explain about the same, with their probabilities."""

    candidate: Candidate
    gain: float
    probability: float
    rivals: Sequence[tuple[Candidate, float]]

    @property
    def decides(self) -> bool:
        """Whether this candidate is sure enough to be named as the only cause."""
        return self.probability >= DECIDES


def choose(candidates: Sequence[Candidate], jobs_of: Mapping[str, str]) -> list[Choice]:
    """The fewest causes that explain everything, best first; troubles without a likely cause stay unexplained.

    jobs_of: by trouble (its id), its job.
    """
    explained: set[str] = set()
    chosen: list[Choice] = []
    left = list(candidates)
    while left:
        left.sort(key=lambda c: (-c.gain(explained), c.rule.name, c.value))
        best = left.pop(0)
        gain = best.gain(explained)
        if gain <= LEAST_GAIN:
            break
        news = set(best.covers) - explained
        if not news or (len({jobs_of[trouble] for trouble in news}) < best.rule.min_jobs and not best.is_lone):
            continue
        rivals = [c for c in left if _explains_the_same(c, news) and c.gain(explained) > 0]
        chosen.append(_choice(best, gain, [(rival, rival.gain(explained)) for rival in rivals]))
        explained |= news
    return chosen


def _explains_the_same(candidate: Candidate, troubles: set[str]) -> bool:
    shared = len(troubles & set(candidate.covers))
    return 2 * shared > len(troubles)


def _choice(best: Candidate, gain: float, rivals: Sequence[tuple[Candidate, float]]) -> Choice:
    weights = [1.0, *(math.exp((score - gain) / TEMPER) for _, score in rivals)]
    whole = sum(weights) + math.exp(-gain / TEMPER)  # the last: that it is chance
    named = sorted(
        ((rival, weight / whole) for (rival, _), weight in zip(rivals, weights[1:], strict=True)),
        key=lambda each: (-each[1], each[0].rule.name, each[0].value),
    )
    probability = min(MOST_SURE, 1.0 / whole)
    return Choice(candidate=best, gain=gain, probability=probability, rivals=[r for r in named if r[1] >= 0.02][:8])


def hit_or_not(hit: int, well: int, p1: float, p0: float) -> float:
    """Log-likelihood ratio of a cause (p1) against chance (p0), each the probability that an exposed job is hit.

    hit, well: how many of the exposed were hit and were not.
    """
    return hit * math.log(p1 / p0) + well * math.log((1.0 - p1) / (1.0 - p0))


def rate_per_hour(failures: float, hours: float) -> float:
    """The estimated rate of failures of a fleet, above 0 also where it has not failed yet."""
    return (failures + 0.5) / max(hours, 1.0)


def lemon_probability(failures: float, hours: float, fleet_failures: float, fleet_hours: float) -> float:
    """The probability that the node's rate is over 3 times that of the fleet without it. failures: sums of blame."""
    fleet_rate = rate_per_hour(fleet_failures, fleet_hours)
    shape, rate = PRIOR_FAILURES + failures, PRIOR_FAILURES / fleet_rate + hours
    return gamma_tail(shape, 3.0 * fleet_rate * rate)


def failures_of_node(by_program: Iterable[Sequence[tuple[float, bool]]], hours: float, fleet_rate: float) -> float:
    """How many of a node's incidents are its own, as they are seen together. hours: of the node; fleet_rate: per hour.

    by_program: of each program that failed there, for each incident the probability by which it alone is the node's,
    and whether no other node has failed in its words. One error of a program explains all its incidents that show no
    fault of the node, so these count as one. What fails in words of its own is weighed by Bayes' rule: the more often
    the node failed under others, the likelier it failed here too. An incident's odds are multiplied by the node's
    rate, without that incident, over the fleet's.
    """
    certain, doubtful = 0.0, list[tuple[float, bool]]()
    for incidents in by_program:
        certain += sum(weight for weight, _ in incidents if weight >= OF_THE_NODE)
        if unsure := [each for each in incidents if each[0] < OF_THE_NODE]:
            doubtful.append(max(unsure, key=lambda each: (each[1], each[0])))
    whole = certain + sum(weight for weight, _ in doubtful)
    failures = certain
    for weight, is_of_its_own in doubtful:
        times = (PRIOR_FAILURES + whole - weight) / (PRIOR_FAILURES + hours * fleet_rate) if is_of_its_own else 1.0
        failures += weight * times / (weight * times + 1.0 - weight)
    return failures


def gamma_tail(shape: float, x: float) -> float:
    """P(X > x) of a Gamma distribution of this shape and rate 1: the regularised upper incomplete gamma function.

    By its series below shape + 1, by Lentz's continued fraction above (Numerical Recipes, 6.2). shape > 0, x >= 0.
    """
    if x <= 0:
        return 1.0
    front = math.exp(-x + shape * math.log(x) - math.lgamma(shape))
    if x < shape + 1.0:
        term = total = 1.0 / shape
        for n in range(1, 500):
            term *= x / (shape + n)
            total += term
            if term < total * 1e-12:
                break
        return max(0.0, 1.0 - total * front)
    tiny = 1e-300
    b = x + 1.0 - shape
    c, d = 1.0 / tiny, 1.0 / b
    fraction = d
    for n in range(1, 500):
        an = -n * (n - shape)
        b += 2.0
        d = 1.0 / (_apart(an * d + b, tiny))
        c = _apart(b + an / c, tiny)
        fraction *= d * c
        if abs(d * c - 1.0) < 1e-12:
            break
    return min(1.0, front * fraction)


def _apart(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
