"""The statistics of slow ranks: how far a rank's recent steps lie above what was usual, and how sure that is.

Two views of the same steps. *Against the others*: a rank's self time minus that of the others in the same step; what
all ranks have in common (steps of varying length, a ramp) cancels. *Against its own past*: quieter by the others'
noise, so a small excess shows sooner; it counts only while the others stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from ...columns.median import median

#: Among more ranks than this, leaving one out of their median changes nothing any more.
MANY_RANKS = 12
#: A step's noise below this share is luck, or a clock too even to be true.
SMALLEST_NOISE = 0.012
#: What is known of noise from more steps counts like so many beside what a few steps say.
PRIOR_STEPS = 16.0
#: Pauses are told from noise where they are longer than so many standard deviations of the quieter steps, and chance
#: where they would fall so on one rank with less than this probability.
PAUSE_SIGMAS = 1.5
PAUSE_CHANCE = 1e-6
#: What a single step counts at most, in standard deviations.
CLIPPED = 2.5
#: Whether a rank has become noisier is asked of so many of the last steps at least, and less than so much is luck.
NOISE_STEPS, NOISIER = 32, 1.3
#: How far apart steps still lean on one another; of fewer steps than these nobody can tell, and this is taken.
LONGEST_LAG, FEWEST_TO_CORRELATE, FEW_CARRIED_ON = 32, 24, 1.3
#: Of a series whose level may have changed: the correlation is no larger than this, and means are over so many steps,
#: where there are enough of these.
MOST_CARRIED = 0.6
NOISE_BLOCK, FEWEST_NOISE_BLOCKS = 8, 12
#: Where chance is asked, in standard deviations; and what a quantile says of the spread beside all values.
FAR_OUT, EFFICIENCY = 5.0, 0.7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """How far recent steps lie above ``usual``; by rank, in step times. recent: (n, ranks), these steps; middle: their
    median above ``usual``.

    gain: by how much their mean (long steps clipped) lies above that of the steps before. noise: standard deviation of
    such a gain by chance alone, the past's own uncertainty included.
    """

    recent: np.ndarray
    usual: np.ndarray
    gain: np.ndarray
    middle: np.ndarray
    noise: np.ndarray


def excess_over_others(self_ns: np.ndarray) -> np.ndarray:
    """(n, ranks): each self time minus the median of the other ranks in the same step (of all, where ranks are many).

    Zeros for a single rank.
    """
    ranks = self_ns.shape[1]
    if ranks < 2:
        return np.zeros(self_ns.shape)
    if ranks > MANY_RANKS:
        return np.asarray(self_ns - median(self_ns, axis=1, keepdims=True))
    others = [median(np.delete(self_ns, rank, axis=1), axis=1) for rank in range(ranks)]
    return np.asarray(self_ns - np.stack(others, axis=1))


def view(
    series: np.ndarray, window: int, *, based: bool, signed: bool, least_gain: float = -float("inf")
) -> View | None:
    """How far each rank's last ``window`` rows of (n, ranks) ``series`` lie above those before (based), or above 0.

    None if no rank gains more than ``least_gain``: noise is dear, and there is nearly always nothing to compare.

    signed: whether a rank's usual place may be below zero and count (against its own past), or is taken as zero there
    (a rank that used to be faster than the others and is now as slow as they are is no straggler).
    """
    recent, before = series[-window:], series[:-window]
    center = median(before, axis=0) if based else np.zeros(series.shape[1])
    usual = center if signed else np.maximum(center, 0.0)
    above = recent - usual
    if not (above.mean(axis=0) > least_gain).any():
        return None
    middle = median(above, axis=0)
    if not based:
        pooled = _scale(recent - median(recent, axis=0))
        step_noise = np.maximum(_moderated(_scale_by_rank(above - middle), window, pooled), SMALLEST_NOISE)
        gain = np.minimum(above, np.maximum(2.0 * middle, 0.0)).mean(axis=0)
        return View(recent=recent, usual=usual, gain=gain, middle=middle, noise=step_noise / window**0.5)
    residuals = before - center
    # A rank's own past says how noisy it is, and the last steps whether it has become noisier.
    own = _moderated(_scale_by_rank(residuals), residuals.shape[0], _scale(residuals))
    step_noise = np.maximum(own * _noisier(before, series[-max(window, NOISE_STEPS) :]), SMALLEST_NOISE)
    # One long step must not carry a window: what stands out counts twice the middle at most, or as far as noise goes.
    most = np.maximum(2.0 * middle, CLIPPED * step_noise)
    least = -CLIPPED * step_noise
    # The mean of steps with pauses lies above their median, and what is cut off above and not below lies lower.
    gain = np.clip(above, least, most).mean(axis=0) - np.clip(residuals, least, most).mean(axis=0)
    # Of the last steps before the window some may be slow already: they would look as if all leant on one another.
    older = residuals[: max(FEWEST_TO_CORRELATE, len(residuals) - window)]
    leaning = carried_on(np.clip(older / step_noise, -CLIPPED, CLIPPED), window)
    noise = step_noise * (leaning / window + leaning / before.shape[0]) ** 0.5 * _luck(residuals.size)
    return View(recent=recent, usual=usual, gain=gain, middle=middle, noise=noise)


def noise_of_one(series: np.ndarray) -> float:
    """Standard deviation of one step of (n,) ``series``, as it counts in means; 0.0 for fewer than three steps.

    By how much a step differs from the next and the one after that, which a change within the series leaves as it is:
    of a first-order autoregression with correlation r these variances are as 1 to 1 + r. And by how much means over
    some steps differ from the next ones: what strikes a crowded node lasts longer than a step.
    """
    if series.size < 3:
        return 0.0
    next_one, one_after = (_spread(series[lag:] - series[:-lag]) ** 2 / 2.0 for lag in (1, 2))
    carried = min(max(one_after / max(next_one, 1e-12) - 1.0, 0.0), MOST_CARRIED)
    noise = (next_one * (1.0 + carried)) ** 0.5 / (1.0 - carried)
    blocks = series.size // NOISE_BLOCK
    if blocks >= FEWEST_NOISE_BLOCKS:
        means = series[-blocks * NOISE_BLOCK :].reshape(blocks, NOISE_BLOCK).mean(axis=1)
        noise = max(noise, _spread(np.diff(means)) * (NOISE_BLOCK / 2.0) ** 0.5)
    return float(noise)


def _spread(differences: np.ndarray) -> float:
    return float(1.4826 * median(np.abs(differences)))


def carried_on(residuals: np.ndarray, window: int) -> float:
    """The factor by which the variance of a mean over ``window`` steps exceeds that of independent steps.

    What one step has more, the next ones often have as well. By the ranks' autocorrelations together (Bartlett 1946),
    as far as they are positive (Geyer 1992). residuals: (n, ranks), long steps clipped.
    """
    count = residuals.shape[0]
    if count < FEWEST_TO_CORRELATE:
        return FEW_CARRIED_ON
    residuals = residuals - residuals.mean(axis=0)
    variance = float((residuals**2).sum())
    if variance <= 0.0:
        return 1.0
    factor = 1.0
    for lag in range(1, min(LONGEST_LAG, window - 1, count // 4) + 1):
        correlation = float((residuals[lag:] * residuals[:-lag]).sum()) / variance
        if correlation <= 0.0:
            break
        factor += 2.0 * (1.0 - lag / window) * correlation
    return factor


def _luck(count: int) -> float:
    """Noise is known from so many steps only: the quantile of Student's t beside that of the normal distribution, far
    out (Wallace 1959)."""
    freedom = max(4.0, EFFICIENCY * count)
    return float((freedom * np.expm1(FAR_OUT**2 / freedom)) ** 0.5 / FAR_OUT)


def may_be_pauses(before: np.ndarray, threshold: float, slow: int, window: int, chance: float = PAUSE_CHANCE) -> bool:
    """Whether ``slow`` of ``window`` steps above ``threshold`` may be one rank's bad luck: its chance is above
    ``chance``.

    Garbage collection and loaders strike now this rank, now that one: what any rank's steps did before says how often.
    before: (n, ranks), excess in step times, as is threshold.
    """
    above = before - median(before, axis=0)
    size = np.sort(np.abs(above), axis=None)
    if threshold < PAUSE_SIGMAS * max(SMALLEST_NOISE, float(size[size.size // 4]) / 0.3186):
        return False
    rate = (int((above > threshold).sum()) + 0.5) / (above.size + 1.0)
    tail = sum(comb(window, k) * rate**k * (1.0 - rate) ** (window - k) for k in range(slow, window + 1))
    return bool(tail > chance)


def _scale(residuals: np.ndarray) -> float:
    """Standard deviation of a step, robust. The larger quantile sees habits of one step in four."""
    size = np.abs(residuals).ravel()
    size.sort()
    count = size.size
    return float(max(1.4826 * size[count // 2], size[min(count - 1, int(0.8 * count))] / 1.2816))


def _scale_by_rank(residuals: np.ndarray) -> np.ndarray:
    """The same for each column."""
    size = np.sort(np.abs(residuals), axis=0)
    count = size.shape[0]
    return np.asarray(np.maximum(1.4826 * size[count // 2], size[min(count - 1, int(0.8 * count))] / 1.2816))


def _noisier(before: np.ndarray, recent: np.ndarray) -> np.ndarray:
    """By rank: how many times as noisy as before the last steps are, 1 where that may be luck.

    By how much a step differs from the next (von Neumann 1941), which says nothing of their level: a rank that has just
    become slow is not noisier for it.
    """
    was, now = (_scale_by_rank(np.diff(part, axis=0)) for part in (before, recent))
    was = np.maximum(_moderated(was, before.shape[0], float(median(was))), SMALLEST_NOISE)
    times = _moderated(now / was, recent.shape[0], 1.0)
    return np.where(times > NOISIER, times, 1.0)


def _moderated(scale: Any, count: int, prior: Any) -> Any:
    """A standard deviation known from ``count`` values only, drawn towards what is known from more (Smyth 2004): the
    larger of the two would be too large by luck most of the time.
    """
    known = EFFICIENCY * count
    return ((PRIOR_STEPS * prior**2 + known * scale**2) / (PRIOR_STEPS + known)) ** 0.5
