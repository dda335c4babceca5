"""Scores of ranks from times of marked sections or of kernels: 1 is the best there is, 0.5 takes twice as long. Pure.

Relative scores compare ranks with each other, individual ones a rank with its own best. The formulas are NVRx's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

#: Below it (strictly) a rank is a straggler.
THRESHOLD = 0.75
#: Kernels whose time is waiting for others.
_COMMUNICATION = ("nccl", "rccl", "hccl", "oneccl")

Times = Mapping[str, Sequence[float]]


def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name is NCCL's: such a kernel waits for others."""
    return kernel.lower().startswith(_COMMUNICATION)


def relative_section_scores(windows: Mapping[int, Times]) -> dict[int, dict[str, float]]:
    """By rank and section: the fastest rank's median over its own median (1: the best).

    Sections without a sample have no score.
    """
    medians = {rank: _medians(times) for rank, times in windows.items()}
    best = _least(medians.values())
    return {
        rank: {section: _ratio(best[section], own) for section, own in sections.items()}
        for rank, sections in medians.items()
    }


def relative_gpu_scores(windows: Mapping[int, Times]) -> dict[int, float | None]:
    """By rank a score over the kernels that every rank ran, weighted by time; None where there is none in common."""
    kernels = {rank: _kernels(times) for rank, times in windows.items()}
    common = set.intersection(*(set(times) for times in kernels.values())) if kernels else set()
    medians = {rank: _medians({name: times[name] for name in common}) for rank, times in kernels.items()}
    best = _least(medians.values())
    return {rank: _weighted(kernels[rank], medians[rank], best) for rank in windows}


@dataclass(slots=True)
class OwnBest:
    """The smallest median that one rank ever had, per section or kernel; grows by names, not by reports."""

    best: dict[str, float]

    @classmethod
    def new(cls) -> OwnBest:
        """An OwnBest that knows no time yet."""
        return cls(best={})

    def section_scores(self, window: Times) -> dict[str, float]:
        """By section the rank's own best over the window's median; a new best is noted first."""
        medians = self._take(window)
        return {section: _ratio(self.best[section], own) for section, own in medians.items()}

    def gpu_score(self, window: Times) -> float | None:
        """A score over the window's kernels against the rank's own best, weighted by time; None: no kernel in it.

        A new best is noted first.
        """
        kernels = _kernels(window)
        return _weighted(kernels, self._take(kernels), self.best)

    def _take(self, window: Times) -> dict[str, float]:
        medians = _medians(window)
        for name, value in medians.items():
            self.best[name] = min(value, self.best.get(name, value))
        return medians


def stragglers(scores: Mapping[int, float | None], threshold: float = THRESHOLD) -> tuple[int, ...]:
    """Ranks strictly below the threshold; who has no score is none."""
    return tuple(rank for rank, score in scores.items() if score is not None and score < threshold)


def _kernels(times: Times) -> dict[str, Sequence[float]]:
    return {name: samples for name, samples in times.items() if len(samples) and not is_communication(name)}


def _medians(times: Times) -> dict[str, float]:
    return {name: median(samples) for name, samples in times.items() if len(samples)}


def _least(medians: Iterable[Mapping[str, float]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for sections in medians:
        for name, value in sections.items():
            best[name] = min(value, best.get(name, value))
    return best


def _weighted(times: Times, medians: Mapping[str, float], best: Mapping[str, float]) -> float | None:
    weights = {name: sum(times[name]) for name in medians}
    total = sum(weights.values())
    if total <= 0:
        return None
    return sum(_ratio(best[name], medians[name]) * weight for name, weight in weights.items()) / total


def _ratio(best: float, own: float) -> float:
    return best / own if own > 0 else 1.0
