"""What the simulation is told of a real run: how long each rank's phases take while nothing is wrong, and how evenly.

Pure. Nothing of what comes at or after the onset is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whichrank.simulator.ddp_program import DdpRecipe
from whichrank.simulator.noise import Noise
from whichrank.telemetry.vocabulary import Phase

from .observed import StepsSeen

#: From a median deviation to a standard deviation.
_SIGMAS = 1.4826
#: What the real script exchanges: the gradients of its perceptron.
GRADIENT_BYTES = 4 * (32 * 64 + 64 + 64 * 64 + 64 + 64 + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Healthy:
    """Medians over steps, without waits for others. self_s: (ranks,) of a whole step; own_s: (ranks, phases).

    step_s: of a whole step, waits included. noise: standard deviation of a rank's kernels in a step, relative: of its
    own, not of what all have in common.
    """

    self_s: NDArray[np.float64]
    own_s: NDArray[np.float64]
    step_s: float
    noise: float

    @classmethod
    def of(cls, steps: StepsSeen) -> Healthy:
        """steps: before the onset. Raises ValueError for fewer than ten."""
        if steps.steps.size < 10:
            raise ValueError(f"only {steps.steps.size} steps before the onset")
        self_s = steps.self_ns / 1e9
        # What all ranks have in common in a step (an exchange that takes longer) makes nobody wait.
        apart_s = self_s - self_s.mean(axis=1, keepdims=True)
        spread_s = _SIGMAS * np.median(np.abs(apart_s - np.median(apart_s, axis=0)), axis=0)
        known = cls(
            self_s=np.median(self_s, axis=0),
            own_s=np.median(steps.phase_self_ns, axis=0) / 1e9,
            step_s=float(np.median(steps.duration_ns)) / 1e9,
            noise=0.0,
        )
        alone = 1.0 - 1.0 / self_s.shape[1]  # of a variance, what is left of it beside the mean
        return replace(known, noise=float(np.median(spread_s / np.sqrt(alone) / known.kernels_s)))

    @property
    def fetch_s(self) -> float:
        """Of a batch. By what a rank needs longer than the quickest, it is the slower rank."""
        return float(self.own_s[:, int(Phase.DATA)].min())

    @property
    def between_s(self) -> float:
        return float(self.own_s[:, int(Phase.OTHER)].min())

    @property
    def kernels_s(self) -> NDArray[np.float64]:
        """By rank, of a step: all but fetching, and what is between two steps."""
        return self.self_s - self.fetch_s - self.between_s

    @property
    def speed(self) -> NDArray[np.float64]:
        """By rank, of the fastest one's."""
        return np.asarray(self.kernels_s.min() / self.kernels_s)

    def recipe(self) -> DdpRecipe:
        """Of the fastest rank; the others have slower devices (``speed``)."""
        fastest = int(np.argmin(self.kernels_s))
        forward_s, optimizer_s = (float(self.own_s[fastest, int(phase)]) for phase in (Phase.FORWARD, Phase.OPTIMIZER))
        return DdpRecipe(
            backend="gloo",
            step_s=self.step_s,
            forward_s=forward_s,
            backward_s=float(self.kernels_s[fastest]) - forward_s - optimizer_s,
            optimizer_s=optimizer_s,
            between_s=self.between_s,
            input_s=self.fetch_s,
            input_bytes=0,
            bucket_bytes=(GRADIENT_BYTES,),
            timeout_s=1800.0,
        )

    def noise_of_life(self) -> Noise:
        return Noise(step=self.noise, operation=0.0)
