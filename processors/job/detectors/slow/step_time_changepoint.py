"""Finds the step at which the whole job became slower: a change point on step time, nobody's own fault.

The excess of the slowest rank is taken out first, so that one straggler never looks like a job that is slow together.
Located by the largest cumulative deviation, then verified: large, lasting, abrupt, and apart from the usual spread.

Method: the largest cumulative deviation from the mean (CUSUM, Page 1954), then verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...columns.median import median
from .robust_excess import CLIPPED, SMALLEST_NOISE, carried_on, noise_of_one

#: Steps that are kept: so many, and of short steps more, until they reach as far back.
LONGEST_HISTORY, MOST_HISTORY, HISTORY_NS = 512, 4_096, 80_000_000_000
WARM_UP_STEPS = 10
STEPS_BEFORE = 50
STEPS_AFTER = 40
#: What stands out so far is told after fewer steps.
CLEAR_SIGNIFICANCE, CLEAR_STEPS_AFTER = 12.0, 24
#: What stands out so far and is so large, too: after as few as take half a minute, and in jobs that have just begun.
PLAIN_SIGNIFICANCE, PLAIN_RATIO, PLAIN_STEPS_BEFORE, PLAIN_STEPS_AFTER = 20.0, 1.25, 32, 12
NS_BEFORE = 20_000_000_000
NS_AFTER = 30_000_000_000
#: So much before it is enough where it has lasted for ``NS_AFTER``: one of the two is longer than a ramp's stair.
LEAST_NS_BEFORE = 10_000_000_000
#: What stands out by ``PLAIN_SIGNIFICANCE``, over as many steps as anything has to, is no burst after this time.
PLAIN_NS_AFTER = 12_000_000_000
#: Ten percent are to be told; their estimate may come out a little lower.
SMALLEST_RATIO = 1.08
#: A rise that none of its steps leaves in doubt is told after as few as these, once so much time has passed: each of
#: them is longer than nearly all of the steps before; of the fewest, than all of them.
SUDDEN_STEPS_AFTER = {3: 1.0, 4: 0.97}
SUDDEN_NS_AFTER = 6_000_000_000
#: In short steps all since the change count together: so many and so long at least, and so many times as long as any
#: earlier time for which the steps were half as much longer. In standard deviations: over windows of all lengths, after
#: every step, chance makes as much of steps of 20 ms once in some hundred hours (Siegmund and Venkatraman 1995).
FRESH_STEPS_AFTER = (10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
FRESH_NS_AFTER, TIMES_EARLIER, FRESH_SIGNIFICANCE = 3_000_000_000, 2.0, 6.0
#: And the pace before must have been even for longer than stairs of a growing batch last, which look the same.
FRESH_STEPS_BEFORE, FRESH_NS_BEFORE = 100, 25_000_000_000
#: What is asked of the mean has to show in so many of the steps, and still in the last ones.
FRESH_SHARE, RUN_STEPS = 0.7, 5
#: In standard deviations of the difference, as they follow from single steps, and from means over some.
SIGNIFICANCE = 8.0
BLOCK_STEPS = 8
#: Share of the rise that pace may have moved within the parts before and after: more is a ramp or a drift.
LARGEST_SLOPE = 0.35
#: Share of the rise that has to happen at the step itself.
SMALLEST_EDGE = 0.6
EDGE_STEPS = 8
#: Steps as before, and how much likelier they are of the old pace, until it is over.
FEWEST_BACK, BACK_LIKELIHOOD = 10, 14.0
#: Of the steps before and after, how many must have parts: the first ones may be over before a start is seen.
KNOWN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceChange:
    """A step from which all steps are longer. step: first slow step. before_ns, after_ns: median step times.

    own, data, exchange: by how much longer the ranks' own work takes, of it the waiting for data, and their collectives
    where nobody waits for anybody; never more than the whole. has_parts: whether these are known; the waiting for data
    always is.
    """

    step: int
    onset_ns: int
    before_ns: int
    after_ns: int
    own_ns: int = 0
    data_ns: int = 0
    exchange_ns: int = 0
    has_parts: bool = True

    @property
    def ratio(self) -> float:
        """Step time after the change over that before."""
        return self.after_ns / max(1, self.before_ns)


def kept_history(lengths_ns: np.ndarray) -> int:
    """How many of the last steps are to be kept: a fixed number, and of short steps as many as make HISTORY_NS.

    lengths_ns: (n,).
    """
    if lengths_ns.size <= LONGEST_HISTORY:
        return int(lengths_ns.size)
    return min(MOST_HISTORY, max(LONGEST_HISTORY, _steps_of(lengths_ns, HISTORY_NS)))


def find_pace_change(steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray) -> PaceChange | None:
    """The step from which the whole job is slower, by a lasting, abrupt change of pace; None: no such step, or too few.

    All (n,), of consecutive steps. begin_ns: Unix; pace_ns: step time without the excess of the slowest rank.
    """
    if pace_ns.size < PLAIN_STEPS_BEFORE + PLAIN_STEPS_AFTER:
        return None
    pace = np.log(np.maximum(pace_ns, 1).astype(np.float64))
    change = _most_likely_change(pace)
    before, after = pace[:change], pace[change:]
    if before.size < PLAIN_STEPS_BEFORE or after.size < PLAIN_STEPS_AFTER:
        return None
    after_ns = int(pace_ns[change:].sum())
    if int(pace_ns[:change].sum()) < (LEAST_NS_BEFORE if after_ns >= NS_AFTER else NS_BEFORE):
        return None
    if after_ns < PLAIN_NS_AFTER:
        return None
    rise = float(median(after) - median(before))
    smallest, asked = _asked(before.size, after.size)
    if after_ns < NS_AFTER:
        if before.size < STEPS_BEFORE or after.size < STEPS_AFTER:
            return None
        asked = PLAIN_SIGNIFICANCE
    if rise < np.log(smallest) or rise < asked * _noise_of_difference(before, after):
        return None
    if np.quantile(after, 0.3) < np.quantile(before, 0.7):
        return None
    # A ramp (growing batches, longer sequences) is planned work: only a jump between two even parts is a change.
    if abs(_slope(before)) > LARGEST_SLOPE * rise or abs(_slope(after)) > LARGEST_SLOPE * rise:
        return None
    edge = float(median(after[:EDGE_STEPS]) - median(before[-EDGE_STEPS:]))
    if edge < SMALLEST_EDGE * rise:
        return None
    return PaceChange(
        step=int(steps[change]),
        onset_ns=int(begin_ns[change]),
        before_ns=int(np.exp(median(before))),
        after_ns=int(np.exp(median(after))),
    )


def find_fresh_change(steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray) -> PaceChange | None:
    """As ``find_pace_change``, of short steps: a generalised likelihood ratio over all steps since the change (Willsky
    and Jones 1976), where counting seconds would ask for hundreds of them. steps, begin_ns, pace_ns: (n,)."""
    if pace_ns.size < FRESH_STEPS_BEFORE + FRESH_STEPS_AFTER[0]:
        return None
    if float(median(pace_ns[-FRESH_STEPS_AFTER[0] :])) < SMALLEST_RATIO * float(median(pace_ns)):
        return None  # nearly always, and cheap
    since_ns = np.cumsum(pace_ns[::-1])
    for late in FRESH_STEPS_AFTER:
        if pace_ns.size < FRESH_STEPS_BEFORE + late or since_ns[-1] - since_ns[late - 1] < FRESH_NS_BEFORE:
            return None
        if since_ns[late - 1] >= FRESH_NS_AFTER and _is_fresh(pace_ns, late):
            before_ns, after_ns = float(median(pace_ns[:-late])), float(median(pace_ns[-late:]))
            # From where on all that follows lies furthest above the middle of the two.
            above_ns = pace_ns[-2 * late :] - (before_ns + after_ns) / 2.0
            onset = int(np.argmax(np.cumsum(above_ns[::-1])[::-1])) - above_ns.size
            return PaceChange(
                step=int(steps[onset]),
                onset_ns=int(begin_ns[onset]),
                before_ns=int(before_ns),
                after_ns=int(after_ns),
            )
    return None


def _is_fresh(pace_ns: np.ndarray, late: int) -> bool:
    """Whether the last ``late`` steps together are longer than chance makes them, and for longer than any before."""
    pace = np.log(np.maximum(pace_ns, 1).astype(np.float64))
    before = pace[:-late] - median(pace[:-late])
    after = pace[-late:] - median(pace[:-late])
    noise = max(1.4826 * float(median(np.abs(before))), SMALLEST_NOISE)
    rise = float(median(after))
    if rise < np.log(SMALLEST_RATIO) or abs(_slope(before)) > LARGEST_SLOPE * rise:
        return False
    if (after > rise / 2.0).mean() < FRESH_SHARE or float(median(after[-RUN_STEPS:])) < rise / 2.0:
        return False
    usual = np.clip(before, -CLIPPED * noise, CLIPPED * noise)
    mean = float(np.minimum(after, max(2.0 * rise, CLIPPED * noise)).mean() - usual.mean())
    leaning = carried_on(usual[:, None], late)
    if mean < FRESH_SIGNIFICANCE * noise * (leaning / late + leaning / before.size) ** 0.5:
        return False
    runs = np.convolve(before, np.full(RUN_STEPS, 1.0 / RUN_STEPS), "valid") > rise / 2.0
    return int(pace_ns[-late:].sum()) >= TIMES_EARLIER * _longest_run_ns(runs, pace_ns[RUN_STEPS - 1 : -late])


def _longest_run_ns(chosen: np.ndarray, lengths_ns: np.ndarray) -> int:
    """How long the longest unbroken run of chosen steps took."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    ends_ns = np.concatenate([[0], np.cumsum(lengths_ns)])
    return int((ends_ns[edges[1::2]] - ends_ns[edges[::2]]).max(initial=0))


def find_sudden_change(steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray) -> PaceChange | None:
    """As ``find_pace_change``, of a change in the last few steps, which are compared with those before them.

    steps, begin_ns, pace_ns: (n,).
    """
    return next(sudden_changes(steps, begin_ns, pace_ns, SUDDEN_STEPS_AFTER), None)


def sudden_changes(
    steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray, steps_after: Mapping[int, float]
) -> Iterator[PaceChange]:
    """Changes of pace in the last steps, one for each of ``steps_after`` by which the steps changed suddenly.

    steps_after: by how many of the last steps are enough, the share of the earlier steps that each of them must exceed.
    steps, begin_ns, pace_ns: (n,), as for ``find_pace_change``.
    """
    least = _steps_of(pace_ns, SUDDEN_NS_AFTER)
    for fewest, quantile in steps_after.items():
        late = max(fewest, least)
        if late >= PLAIN_STEPS_AFTER or pace_ns.size < STEPS_BEFORE + late:
            return
        if _is_sudden(pace_ns, late, quantile):
            yield PaceChange(
                step=int(steps[-late]),
                onset_ns=int(begin_ns[-late]),
                before_ns=int(median(pace_ns[:-late])),
                after_ns=int(median(pace_ns[-late:])),
            )


def _is_sudden(pace_ns: np.ndarray, late: int, quantile: float) -> bool:
    """Whether each of the last ``late`` steps is longer than this share of those before, and by far."""
    pace = np.log(np.maximum(pace_ns, 1).astype(np.float64))
    before, after = pace[:-late], pace[-late:]
    rise = float(median(after) - median(before))
    if rise < np.log(SMALLEST_RATIO) or after.min() < np.quantile(before, quantile):
        return False
    noise = _noise(before) * (1.57 / before.size + 1.57 / late) ** 0.5  # too few steps after it to ask for theirs
    if int(pace_ns[:-late].sum()) < NS_BEFORE or rise < SIGNIFICANCE * noise:
        return False
    return abs(_slope(before)) <= LARGEST_SLOPE * rise and after.min() >= median(before) + rise / 2.0


def _steps_of(pace_ns: np.ndarray, length_ns: int) -> int:
    """How many of the last steps take so long together."""
    return int(np.searchsorted(np.cumsum(pace_ns[::-1]), length_ns)) + 1


def _asked(before: int, after: int) -> tuple[float, float]:
    """Smallest ratio and significance that tell a change, by how many steps before and after it are known."""
    if before >= STEPS_BEFORE and after >= CLEAR_STEPS_AFTER:
        return SMALLEST_RATIO, SIGNIFICANCE if after >= STEPS_AFTER else CLEAR_SIGNIFICANCE
    return PLAIN_RATIO, PLAIN_SIGNIFICANCE


def with_parts(change: PaceChange, steps: np.ndarray, parts: np.ndarray) -> PaceChange:
    """The change with by how much own work, data and exchange grew, each from 0 up to the whole growth.

    parts: (n, 3) own work, waiting for data and exchange of each step, in ns, -1 not known. Where exchange is mostly
    unknown, only the waiting for data is told, and ``has_parts`` is False.
    """
    late, known = steps >= change.step, parts[:, 2] >= 0
    if min(known[late].mean(), known[~late].mean()) < KNOWN_SHARE:
        data_ns = int(median(parts[late, 1]) - median(parts[~late, 1]))
        return replace(change, has_parts=False, data_ns=min(max(0, data_ns), change.after_ns - change.before_ns))
    longer_ns = median(parts[late & known], axis=0) - median(parts[~late & known], axis=0)
    own, data, exchange = np.clip(longer_ns, 0, change.after_ns - change.before_ns).astype(np.int64).tolist()
    return replace(change, own_ns=own, data_ns=data, exchange_ns=exchange)


def is_of_all(change: PaceChange, steps: np.ndarray, pace_ns: np.ndarray) -> bool:
    """Whether at least half of a change of whole steps remains without the slowest rank's excess, or it lasts long.

    One that has lasted STEPS_AFTER steps is of all: a single rank would have been told by then. steps, pace_ns: (n,);
    pace_ns: without the slowest rank's excess.
    """
    late = steps >= change.step
    longer_ns = float(median(pace_ns[late]) - median(pace_ns[~late]))
    return 2.0 * longer_ns > change.after_ns - change.before_ns or int(late.sum()) >= STEPS_AFTER


def _most_likely_change(pace: np.ndarray) -> int:
    """Where the two parts' means differ most, in units of what chance would make of them."""
    count = np.arange(1, pace.size)
    deviation = np.cumsum(pace - pace.mean())[:-1]
    size = np.abs(deviation) / np.sqrt(count * (pace.size - count))
    size[: PLAIN_STEPS_BEFORE // 2] = size[pace.size - PLAIN_STEPS_AFTER // 2 :] = 0.0
    return int(np.argmax(size)) + 1


def _noise_of_difference(before: np.ndarray, after: np.ndarray) -> float:
    """Standard deviation of the difference between two medians; steps that lean on one another are noisier."""
    return float(sum(1.57 * _noise(part) ** 2 / part.size for part in (before, after)) ** 0.5)


def _noise(part: np.ndarray) -> float:
    """Standard deviation of a step, robust."""
    residuals = part - median(part)
    step = 1.4826 * float(median(np.abs(residuals)))
    blocks = residuals[: residuals.size // BLOCK_STEPS * BLOCK_STEPS].reshape(-1, BLOCK_STEPS)
    wander = 1.4826 * float(median(np.abs(median(blocks, axis=1)))) * BLOCK_STEPS**0.5
    return float(max(step, wander))


def _slope(part: np.ndarray) -> float:
    """By how much the last third lies above the first."""
    third = part.size // 3
    return float(median(part[-third:]) - median(part[:third]))


def is_back_to_pace(pace_ns: np.ndarray, before_ns: int, after_ns: int) -> bool:
    """True once the last ten steps or more are likelier of the old pace than of the new one, by e to
    ``BACK_LIKELIHOOD``.

    pace_ns: of the steps since the change, which may be few yet; before_ns, after_ns: a step's length before and after
    it. Page's cumulative sum (Page 1954), as it ends a slow rank (``straggler.is_still_slow``): where jitter is as
    large as the change, any ten steps may lie nearer to the old pace.
    """
    if pace_ns.size < FEWEST_BACK:
        return False
    pace = np.log(np.maximum(pace_ns, 1).astype(np.float64)) - np.log(max(1, before_ns))
    size = max(float(np.log(max(1, after_ns) / max(1, before_ns))), np.log(SMALLEST_RATIO))
    noise = max(noise_of_one(pace), SMALLEST_NOISE)
    ratios = (size / 2.0 - np.clip(pace, -size, 2.0 * size)) * size / noise**2
    sums = np.concatenate([[0.0], np.cumsum(ratios)])
    lowest = int(np.argmin(sums))
    return pace.size - lowest >= FEWEST_BACK and float(sums[-1] - sums[lowest]) >= BACK_LIKELIHOOD
