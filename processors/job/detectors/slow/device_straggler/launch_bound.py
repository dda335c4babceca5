"""Finds the ranks whose hosts launch too late for their devices: their passes forward and back fill the step.

Usually a host launches in a part of a step and then waits for its device, so that how long it launches costs nothing.
Once something else takes its cores, its device waits for it, and so do all others for that device. Looks at devices
tell that to a tenth of a second; how long a host launches is known exactly, of each step. Where queues to devices are
full all hosts stand in their passes as long as their devices take, and nobody is told apart. Pure.

Method: rise of a rank's median time in its passes, against the rise of the steps and of the other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....columns.median import median
from .step_window import FEWEST_BEFORE, FEWEST_STEPS, MOST_BEFORE, MOST_STEPS, became_longer

KEPT_STEPS = MOST_BEFORE + MOST_STEPS
#: Of the rise of steps, by how much more than the others' its launching has grown at least; and of a step, how much of
#: it launching takes.
LEAST_GROWTH, LEAST_OF_STEP = 1.0, 0.6
#: In standard deviations of a step's launching, which is not known better than by this share of the step.
SIGMAS, SMALLEST_NOISE = 6.0, 0.01
#: Of the window's steps, in how many it launches for longer.
MOST_OF_WINDOW = 0.8
#: Whose launching has grown by this share of the latest one's is late with it; so many of all ranks at most.
COMPANY_SHARE, MOST_COMPANY = 0.5, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LateHost:
    """A rank whose host launches too late. before_ns, now_ns: length of a step. launches_ns, launched_ns, others_ns:
    how long its host's passes forward and back take, took before, and take on the others.

    company: ranks that are late with it. z: how sure.
    """

    rank: int
    company: tuple[int, ...]
    onset_step: int
    onset_ns: int
    before_ns: int
    now_ns: int
    launches_ns: int
    launched_ns: int
    others_ns: int
    z: float


def no_launches(ranks: int) -> np.ndarray:
    """An empty table of launches, (0, 1 + ranks), for ``with_launches``.

    Columns: step; by rank, how long its host's own passes forward and back took, in us.
    """
    return np.zeros((0, 1 + ranks), np.int32)


def with_launches(kept: np.ndarray, steps: np.ndarray, launched_ns: np.ndarray) -> np.ndarray:
    """The table of launches with these steps added, the last KEPT_STEPS; with another number of ranks it begins anew.

    kept: as ``no_launches`` has it. launched_ns: (steps, ranks).
    """
    if kept.shape[1] != 1 + launched_ns.shape[1]:
        kept = no_launches(launched_ns.shape[1])
    launched_us = np.minimum(launched_ns // 1000, np.iinfo(np.int32).max)
    return np.concatenate([kept, np.column_stack([steps, launched_us]).astype(np.int32)])[-KEPT_STEPS:]


def find_late_host(
    launches: np.ndarray, ranks: np.ndarray, steps: np.ndarray, begin_ns: np.ndarray, duration_ns: np.ndarray
) -> LateHost | None:
    """The rank whose host's passes forward and back became longer with the steps, alone or with a few others; else
    None.

    launches: as ``with_launches`` gives it; ranks: of its columns. steps, begin_ns, duration_ns: (n,) of the newest
    steps.
    """
    count = min(len(launches), steps.size)
    if ranks.size < 2 or launches.shape[1] != 1 + ranks.size or not count:
        return None
    if (launches[-count:, 0] != steps[-count:]).any():
        return None  # some steps were taken out of one and not of the other
    for window in range(FEWEST_STEPS, MOST_STEPS + 1):
        if count < window + FEWEST_BEFORE or not became_longer(duration_ns[-count:], window):
            continue
        found = _who_launches_longer(launches[-count:, 1:] * 1000.0, duration_ns[-count:], window)
        if found is not None:
            late, company, z = found
            return LateHost(
                rank=int(ranks[late]),
                company=tuple(ranks[company].tolist()),
                onset_step=int(steps[-window]),
                onset_ns=int(begin_ns[-window]),
                before_ns=int(median(duration_ns[-count:-window])),
                now_ns=int(median(duration_ns[-window:])),
                launches_ns=int(median(launches[-window:, 1 + late]) * 1000),
                launched_ns=int(median(launches[-count:-window, 1 + late]) * 1000),
                others_ns=int(median(launches[-window:, 1:][:, ~company & (np.arange(ranks.size) != late)]) * 1000),
                z=z,
            )
    return None


def _who_launches_longer(
    launched_ns: np.ndarray, duration_ns: np.ndarray, window: int
) -> tuple[int, np.ndarray, float] | None:
    """Column of the latest, which others are late with it, and how sure that is."""
    before, since = launched_ns[:-window], launched_ns[-window:]
    usual_ns = median(before, axis=0)
    was_ns, now_ns = float(median(duration_ns[:-window])), float(median(duration_ns[-window:]))
    more_ns = median(since, axis=0) - usual_ns
    grew_ns = more_ns - median(more_ns)
    late = int(np.argmax(grew_ns))
    most_ns = float(grew_ns[late])
    if most_ns < LEAST_GROWTH * (now_ns - was_ns) or float(median(since[:, late])) < LEAST_OF_STEP * now_ns:
        return None
    if float((since[:, late] > usual_ns[late] + most_ns / 2.0).mean()) < MOST_OF_WINDOW:
        return None
    noise_ns = max(1.4826 * float(median(np.abs(before[:, late] - usual_ns[late]))), SMALLEST_NOISE * was_ns)
    z = most_ns / (noise_ns * (1.57 / window + 1.57 / len(before)) ** 0.5)
    company = grew_ns > COMPANY_SHARE * most_ns
    company[late] = False
    if z < SIGMAS or int(company.sum()) > MOST_COMPANY * company.size:
        return None
    return late, company, z
