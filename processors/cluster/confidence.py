"""How sure to be: what the evidence of an incident is worth, put right by how often such words were right.

Operators say how strong their evidence is, in steps that somebody chose. ``confidence.toml`` holds what came of it in
simulated faults with a known truth (``benchmarks/fit_confidence.py``, seeds for tuning only): a logistic map,
``logit(p) = slope * logit(strength) + offset[kind]`` (Platt scaling with an offset for each kind of incident, drawn
towards the common one where few were seen). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ...diagnosis.data_file import read_toml

FILE = "confidence.toml"
#: Nothing is certain, and nothing that is told is certainly wrong.
LEAST, MOST = 0.01, 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Maps the strength of evidence to a probability, by kind of incident. offset: of kinds not among ``offsets``."""

    slope: float = 1.0
    offset: float = 0.0
    offsets: Mapping[str, float]

    def probability(self, strength: float, kind: str) -> float:
        """The probability that what is told is right. strength: of the evidence, 0 to 1; kind: of the incident."""
        return _within(_logistic(self.slope * _logit(strength) + self.offsets.get(kind, self.offset)))

    def strength(self, probability: float, kind: str) -> float:
        """The inverse of ``probability``: the strength of evidence that ``probability`` was made of."""
        return _within(_logistic((_logit(probability) - self.offsets.get(kind, self.offset)) / self.slope))


@cache
def load_reliability() -> Reliability:
    """The map in ``confidence.toml``. Raises KeyError, TypeError or ValueError where the file is wrong."""
    table = read_toml(__package__, FILE)
    known = {"slope", "offset", "offsets"}
    if set(table) != known or float(table["slope"]) <= 0.0:
        raise ValueError(f"{FILE}: {', '.join(sorted(known))} are needed, and slope > 0")
    offsets = {str(kind): float(offset) for kind, offset in table["offsets"].items()}
    return Reliability(slope=float(table["slope"]), offset=float(table["offset"]), offsets=offsets)


def _logit(probability: float) -> float:
    inside = _within(probability)
    return math.log(inside / (1.0 - inside))


def _logistic(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def _within(probability: float) -> float:
    return min(MOST, max(LEAST, probability))
