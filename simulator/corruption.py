"""Results that a device computes wrongly and nobody notices, and what becomes of a training that goes on with them.

A wrong activation shows in that rank's loss at once, a wrong gradient only in the norm of the sum over all ranks.
Either way the optimizer puts it into everybody's parameters: from the next step on the model knows less than it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .noise import Draws

#: A flipped bit of the exponent, as it comes out of the sums that follow it.
_NORM, _LOSS = 3.0e4, 40.0
#: Loss of a model that knows nothing, over 50,000 words.
_LOST = 10.8
#: Steps in which it learns back a part of what it lost.
_RECOVERS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """rank: of the job. step: of the attempt. is_forward: in an activation, else in a gradient. overflows: the number
    is beyond what its type can hold; the parameters are none any more."""

    rank: int
    step: int
    is_forward: bool
    overflows: bool


def corrupted(draws: Draws, step: int, corruptions: Sequence[Corruption]) -> Draws:
    """Losses and norms of this step, after all corruptions so far."""
    loss, norm = draws.loss, draws.norm
    for each in corruptions:
        since = step - each.step
        if since == 0:
            norm = np.full_like(norm, np.inf) if each.overflows else norm * _NORM
            if each.is_forward:
                loss = loss.copy()
                loss[each.rank] *= np.nan if each.overflows else _LOSS
        elif since > 0 and each.overflows:
            loss, norm = np.full_like(loss, np.nan), np.full_like(norm, np.nan)
        elif since > 0:
            left = float(np.exp(-since / _RECOVERS))
            loss = loss + left * np.maximum(_LOST - loss, 0.0)
            norm = norm * (1.0 + 20.0 * left)
    return replace(draws, loss=loss, norm=norm) if corruptions else draws
