"""Whether a rank that comes late holds its peers up, or they only run ahead of it: how it lags tells.

Ranks that wait for each other in a step begin the next one together, so by how much one of them comes later is drawn
anew each time, and by what they wait longer their step is longer. Where a collective is waited for a step later, its
peers work on meanwhile: nobody loses anything, and the lag is carried on from step to step and wanders as the ranks'
jitter adds up. A device that stands in a collective says nothing of that, nor does a host whose call is over before it
waits for it.

On devices both are tried on the lag as looks see it, jitter unknown, and the likelier one counts. Pure.
"""

from __future__ import annotations

import numpy as np

from ...columns.median import median
from ...columns.rows import pick
from ..desync.matching import Joined
from .step_times import StepTimes
from .straggler_memory import Straggler

#: Steps whose beginnings on the devices are kept; how many of them say something.
KEPT_STEPS = 64
FEWEST_STEPS = 8
#: So far from a change its step may have been missed.
NEAR_STEPS = 2
#: Of one beginning as it is seen: looks come ten times a second.
LOOK_NS = 100_000_000
SEEN_VARIANCE = LOOK_NS**2 / 12.0
#: Jitter of one rank that may be, in step times; each as likely.
JITTERS = np.geomspace(0.003, 0.1, 8)
#: Who waits longer than this share of the step is as far ahead as can be, and has next to no work of its own.
LARGEST_LAG = 0.8
#: What says against a rank whose steps became longer as well has to be clear: how much likelier, in how many steps, and
#: beyond what looks that keep time with the steps can make.
CLEARLY = 3.0
CLEAR_STEPS = 24
CLEAR_RANGE_NS = 150_000_000
#: On hosts: what of a change the next one takes back, how clearly it must be less than that, and in usual changes how
#: much a single one counts.
HALF, HALF_SIGMAS, CLIPPED = 0.5, 3.0, 4.0
#: Of what others are ahead by more in a step, how much it is longer at least where they wait.
FOLLOWING = 0.6


def no_starts(ranks: int) -> np.ndarray:
    """An empty table of starts, (0, 1 + ranks) in ns, for ``with_starts``.

    Columns: step, and when each rank (its device, if it has one) came to its first collective; 0 not known.
    """
    return np.zeros((0, 1 + ranks), np.int64)


def with_starts(
    starts: np.ndarray, rows: np.ndarray, at_ns: np.ndarray, ranks: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """The table with these steps added, the last KEPT_STEPS of it.

    rows: COLLECTIVES with the first of each step; at_ns: by row, when it was begun, 0 not known. ranks, steps:
    ascending.
    """
    place, column = np.searchsorted(steps, rows["step"]), np.searchsorted(ranks, rows["rank"])
    known = (at_ns > 0) & (place < steps.size) & (column < ranks.size)
    known[known] = (steps[place[known]] == rows["step"][known]) & (ranks[column[known]] == rows["rank"][known])
    first = np.full((steps.size, ranks.size), np.iinfo(np.int64).max)
    np.minimum.at(first, (place[known], column[known]), at_ns[known])
    first[first == np.iinfo(np.int64).max] = 0
    return np.concatenate([starts, np.column_stack([steps, first])])[-KEPT_STEPS:]


def begun_on_device(rows: np.ndarray) -> np.ndarray:
    """When a look found the device in each collective; of what began and ended between two looks the end tells."""
    return np.where(rows["started_ns"] > 0, rows["started_ns"], rows["done_ns"])


def first_calls(joined: Joined) -> np.ndarray:
    """Rows of COLLECTIVES with each group's first collective in each step."""
    rows = joined.rows
    place = np.stack([rows["group"][joined.first].astype(np.int64), np.maximum.reduceat(rows["step"], joined.first)])
    fresh = np.append(True, (place[:, 1:] != place[:, :-1]).any(axis=0))
    return pick(rows, fresh[joined.instance])


def do_hosts_wait_for(starts: np.ndarray, ranks: np.ndarray, found: Straggler) -> bool:
    """Whether hosts wait for ``found``, a rank slow since its steps are known. True where it cannot be told.

    starts: as ``with_starts`` gives them; ranks: of their columns. Where it is not recorded when a rank waited, it is
    taken to have where it called; its lag tells if it rather waited a step later, when all was over. Times are exact
    here: what is drawn anew each time shows in every change being half taken back by the next.
    """
    part = starts[starts[:, 0] >= found.onset_step]
    lag_ns = _lags(part, ranks, found.rank)
    if lag_ns is None or _makes_steps_longer(part, ranks, found.rank, 0):
        return True
    change = np.diff(lag_ns, axis=0)
    change = change - change.mean(axis=0)
    usual = np.maximum(1.4826 * median(np.abs(change), axis=0), 1.0)
    change = np.clip(change / usual, -CLIPPED, CLIPPED)
    taken_back = -float((change[1:] * change[:-1]).sum()) / max(float((change**2).sum()), 1.0)
    others = ranks.size - 1
    freedom = len(change) * 2.0 * others / (others + 1)  # they have the lag of one rank in common
    return bool(taken_back > min(HALF / 2.0, HALF - HALF_SIGMAS * (HALF / freedom) ** 0.5))


def was_always_waited_for(starts: np.ndarray, ranks: np.ndarray, found: Straggler) -> bool:
    """Whether the others rather wait for ``found`` than run ahead of it, where its device was slow from its first
    known step on, so that there is no before to compare with. True where it cannot be told.

    starts: (steps, 1 + ranks), a step's number and when each rank's device began it (ns; 0: unknown), as
    ``with_starts`` gives them; ranks: (ranks,), of these columns. False where its excess is above LARGEST_LAG.
    """
    if found.excess > LARGEST_LAG:
        return False
    part = starts[starts[:, 0] >= found.onset_step]
    lag_ns = _lags(part, ranks, found.rank)
    if lag_ns is None or _makes_steps_longer(part, ranks, found.rank, CLEAR_RANGE_NS):
        return True
    return _how_it_wanders(lag_ns, found.step_ns) <= 0.0


def is_waited_for(starts: np.ndarray, ranks: np.ndarray, rank: int, onset_step: int, step_ns: int) -> bool:
    """Whether the others wait for the device of ``rank``, late since ``onset_step``. True unless it is clear that none
    waits.

    Steps before and those since are looked at apart, without those near the change. Where steps keep time with looks a
    lag seems to creep, but not by more than looks are apart.
    """
    before, since = starts[:, 0] < onset_step - NEAR_STEPS, starts[:, 0] >= onset_step + NEAR_STEPS
    likelier, widest, count = 0.0, 0.0, 0
    for part in (starts[before], starts[since]):
        lag_ns = _lags(part, ranks, rank)
        if lag_ns is not None:
            low, high = np.quantile(lag_ns, (0.1, 0.9), axis=0)
            likelier, widest = likelier + _how_it_wanders(lag_ns, step_ns), max(widest, float((high - low).max()))
            count += len(lag_ns)
    return likelier < CLEARLY or widest < CLEAR_RANGE_NS or count < CLEAR_STEPS


def _lags(starts: np.ndarray, ranks: np.ndarray, rank: int) -> np.ndarray | None:
    """(steps, others) by how much the device of a rank came later than each other; None where too little is known."""
    seen = starts[(starts[:, 1:] > 0).all(axis=1), 1:]
    where = np.flatnonzero(ranks == rank)
    if len(seen) < FEWEST_STEPS or seen.shape[1] != ranks.size or not where.size:
        return None
    return np.asarray(seen[:, where] - np.delete(seen, where, axis=1))


def _makes_steps_longer(starts: np.ndarray, ranks: np.ndarray, rank: int, clear_ns: int) -> bool:
    """Whether the others' steps are longer where they are ahead by more, in steps that differ in that by clear_ns."""
    known = starts[(starts[:, 1:] > 0).all(axis=1)]
    others = ranks != rank
    seen, follow = known[:, 1:], np.diff(known[:, 0]) == 1
    ahead = (seen.max(axis=1, keepdims=True) - seen)[:-1][follow][:, others].astype(np.float64)
    length = np.diff(seen[:, others], axis=0)[follow].astype(np.float64)
    if not follow.any():
        return True
    low, high = np.quantile(ahead, (0.1, 0.9), axis=0)
    ahead, length = ahead - ahead.mean(axis=0), length - length.mean(axis=0)
    follows = float((ahead * length).sum()) > FOLLOWING * float((ahead**2).sum())
    return follows and float((high - low).max()) > clear_ns


def _how_it_wanders(lag_ns: np.ndarray, step_ns: int) -> float:
    """Logarithm of how much likelier lags are that are carried on than such as are drawn anew in each step.

    lag_ns: (steps, ranks). Of its changes from step to step a lag drawn anew makes noise that comes and goes; of one
    carried on, only what is seen wrongly does.
    """
    count = lag_ns.shape[0]
    order = np.arange(1, count)
    waves = np.sqrt(2.0 / count) * np.sin(np.pi * np.outer(order, order) / count)
    power = (waves @ np.diff(lag_ns, axis=0)) ** 2
    comes_and_goes = (2.0 - 2.0 * np.cos(np.pi * order / count))[:, None]
    likely = np.zeros((2, JITTERS.size))
    for place, jitter in enumerate((JITTERS * step_ns) ** 2):
        carried, anew = jitter + SEEN_VARIANCE * comes_and_goes, (jitter + SEEN_VARIANCE) * comes_and_goes
        for model, variance in enumerate((2.0 * carried, 2.0 * anew)):  # two ranks' jitter, seen wrongly twice
            likely[model, place] = -0.5 * (np.log(variance) + power / variance).sum()
    carried_on, drawn_anew = np.logaddexp.reduce(likely, axis=1)
    return float(carried_on - drawn_anew)


def lead_over(times: StepTimes, found: Straggler, slower: set[int]) -> float:
    """By how many ns the rank found works longer in a step than the longest of ``slower``, the ranks known to be slow.

    Who works less only uses up the time for which it waited for them, and makes no step longer. times: of all ranks.
    slower: may hold the rank itself; infinity where there are no others.
    """
    column = np.flatnonzero(times.ranks == found.rank)
    known = np.isin(times.ranks, list(slower - {found.rank}))
    if not known.any():
        return float("inf")
    recent = times.self_ns[-found.window :]
    return float(median(recent[:, column[0]] - recent[:, known].max(axis=1)))
