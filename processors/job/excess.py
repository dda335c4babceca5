"""The statistics of slow ranks: how far a rank's recent steps lie above what was usual, and how sure that is.

Two views of the same steps. *Against the others*: a rank's self time minus that of the others in the same step; what
all ranks have in common (steps of varying length, a ramp) cancels. *Against its own past*: quieter by the others'
noise, so a small excess shows sooner; it counts only while the others stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from .median import median

#: Among more ranks than this, leaving one out of their median changes nothing any more.
MANY_RANKS = 12
#: A step's noise below this share is luck, or a clock too even to be true.
SMALLEST_NOISE = 0.012
#: Weight of one rank's own noise in a window beside that of all ranks.
OWN_WEIGHT = 0.7
#: Pauses are told from noise where they are longer than so many standard deviations of the quieter steps, and chance
#: where they would fall so on one rank with less than this probability.
PAUSE_SIGMAS = 1.5
PAUSE_CHANCE = 1e-6
#: Fewer means over a window than this say less about noise than the steps themselves.
FEWEST_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """By rank, in step times. level, middle: mean (long steps clipped) and median of the recent steps above ``usual``.

    noise: standard deviation of such a level by chance alone, the past's own uncertainty included. lean: how far the
    mean of the steps before lay above ``usual``, their median, clipped alike: so much of the gain is none.
    """

    recent: np.ndarray
    usual: np.ndarray
    gain: np.ndarray
    middle: np.ndarray
    noise: np.ndarray
    lean: np.ndarray


def excess_over_others(self_ns: np.ndarray) -> np.ndarray:
    """(n, ranks) self times minus the median of the other ranks in the same step."""
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
    """The last ``window`` rows of (n, ranks) ``series`` against those before; without a base, against nothing.

    None if no rank gains more than ``least_gain``: noise is dear, and there is nearly always nothing to compare.

    signed: whether a rank's usual place may be below zero and count (against its own past), or is taken as zero there
    (a rank that used to be faster than the others and is now as slow as they are is no straggler).
    """
    recent, before = series[-window:], series[:-window]
    center = median(before, axis=0) if based else np.zeros(series.shape[1])
    usual = center if signed else np.maximum(center, 0.0)
    above = recent - usual
    middle = median(above, axis=0)
    # One long step must not carry a window: what stands out counts twice the middle at most.
    most = np.maximum(2.0 * middle, 0.0)
    gain = np.minimum(above, most).mean(axis=0)
    if not (gain > least_gain).any():
        return None
    pooled = _scale(recent - median(recent, axis=0))
    own = _scale_by_rank(above - middle)
    # Few steps say little about one rank's own noise: it counts where it is clearly larger than the ranks' together.
    step_noise = np.maximum(np.maximum(pooled, OWN_WEIGHT * own), SMALLEST_NOISE)
    means_noise = 0.0
    past = 0.0
    lean = np.zeros(gain.size)
    if based:
        lean = np.maximum(np.minimum(before - usual, most).mean(axis=0), 0.0)
        residuals = before - center
        step_noise = np.maximum(step_noise, _scale(residuals))
        means_noise = _noise_of_means(residuals, window)
        past = 1.0 / before.shape[0]
    noise = np.maximum(step_noise * (1.0 / window + past) ** 0.5, means_noise)
    return View(recent=recent, usual=usual, gain=gain, middle=middle, noise=noise, lean=lean)


def may_be_pauses(before: np.ndarray, threshold: float, slow: int, window: int, chance: float = PAUSE_CHANCE) -> bool:
    """Whether ``slow`` of ``window`` steps above ``threshold`` may be one rank's bad luck.

    Garbage collection and loaders strike now this rank, now that one: what any rank's steps did before says how often.
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


def _noise_of_means(residuals: np.ndarray, window: int) -> float:
    """Steps are not independent: what means over as many steps did before."""
    blocks = residuals.shape[0] // window
    if blocks < FEWEST_BLOCKS:
        return 0.0
    means = residuals[-blocks * window :].reshape(blocks, window, -1).mean(axis=1)
    return float(1.4826 * median(np.abs(means)))
