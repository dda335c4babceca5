"""Recurring stalls of all ranks together: they wait for their data for some steps, between them they are fast as ever.

One rank that lags in fetching data is a straggler (``straggler``). A change of pace moves the median of steps; these
do not, and may cost as much. A job that has always stalled so (at each shard or epoch) is as it was meant to be, also
where the first epoch was long.

Method: runs of outliers over the median wait for data, told once they have come back so many times.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...columns.median import median

STEPS_BEFORE, STEPS_SINCE = 32, 12
BURSTS = 3
#: By how much of a usual step the wait for data is longer than usual in a stall.
LONG = 0.5
#: Steps without one that end a burst.
APART_STEPS = 3
#: Share of the time since the first that stalls take at least; and of the steps at most, beyond which the pace changed.
LEAST_LOSS, MOST_STEPS = 0.08, 0.5
#: As many times the longest pause between two bursts, without another: they are over.
PAUSES_TO_CLEAR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Stalls that come again. step, onset_ns: the first step that waited. usual_ns: length of a step without.

    bursts: (begin, end), Unix ns. loss: share of the time since the first. pause_steps: the longest between two bursts.
    """

    step: int
    onset_ns: int
    usual_ns: int
    loss: float
    bursts: tuple[tuple[int, int], ...]
    pause_steps: int


def find_recurring_stalls(
    steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray, data_ns: np.ndarray
) -> Stalls | None:
    """Stalls in which the median rank waits for data and that come back BURSTS times; None: too few, cheap, over, or
    epochs.

    All (n,), of consecutive steps. pace_ns: lengths of steps; data_ns: what waiting for data took on the median rank.
    """
    if pace_ns.size < STEPS_BEFORE + STEPS_SINCE:
        return None
    late = stalled(pace_ns, data_ns)
    places = np.flatnonzero(late)
    if places.size < BURSTS or places[0] < STEPS_BEFORE:
        return None
    first = int(places[0])
    bursts = np.split(places, np.flatnonzero(np.diff(places) > APART_STEPS) + 1)
    if len(bursts) < BURSTS or late[first:].mean() > MOST_STEPS:
        return None
    if _are_epochs(steps[[burst[0] for burst in bursts]]):
        return None
    pause = max(int(after[0] - before[-1]) for before, after in pairwise(bursts))
    if pace_ns.size - first < STEPS_SINCE or are_over(pace_ns, data_ns, pause):
        return None
    lost_ns = float((data_ns[late] - median(data_ns)).sum())
    loss = lost_ns / float(pace_ns[first:].sum())
    if loss < LEAST_LOSS:
        return None
    return Stalls(
        step=int(steps[first]),
        onset_ns=int(begin_ns[first]),
        usual_ns=int(median(pace_ns)),
        loss=loss,
        bursts=tuple((int(begin_ns[b[0]]), int(begin_ns[b[-1]] + pace_ns[b[-1]])) for b in bursts),
        pause_steps=pause,
    )


def _are_epochs(steps: np.ndarray) -> bool:
    """steps: in which bursts begin. Whether they come after as many steps each time, counted from step 0: a loader that
    starts anew."""
    length = int(median(np.diff(steps)))
    return bool((np.abs(np.diff(steps) - length) <= 1).all()) and (int(steps[0]) + 1) % length <= 2


def stalled(pace_ns: np.ndarray, data_ns: np.ndarray) -> np.ndarray:
    """Whether each step waited for its data: by half a median step more than usual. pace_ns, data_ns:
    (n,), as lengths.
    """
    return np.asarray(data_ns - median(data_ns) > LONG * median(pace_ns))


def are_over(pace_ns: np.ndarray, data_ns: np.ndarray, pause_steps: int) -> bool:
    """Whether no step has waited for data for twice ``pause_steps``, and for STEPS_SINCE. pace_ns, data_ns: (n,)."""
    places = np.flatnonzero(stalled(pace_ns, data_ns))
    quiet = pace_ns.size - 1 - (int(places[-1]) if places.size else -1)
    return quiet > max(PAUSES_TO_CLEAR * pause_steps, float(STEPS_SINCE))
