"""Finds the rank whose checkpoints have become slow while the others wait for it to come back.

Steps with a save in them are left out of all comparisons of steps; here they are compared with one another. A rank
that always saves alone, or more than the others, is as usual: what counts is longer than its own past and longer than
what the others need now (all of them slower is the storage's affair, and nobody's fault). Saves so quick that their
steps are compared with the others are a rank's past too, where none has come since.

Method: ratio of medians, against the rank's own past saves and against the other writers of the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...columns.median import median

KEPT_SAVES = 32
#: So many saves in a row, after so many in the past.
SLOW_SAVES = 3
PAST_SAVES = 2
#: Longer by this factor, and this time, than any before and than the others'; and this share of all time since.
SMALLEST_RATIO = 1.4
SMALLEST_NS = 100_000_000
SMALLEST_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saves:
    """Steps in which somebody saved, in order: steps, begin_ns (n,); own_ns (n, ranks) in phase checkpoint.

    quick_begin_ns (q,), quick_own_ns (q, ranks): of the last q <= PAST_SAVES steps whose saves took next to nothing.
    """

    ranks: np.ndarray
    steps: np.ndarray
    begin_ns: np.ndarray
    own_ns: np.ndarray
    quick_begin_ns: np.ndarray
    quick_own_ns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWriter:
    """A rank whose saves became slow. now_ns, before_ns: its own; others_ns: the others' now, 0 where it saves alone.

    every_steps: steps between two saves.
    """

    rank: int
    onset_step: int
    onset_ns: int
    now_ns: int
    before_ns: int
    others_ns: int
    every_steps: int


def no_saves(ranks: np.ndarray) -> Saves:
    """Saves of no step, for columns of these ranks. ranks: (ranks,)."""
    none, nobodys = np.zeros(0, np.int64), np.zeros((0, ranks.size), np.int64)
    return Saves(ranks=ranks, steps=none, begin_ns=none, own_ns=nobodys, quick_begin_ns=none, quick_own_ns=nobodys)


def with_more(
    old: Saves, ranks: np.ndarray, steps: np.ndarray, begin_ns: np.ndarray, own_ns: np.ndarray, is_quick: np.ndarray
) -> Saves:
    """``old`` with more saves, the last KEPT_SAVES; with another set of ranks it begins anew.

    ranks: (ranks,); steps, begin_ns, is_quick: (n,); own_ns: (n, ranks).
    """
    if not np.array_equal(old.ranks, ranks):
        old = no_saves(ranks)
    is_long = ~is_quick
    return Saves(
        ranks=ranks,
        steps=np.concatenate([old.steps, steps[is_long]])[-KEPT_SAVES:],
        begin_ns=np.concatenate([old.begin_ns, begin_ns[is_long]])[-KEPT_SAVES:],
        own_ns=np.concatenate([old.own_ns, own_ns[is_long]])[-KEPT_SAVES:],
        quick_begin_ns=np.concatenate([old.quick_begin_ns, begin_ns[is_quick]])[-PAST_SAVES:],
        quick_own_ns=np.concatenate([old.quick_own_ns, own_ns[is_quick]])[-PAST_SAVES:],
    )


def find_slow_writer(saves: Saves) -> SlowWriter | None:
    """The one rank whose last SLOW_SAVES saves are all longer than any before, and than the others' of the same steps.

    None: no rank or more than one, too few saves, or it costs less than SMALLEST_SHARE of the time.
    """
    if saves.steps.size < SLOW_SAVES or saves.ranks.size < 2:
        return None
    recent, past, since_ns = saves.own_ns[-SLOW_SAVES:], *_past(saves)
    if len(past) < PAST_SAVES:
        return None
    usual = past.max(axis=0)
    others = others_ns(recent)
    reference = np.maximum(others, usual)
    slow = (recent > SMALLEST_RATIO * reference) & (recent - reference > SMALLEST_NS)
    candidates = np.flatnonzero(slow.all(axis=0) & (usual > 0))
    if candidates.size != 1:
        return None
    candidate = int(candidates[0])
    passed_ns = int(saves.begin_ns[-1]) - since_ns
    if int((recent - reference)[:, candidate].sum()) < SMALLEST_SHARE * passed_ns:
        return None
    return SlowWriter(
        rank=int(saves.ranks[candidate]),
        onset_step=int(saves.steps[-SLOW_SAVES]),
        onset_ns=int(saves.begin_ns[-SLOW_SAVES]),
        now_ns=int(median(recent[:, candidate])),
        before_ns=int(median(past[:, candidate])),
        others_ns=int(median(others[:, candidate])),
        every_steps=max(1, int(median(np.diff(saves.steps)))),
    )


def _past(saves: Saves) -> tuple[np.ndarray, int]:
    """(n, ranks): what each rank needed before its last SLOW_SAVES saves; and when the last of those began, Unix ns."""
    past, begins = saves.own_ns[:-SLOW_SAVES], saves.begin_ns[:-SLOW_SAVES]
    onset_ns = saves.begin_ns[-SLOW_SAVES]
    if saves.quick_begin_ns.size and (saves.quick_begin_ns < onset_ns).all():
        # A quick one after them: the script saves more than one thing, and each takes its own time.
        past = np.concatenate([past, saves.quick_own_ns])
        begins = np.concatenate([begins, saves.quick_begin_ns])
    return past, int(begins.max(initial=0))


def is_still_slow_writer(saves: Saves, rank: int, before_ns: int, now_ns: int) -> bool:
    """False once the rank's last two saves are nearer to ``before_ns`` than to ``now_ns``. True where it cannot be
    told.

    before_ns, now_ns: its usual save, and its save when it was found slow.
    """
    where = np.flatnonzero(saves.ranks == rank)
    if not where.size or saves.steps.size < 2:
        return True
    if (saves.quick_begin_ns > saves.begin_ns[-1]).sum() >= PAST_SAVES:
        return False
    return bool(saves.own_ns[-2:, where[0]].max() > (float(before_ns) * now_ns) ** 0.5)


def others_ns(recent: np.ndarray) -> np.ndarray:
    """(n, ranks): the median time of the other ranks that save at all, in the same steps; 0 where a rank saves alone.

    A median without one of the values is read off their order: it lies one further up where that one lies before it.
    """
    writers = np.flatnonzero(recent.max(axis=0) > 0)
    count, size = recent.shape[0], writers.size
    if not size:
        return np.zeros(recent.shape)
    others: np.ndarray = np.empty(recent.shape)
    others[:] = np.asarray(median(recent[:, writers], axis=1))[:, None]
    if size == 1:
        others[:, writers] = 0.0
        return others
    order = np.argsort(recent[:, writers], axis=1, kind="stable")
    ordered = np.take_along_axis(recent[:, writers], order, axis=1).astype(np.float64)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(size), (count, size)), axis=1)
    low, high = ((size - 1 - 1) // 2, (size - 1) // 2)
    without = [np.take_along_axis(ordered, at + (place <= at), axis=1) for at in (low, high)]
    others[:, writers] = (without[0] + without[1]) / 2.0
    return others
