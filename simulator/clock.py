"""Times: the simulation counts seconds from 0; records carry nanoseconds of each node's own clocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Unix time at which a simulation begins, so that runs of one seed are equal.
START_UNIX_NS = 1_790_000_000_000_000_000
#: Of integers that are times: it does not happen.
NEVER = 1 << 61
_SECOND_NS = 1_000_000_000


def to_ns(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Seconds of the simulation, of any shape, as nanoseconds in the same shape; ``inf`` becomes NEVER."""
    finite = np.isfinite(seconds)
    if finite.all():
        return np.asarray(np.rint(seconds * 1e9), np.int64)
    return np.where(finite, np.rint(np.where(finite, seconds, 0.0) * 1e9), NEVER).astype(np.int64)


def ns(seconds: float) -> int:
    """Seconds of the simulation as nanoseconds, rounded."""
    return round(seconds * _SECOND_NS)


def generator(*words: Any) -> np.random.Generator:
    """A random generator seeded by the words alone: it draws the same for the same words. words: integers or text."""
    numbers = [word if isinstance(word, int) else int.from_bytes(str(word).encode()[:32], "little") for word in words]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(numbers)))
