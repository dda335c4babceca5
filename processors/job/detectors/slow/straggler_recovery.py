"""When a rank that was slow is as fast as usual again: with as much evidence as it was called slow with.

Method: a generalised likelihood ratio (Willsky and Jones 1976) over all steps since its first slow one.
"""

from __future__ import annotations

import numpy as np

from .robust_excess import SMALLEST_NOISE, excess_over_others, noise_of_one
from .step_times import StepTimes
from .straggler import SMALLEST_EXCESS, WINDOWS
from .straggler_memory import StragglerMemory

#: The excess has gone when no excess is likelier than all of it by e to this, over steps of so long together at least.
RECOVERY_LIKELIHOOD, RECOVERY_NS = 14.0, 1_000_000_000
#: What of it is taken for certain: so many standard deviations less than its slow steps say, and this share at least.
LEVEL_Z, LEAST_LEFT = 2.0, 1.0 / 3.0
#: Of likelihood, over so many steps: small excesses gather little in each.
LASTING_STEPS, LASTING_LIKELIHOOD = 24, 7.0


def is_still_slow(times: StepTimes, found: StragglerMemory) -> bool:
    """False once the steps since its first slow one show that the excess of ``found.rank`` has gone, with as much
    evidence as it was opened with. times: of all ranks. True, too, where the rank is missing or steps are too few.

    A generalised likelihood ratio over all steps since its first slow one: no excess from some step on, beside as much
    as there was until then. What the few steps say in which it was found is too much, as chance helped: taken is what
    the steps until then show for certain, and a third of what was found at least.
    """
    where = np.flatnonzero(times.ranks == found.rank)
    if not where.size:
        return True
    chosen = times.steps >= found.step
    lengths_ns = times.duration_ns[chosen]
    if lengths_ns.size < min(WINDOWS):
        return True
    # What another rank waits for a CPU hides this one's excess: it has to be gone with such waits and without.
    series = [times.self_ns, times.self_ns - times.starved_ns] if times.starved_ns.any() else [times.self_ns]
    for self_ns in series:
        excess = excess_over_others(self_ns)[:, where[0]] / np.maximum(times.duration_ns, 1) - found.usual
        if not _has_gone(excess[chosen], lengths_ns, found):
            return True
    return False


def _has_gone(excess: np.ndarray, lengths_ns: np.ndarray, found: StragglerMemory) -> bool:
    """excess: (n,) of the rank in the steps since it was found, in step times; lengths_ns: of these steps."""
    noise = max(found.noise, noise_of_one(excess), SMALLEST_NOISE)
    size = max(found.excess, SMALLEST_EXCESS / 2.0)
    most = max(size, noise)
    sums = np.cumsum(np.clip(excess, -most, 2.0 * most))  # a pause says no more than a step as slow as it was
    slow = np.arange(1, excess.size - min(WINDOWS) + 1)
    if not slow.size:
        return False
    gone = excess.size - slow
    certain = sums[slow - 1] / slow - LEVEL_Z * noise / slow**0.5
    level = np.maximum(certain, LEAST_LEFT * size)
    likelihood = (gone * level / 2.0 - (sums[-1] - sums[slow - 1])) * level / noise**2
    asked = np.where(gone < LASTING_STEPS, RECOVERY_LIKELIHOOD, LASTING_LIKELIHOOD)
    gone_ns = int(lengths_ns.sum()) - np.cumsum(lengths_ns)[slow - 1]
    return bool(((likelihood >= asked) & (gone_ns >= RECOVERY_NS)).any())
