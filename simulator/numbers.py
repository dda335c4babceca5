"""What the numbers of a training say, step after step: a loss of each rank, and one gradient norm for all of them.

Each rank's loss is its own; the norm is taken after the gradients were summed up, so that one bad part shows in it
everywhere. What a bad step does to the weights is felt for a while, and a number that is none stays for good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .noise import Draws

#: Of the harm that a bad step did, what is left after the next one; and by how much losses feel it.
_LEFT = 0.8
_FELT = 0.3


@dataclass(kw_only=True)
class NumericHealth:
    """How the weights of a job do. harm: logarithm of the gradient norm by a usual one, as it was after the last step;
    inf: they are lost.
    """

    harm: float = 0.0

    def after(self, draws: Draws, loss: NDArray[np.float64] | None) -> Draws:
        """The step's ``draws`` with losses and norms as the harm leaves them.

        Changes ``harm``: call it once per step, in order. loss: factor on each rank's loss; None: usual.
        """
        if loss is None and self.harm < 1e-3:
            self.harm = 0.0
            return draws
        if np.isinf(self.harm):
            bad = np.full_like(draws.loss, np.nan)
            return replace(draws, loss=bad, norm=bad)
        factor = np.ones_like(draws.loss) if loss is None else loss
        felt = draws.loss * (1.0 + _FELT * self.harm)
        summed = float(np.sqrt(np.mean(np.square(factor))))
        fresh = np.log(max(summed, 1.0)) if np.isfinite(summed) else np.inf
        self.harm = max(_LEFT * self.harm, float(fresh))
        norm = draws.norm * (np.exp(self.harm) if np.isfinite(self.harm) else np.nan)
        return replace(draws, loss=felt * factor, norm=norm)
