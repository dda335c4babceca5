"""What the simulation is told of a real run: how long each rank's phases take while nothing is wrong, and how evenly.

Pure. Nothing of what comes at or after the onset is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

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
_KERNELS = [int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Healthy:
    """Medians over steps. own_s: (ranks, phases), without waits for others; step_s: of a whole step.

    noise: standard deviation of a rank's kernels in a step, relative.
    """

    own_s: NDArray[np.float64]
    step_s: float
    noise: float

    @classmethod
    def of(cls, steps: StepsSeen) -> Healthy:
        """steps: before the onset. Raises ValueError for fewer than ten."""
        if steps.steps.size < 10:
            raise ValueError(f"only {steps.steps.size} steps before the onset")
        forward = steps.phase_self_ns[:, :, int(Phase.FORWARD)] / 1e9
        kernels_s = np.median(steps.phase_self_ns[:, :, _KERNELS].sum(axis=2), axis=0) / 1e9
        spread = _SIGMAS * np.median(np.abs(forward - np.median(forward, axis=0)), axis=0)
        return cls(
            own_s=np.median(steps.phase_self_ns, axis=0) / 1e9,
            step_s=float(np.median(steps.duration_ns)) / 1e9,
            noise=float(np.median(spread / kernels_s)),
        )

    @property
    def kernels_s(self) -> NDArray[np.float64]:
        """By rank, of a step."""
        return np.asarray(self.own_s[:, _KERNELS].sum(axis=1))

    @property
    def speed(self) -> NDArray[np.float64]:
        """By rank, of the fastest one's."""
        return np.asarray(self.kernels_s.min() / self.kernels_s)

    @property
    def fetch_s(self) -> float:
        """Of the usual rank."""
        return float(np.median(self.own_s[:, int(Phase.DATA)]))

    def recipe(self) -> DdpRecipe:
        """Of the fastest rank; the others have slower devices (``speed``)."""
        fastest = self.own_s[int(np.argmin(self.kernels_s))]
        return DdpRecipe(
            backend="gloo",
            step_s=self.step_s,
            forward_s=float(fastest[int(Phase.FORWARD)]),
            backward_s=float(fastest[int(Phase.BACKWARD)]),
            optimizer_s=float(fastest[int(Phase.OPTIMIZER)]),
            between_s=float(np.median(self.own_s[:, int(Phase.OTHER)])),
            input_s=self.fetch_s,
            input_bytes=0,
            bucket_bytes=(GRADIENT_BYTES,),
            timeout_s=1800.0,
        )

    def noise_of_life(self) -> Noise:
        return Noise(step=self.noise, operation=0.0)
