"""How long a step usually takes, and what the steps of a synchronous job were spent on.

The reference is ml-goodput-measurement's ideal step (github.com/AI-Hypercomputer/ml-goodput-measurement): the mean of
the steps that are not longer than median + 3 MAD. It is shown wherever a figure rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...telemetry.vocabulary import Phase, TimeBucket

#: Of fewer steps nothing is known.
FEWEST_STEPS = 3
#: A step that takes so many references is a step and something else that nobody saw.
LONG_STEP = 5.0
#: What is longer than the median by more of these is no ordinary step: four standard deviations.
ORDINARY_MADS = 6.0
#: In the order in which a step's length is given to them; the rest is the step's own work.
OF_PHASES: tuple[tuple[TimeBucket, tuple[Phase, ...]], ...] = (
    (TimeBucket.CHECKPOINT_RESTORE, (Phase.RESTORE,)),
    (TimeBucket.CHECKPOINT_SAVE, (Phase.CHECKPOINT,)),
    (TimeBucket.PLANNED, (Phase.EVAL,)),
    (TimeBucket.STARTING, (Phase.INIT, Phase.COMPILE)),
    (TimeBucket.DATA_STALL, (Phase.DATA,)),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """step_ns: the ideal step; limit_ns: what is longer is out of the ordinary; steps: of so many."""

    step_ns: int
    limit_ns: int
    steps: int


NO_REFERENCE = Reference(0, 0, 0)


def reference_step(lengths_ns: np.ndarray) -> Reference:
    """The ideal step, from the lengths (n,) in ns of plain steps: the mean of those below median + 3 MAD.

    NO_REFERENCE for fewer than three.
    """
    if lengths_ns.size < FEWEST_STEPS:
        return NO_REFERENCE
    middle = _median(lengths_ns)
    limit = middle + 3.0 * _median(np.abs(lengths_ns - middle))
    usual = lengths_ns[lengths_ns <= limit]
    return Reference(int(usual.mean()), int(limit), int(lengths_ns.size))


def mean_step_ns(lengths_ns: np.ndarray) -> int:
    """What ordinary steps took on average; 0 for fewer than three. lengths_ns: (steps,), in ns.

    The ideal step leaves out the slowest of them (3 MAD are two standard deviations), so that against it ordinary steps
    have lost time, too. What a slow rank costs is held against this one, which leaves out outliers only.
    """
    if lengths_ns.size < FEWEST_STEPS:
        return 0
    middle = _median(lengths_ns)
    limit = middle + ORDINARY_MADS * _median(np.abs(lengths_ns - middle))
    return int(lengths_ns[lengths_ns <= limit].mean())


def _median(values: np.ndarray) -> float:
    """``np.median`` costs five times as much, and this is asked each time that steps are closed."""
    half = values.size // 2
    if values.size % 2:
        return float(np.partition(values, half)[half])
    return float(np.partition(values, (half - 1, half))[half - 1 : half + 1].mean())


def split_steps(lengths_ns: np.ndarray, phase_ns: np.ndarray) -> np.ndarray:
    """(n, len(OF_PHASES) + 1) ns of each step by bucket, the step's own work last; rows sum to ``lengths_ns``.

    lengths_ns: (n,) from the end of the step before to the last rank's end. phase_ns: (n, phases) the longest that any
    rank was in each phase: the others waited for it.
    """
    parts = np.zeros((lengths_ns.size, len(OF_PHASES) + 1), np.int64)
    left = np.maximum(lengths_ns, 0).astype(np.int64)
    for column, (_, phases) in enumerate(OF_PHASES):
        wanted = phase_ns[:, phases[0]]
        for phase in phases[1:]:
            wanted = wanted + phase_ns[:, phase]
        taken = parts[:, column] = np.minimum(wanted, left)
        left = left - taken
    parts[:, -1] = left
    return parts
