"""The closed plain steps of a job, as detectors of slow ranks look at them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """Closed plain steps in order; the same ranks in each. Plain: nobody evaluates, saves, restores or compiles.

    steps, begin_ns, duration_ns: (n,); self_ns: (n, ranks), of it without a CPU: starved_ns; phase_self_ns:
    (m, ranks, phases) of the last m steps.
    """

    ranks: np.ndarray
    steps: np.ndarray
    begin_ns: np.ndarray
    duration_ns: np.ndarray
    self_ns: np.ndarray
    starved_ns: np.ndarray
    phase_self_ns: np.ndarray

    def since(self, step: int) -> StepTimes:
        """Only the steps numbered ``step`` and above."""
        late = self.steps >= step
        return StepTimes(
            ranks=self.ranks,
            steps=self.steps[late],
            begin_ns=self.begin_ns[late],
            duration_ns=self.duration_ns[late],
            self_ns=self.self_ns[late],
            starved_ns=self.starved_ns[late],
            phase_self_ns=self.phase_self_ns[late[late.size - self.phase_self_ns.shape[0] :]],
        )

    def without(self, ranks: set[int]) -> StepTimes:
        """The same steps without the columns of ``ranks``."""
        others = ~np.isin(self.ranks, list(ranks))
        return replace(
            self,
            ranks=self.ranks[others],
            self_ns=self.self_ns[:, others],
            starved_ns=self.starved_ns[:, others],
            phase_self_ns=self.phase_self_ns[:, others],
        )
