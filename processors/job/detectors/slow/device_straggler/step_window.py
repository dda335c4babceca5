"""Finds the rank whose device comes late, among many and within a few steps: these are longer, and one waits less.

How long a step takes is known exactly, so three or four show that something became slow. Who, looks at devices say:
since then all others wait longer for each other, by as much, and one rank waits no more than it did. By how much looks
are wrong shows in the others: they all wait for the same, so what they differ in over these steps is what looks make of
it, also of looks that keep time with the steps. That takes more ranks than a few; ``occupancy`` needs none, but many
steps. Pure.

Method: a z score of the windowed mean, in units of the other ranks' spread.
"""

from __future__ import annotations

import numpy as np

from ....columns.median import median
from ..step_times import StepTimes
from .occupancy import LARGEST_RISE, LEAST_APART, LOOK_NS, MOST_OTHERS, MOST_OWN, SMALLEST_RISE, LateDevice

#: So many steps it has lasted: always all of them count, so that looks have no choice among many windows.
FEWEST_STEPS, MOST_STEPS = 3, 12
#: Steps before them that say what was usual.
FEWEST_BEFORE, MOST_BEFORE = 24, 64
FEWEST_RANKS = 8
#: So many say by themselves how far ranks differ over a window; of fewer, single steps are asked as well.
RANKS_ENOUGH = 32
#: In standard deviations: that the steps became longer, that one waits less than the others; more of it, where several
#: do, so that nobody is put beside the late one by chance.
RISE_SIGMAS, WAIT_SIGMAS, COMPANY_SIGMAS = 5.0, 4.2, 7.0
#: Of the rise, what the others wait longer at least: where all have more to do, nobody waits longer.
LEAST_OTHERS = 0.6
#: A step's length is not known to vary by less than this share.
SMALLEST_NOISE = 0.01
#: So many steps in a row may be long by pauses, as often as steps before were, with less than this chance.
PAUSE_CHANCE = 1e-5
#: Of the windows' steps, one in so many may be as short as usual.
SHORT_ONE_IN = 5
#: Where not one alone waits less by this share of what the latest does, a gap tells who is late with it: the widest of
#: those that nobody lies in and that end above the second share, if it is as wide as the third. The others are most of
#: the ranks.
COMPANY_SHARE, LEAST_COMPANY_SHARE, GAP_SHARE, MOST_COMPANY = 0.7, 0.5, 0.3, 0.25
#: Looks make this of one step's waiting at least.
LOOK_NOISE_NS = 0.4 * LOOK_NS


def find_late_in_steps(times: StepTimes) -> LateDevice | None:
    """The rank that waits no more than before while all others do, over the last 3 to 12 steps; None also for few
    ranks.

    times: of a job on devices, where what is not a rank's own time is what its device stood in collectives.
    """
    if times.ranks.size < FEWEST_RANKS:
        return None
    for window in range(FEWEST_STEPS, MOST_STEPS + 1):
        if times.steps.size < window + FEWEST_BEFORE or not became_longer(times.duration_ns, window):
            continue
        found = _who_waits_less(times, window)
        if found is not None:
            return found
    return None


def became_longer(duration_ns: np.ndarray, window: int) -> bool:
    """Whether nearly each of the last ``window`` steps is longer than those before, by more than chance and pauses
    explain.

    False where the step right before the window was long already. duration_ns: (n,) of consecutive steps.
    """
    before, after = duration_ns[-window - MOST_BEFORE : -window], duration_ns[-window:]
    usual, now = float(median(before)), float(median(after))
    rise = now - usual
    if not SMALLEST_RISE * now < rise < LARGEST_RISE * now:
        return False
    noise = max(1.4826 * float(median(np.abs(before - usual))), SMALLEST_NOISE * usual)
    if rise < RISE_SIGMAS * noise * (1.0 / window + 1.0 / before.size) ** 0.5:
        return False
    half = usual + rise / 2.0
    if before[-1] > half:
        return False
    chance = (int((before > half).sum()) + 0.5) / (before.size + 1.0)
    long = int((after > half).sum())
    return long >= window - window // SHORT_ONE_IN and chance**long < PAUSE_CHANCE


def _who_waits_less(times: StepTimes, window: int) -> LateDevice | None:
    keep = window + MOST_BEFORE
    duration_ns = times.duration_ns[-keep:]
    stood_ns = (duration_ns[:, None] - times.self_ns[-keep:]).astype(np.float64)
    usual_rank_ns = median(stood_ns, axis=1)
    less_ns = usual_rank_ns[:, None] - stood_ns
    before, after = less_ns[:-window], less_ns[-window:]
    was_ns, now_ns = float(median(duration_ns[:-window])), float(median(duration_ns[-window:]))
    rise_ns = now_ns - was_ns
    # One long pause must not carry a window: what stands out counts twice the middle at most.
    gain_ns = np.minimum(after, np.maximum(2.0 * median(after, axis=0), 0.0)).mean(axis=0)
    gain_ns = gain_ns - np.maximum(before.mean(axis=0), 0.0)
    late = int(np.argmax(gain_ns))
    apart_ns = float(gain_ns[late])
    company = gain_ns > COMPANY_SHARE * apart_ns
    if int(company.sum()) > 1:
        company = gain_ns > _widest_gap(gain_ns, apart_ns)
    if (
        apart_ns < LEAST_APART * rise_ns
        or not company.any()
        or int(company.sum()) - 1 > MOST_COMPANY * times.ranks.size
    ):
        return None
    # In means over the window also looks show that keep time with the steps.
    noise_ns = max(_spread(after.mean(axis=0)[~company]), LOOK_NOISE_NS / window**0.5)
    if times.ranks.size < RANKS_ENOUGH:
        noise_ns = max(noise_ns, _spread((after - median(after, axis=0))[:, ~company]) / window**0.5)
    z = apart_ns / noise_ns
    if z < WAIT_SIGMAS:
        return None
    if int(company.sum()) > 1 and z < COMPANY_SIGMAS:
        return None
    others_ns, others_before_ns = float(usual_rank_ns[-window:].mean()), float(usual_rank_ns[:-window].mean())
    own_ns, own_before_ns = float(stood_ns[-window:, late].mean()), float(stood_ns[:-window, late].mean())
    if not LEAST_OTHERS * rise_ns < others_ns - others_before_ns < MOST_OTHERS * rise_ns:
        return None
    if own_ns - own_before_ns > MOST_OWN * rise_ns:
        return None
    company[late] = False
    return late_rank(times, late, window, z=z, company=tuple(int(rank) for rank in times.ranks[company]))


def _widest_gap(gain_ns: np.ndarray, apart_ns: float) -> float:
    """The middle of the widest gap between those who are late together and the others; inf: none is wide enough."""
    ordered = np.sort(gain_ns)
    gaps = np.diff(ordered)
    gaps[ordered[1:] < LEAST_COMPANY_SHARE * apart_ns] = 0.0
    widest = int(np.argmax(gaps))
    wide_enough = gaps[widest] >= GAP_SHARE * apart_ns
    return float(ordered[widest : widest + 2].mean()) if wide_enough else float("inf")


def late_rank(times: StepTimes, late: int, window: int, *, z: float, company: tuple[int, ...] = ()) -> LateDevice:
    """Describes the rank of column ``late`` as late in the last ``window`` steps; waits are given as
    numbers of looks.
    """
    duration_ns = times.duration_ns[-window - MOST_BEFORE :]
    stood_ns = duration_ns[:, None] - times.self_ns[-window - MOST_BEFORE :]
    usual_rank_ns = median(stood_ns, axis=1)
    was_ns, now_ns = float(median(duration_ns[:-window])), float(median(duration_ns[-window:]))
    return LateDevice(
        rank=int(times.ranks[late]),
        company=company,
        onset_step=int(times.steps[-window]),
        onset_ns=int(times.begin_ns[-window]),
        rise=1.0 - was_ns / now_ns,
        before_ns=int(was_ns),
        now_ns=int(now_ns),
        looks=round(float(duration_ns[-window:].sum()) / LOOK_NS),
        waited=round(float(stood_ns[-window:, late].sum()) / LOOK_NS),
        others_waited=round(float(usual_rank_ns[-window:].sum()) / LOOK_NS),
        others_waited_before=float(usual_rank_ns[:-window].mean()) / was_ns,
        z=z,
    )


def _spread(waited_less_ns: np.ndarray) -> float:
    """Standard deviation over ranks, robust; the larger quantile sees those that differ in kind."""
    size = np.sort(np.abs(waited_less_ns - median(waited_less_ns)), axis=None)
    return float(max(1.4826 * size[size.size // 2], size[int(0.9 * (size.size - 1))] / 1.6449))
