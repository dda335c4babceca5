"""How long the phases of a job's earlier attempts took: precedents for an attempt that has none of its own yet.

An attempt's first step, its first save or evaluation has nothing to be compared with in that attempt, and in the one
before it had. Learned as ``diagnosis.restarts.learned_timeouts`` does: the longest over all ranks, averaged with what
earlier attempts have taught, so that one odd attempt moves it half way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....diagnosis.restarts.learned_timeouts import merge_learned
from ....telemetry.vocabulary import Phase

#: Shorter than this, a phase is not taken as seen: entering and leaving at once is no precedent.
SEEN_NS = 1_000_000


class LearnedTimes:
    """By phase, in ns, 0 not known. first_ns: in an attempt's first step. later_ns: after it."""

    __slots__ = ("first_ns", "later_ns")

    def __init__(self) -> None:
        self.first_ns = np.zeros(len(Phase), np.int64)
        self.later_ns = np.zeros(len(Phase), np.int64)

    def learn(self, first_ns: np.ndarray, later_ns: np.ndarray) -> None:
        """Takes the longest of each phase that an attempt has seen; what it has not seen stays as it is."""
        self.first_ns = _merged(self.first_ns, first_ns)
        self.later_ns = _merged(self.later_ns, later_ns)

    def longest_ns(self, phase: int, *, in_first_step: bool) -> int | None:
        """What earlier attempts took at most in this phase; None: they have not told."""
        learned = self.first_ns if in_first_step else self.later_ns
        found = int(learned[phase]) if phase < learned.size else 0
        return found if found >= SEEN_NS else None

    def write(self) -> list[list[int]]:
        """As JSON values for ``read``; [] where nothing was learned."""
        if not self.first_ns.any() and not self.later_ns.any():
            return []
        return [self.first_ns.tolist(), self.later_ns.tolist()]

    @classmethod
    def read(cls, written: Sequence[Sequence[int]]) -> LearnedTimes:
        """What ``write`` gave, of this release or an earlier one. Raises ValueError for something else."""
        times = cls()
        if written:
            times.first_ns, times.later_ns = map(_of, written)
        return times


def _merged(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    merged: np.ndarray = before.copy()
    for phase in np.flatnonzero(now >= SEEN_NS).tolist():
        known = int(before[phase])
        merged[phase] = round(merge_learned(float(now[phase]), float(known) if known else None))
    return merged


def _of(values: Sequence[int]) -> np.ndarray:
    found = np.zeros(len(Phase), np.int64)
    found[: len(values)] = values[: len(Phase)]
    return found
