"""Finds the rank whose device comes late where steps are shorter than the recorder's status can measure: by occupancy.

Each of the recorder's looks finds a device working, or inside a collective waiting for its peers. Over many looks the
share of waiting is exact at any step length: a rank that became slow by a fifth of the step is waited for in a fifth of
all looks, and waits itself in none. The hosts' steps say by how much and since when; looks say who.
Looks that keep time with the steps see the same moment of each again and again: they count once they have moved on.

Method: shares of samples in two stretches compared by a z test; the change point by the largest standardised CUSUM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....columns.median import median

#: The status moves this often (NCCL's watchdog).
LOOK_NS = 100_000_000
#: Looks are added up over whole steps that last so long together.
BLOCK_NS = 500_000_000
KEPT_BLOCKS = 128
FEWEST_BLOCKS = 5
#: Columns of a block: first and last step, how many plain ones, begin of the first, their length, how long before its
#: end a call was launched (summed over steps); then, by rank, how long its device was found waiting.
FIRST, LAST, STEPS, BEGIN, LENGTH, LEAD, RANKS = range(7)
#: In new step times, how much longer steps have to be; by far more, some long pauses of one rank make them.
SMALLEST_RISE, LARGEST_RISE = 0.05, 0.7
#: In standard deviations: that steps became longer; that one waits less than the others; that it was not always so.
RISE_SIGMAS, WAIT_SIGMAS, CHANGE_SIGMAS = 5.0, 4.2, 1.5
#: The others wait more and the late one does not, or less, where all waited for one another before. In shares of the
#: rise: how far they move apart at least; how much more the others wait, and the late one, at most. Each other moves
#: away from it by this share of what they do in the mean.
LEAST_APART, MOST_OTHERS, MOST_OWN, LEAST_OTHER = 1 / 2, 1.6, 1 / 4, 1 / 3
#: How often the looks must have gone all through a step. A clock may be wrong by this share.
TURNS = 3.0
CLOCK_SLACK = 0.01
#: Numbers of blocks over which looks may depend on one another.
REACHES = (1, 2, 4, 8)
#: One block in so many may be odd at either end.
OUTLYING = 10
FEWEST_FREEDOM = 3
#: More looks into one step than this say no more: they see the same pause.
LOOKS_PER_STEP = 5.0
#: On average a look and the heartbeat that reads it come so much after the end.
SEEN_AFTER_NS = 75_000_000
RECOVERY_BLOCKS = 4
#: So far from the change between two blocks its step is looked for.
NEAR_BLOCKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LateDevice:
    """A rank whose device comes late. rise: share of the step by which it is longer. looks: how many there were;
    waited, others_waited: of them, where this rank, and the others in the mean, were found waiting.

    z: how sure. company: ranks that are late with it.
    """

    rank: int
    onset_step: int
    onset_ns: int
    rise: float
    before_ns: int
    now_ns: int
    looks: int
    waited: int
    others_waited: int
    others_waited_before: float
    z: float
    company: tuple[int, ...] = ()


def no_looks(ranks: int) -> np.ndarray:
    """An empty table of blocks of looks, for ``with_looks``. ranks: how many."""
    return np.zeros((0, RANKS + ranks))


def with_looks(
    blocks: np.ndarray,
    *,
    steps: np.ndarray,
    begin_ns: np.ndarray,
    duration_ns: np.ndarray,
    lead_ns: np.ndarray,
    waited_ns: np.ndarray,
) -> np.ndarray:
    """The table of blocks with steps added to the last block, or to a new one where it spans BLOCK_NS.

    steps, begin_ns, duration_ns, lead_ns: (n,) of closed plain steps; waited_ns: (n, ranks), found waiting. At most
    KEPT_BLOCKS are kept.
    """
    rows = list(blocks)
    for place in range(steps.size):
        step = [steps[place], steps[place], 1.0, begin_ns[place], duration_ns[place], lead_ns[place], *waited_ns[place]]
        fresh = np.array(step, np.float64)
        if rows and rows[-1][LENGTH] < BLOCK_NS:
            joined = rows[-1] + fresh
            joined[FIRST], joined[BEGIN], joined[LAST] = rows[-1][FIRST], rows[-1][BEGIN], fresh[LAST]
            rows[-1] = joined
        else:
            rows.append(fresh)
    return np.array(rows[-KEPT_BLOCKS:]).reshape(-1, blocks.shape[1])


def find_late_device(
    blocks: np.ndarray, ranks: np.ndarray, steps: np.ndarray, begin_ns: np.ndarray, duration_ns: np.ndarray
) -> LateDevice | None:
    """The rank found waiting in far fewer looks than all others since the steps became longer; else None.

    blocks: as ``with_looks`` gives them; ranks: of their columns. steps, begin_ns, duration_ns: (n,) of the newest
    steps, to find the first long one.
    """
    full = _full(blocks)
    if len(full) < 2 * FEWEST_BLOCKS or ranks.size < 2:
        return None
    change, scatter = _longest_change(full)
    before, after = full[:change], full[change:]
    before_ns, now_ns = (float(median(_lengths(part))) for part in (before, after))
    rise = 1.0 - before_ns / now_ns
    error = scatter * (1.0 / len(before) + 1.0 / len(after)) ** 0.5
    if not SMALLEST_RISE < rise < LARGEST_RISE or np.log(now_ns / before_ns) < RISE_SIGMAS * error:
        return None
    if np.quantile(_lengths(after), 0.3) < np.quantile(_lengths(before), 0.7):
        return None  # some pauses, not longer steps
    if _turns(after, scatter, now_ns) < TURNS:
        return None
    usual, now = _shares(before), _shares(after)
    late = int(np.argmin(now))
    others, gain = np.delete(now, late), np.delete(now - usual, late)
    own_gain = float(now[late] - usual[late])
    apart = float(gain.mean()) - own_gain
    if apart < LEAST_APART * rise or gain.mean() > MOST_OTHERS * rise or own_gain > MOST_OWN * rise:
        return None
    if gain.min() - own_gain < LEAST_OTHER * apart:
        return None
    chance_now, chance_usual = _chance(after), _chance(before)
    scale = (_dependence((before, after)) * (1.0 + 1.0 / others.size)) ** 0.5
    z = float(others.mean() - now[late]) / (scale * chance_now**0.5)
    change_z = apart / (scale * (chance_now + chance_usual) ** 0.5)
    if z < WAIT_SIGMAS or change_z < CHANGE_SIGMAS:
        return None
    looks = float(after[:, LENGTH].sum()) / LOOK_NS
    onset_step, onset_ns = _first_long_step(before, after, steps, begin_ns, duration_ns, (before_ns * now_ns) ** 0.5)
    return LateDevice(
        rank=int(ranks[late]),
        onset_step=onset_step,
        onset_ns=onset_ns,
        rise=rise,
        before_ns=int(before_ns),
        now_ns=int(now_ns),
        looks=round(looks),
        waited=round(looks * float(now[late])),
        others_waited=round(looks * float(others.mean())),
        others_waited_before=float(np.delete(usual, late).mean()),
        z=z,
    )


def is_still_late(blocks: np.ndarray, before_ns: float, now_ns: float) -> bool:
    """False once the steps are nearer to their old length again. blocks: one row per look (``with_looks``)."""
    last = _full(blocks)[-RECOVERY_BLOCKS:]
    if len(last) < RECOVERY_BLOCKS:
        return True
    return bool(last[:, LENGTH].sum() / last[:, STEPS].sum() > (before_ns * now_ns) ** 0.5)


def _full(blocks: np.ndarray) -> np.ndarray:
    """Without the one that is still filled, and without the first, in which the hosts may just begin to run ahead."""
    return blocks[1:-1] if len(blocks) and blocks[-1, LENGTH] < BLOCK_NS else blocks[1:]


def _lengths(blocks: np.ndarray) -> np.ndarray:
    return np.asarray(blocks[:, LENGTH] / blocks[:, STEPS])


def _longest_change(blocks: np.ndarray) -> tuple[int, float]:
    """Where the steps' length changed most, and the standard deviation of a block's (logarithms)."""
    length = np.log(_lengths(blocks))
    least = max(1, length.size // OUTLYING)  # a host that begins to run ahead, one long pause
    length = np.clip(length, *np.sort(length)[[least, -1 - least]])
    count = np.arange(1, length.size)
    size = np.abs(np.cumsum(length - length.mean())[:-1]) / np.sqrt(count * (length.size - count))
    size[: FEWEST_BLOCKS - 1] = size[length.size - FEWEST_BLOCKS :] = 0.0
    change = int(np.argmax(size)) + 1
    rest = np.concatenate([part - part.mean() for part in (length[:change], length[change:])])
    scatter = float(np.sqrt((rest**2).sum() / (rest.size - 2)))
    for reach in REACHES[1:]:
        means = rest[rest.size % reach :].reshape(-1, reach).mean(axis=1)
        if means.size >= FEWEST_BLOCKS:
            scatter = max(scatter, float(means.std(ddof=1)) * reach**0.5)
    return change, scatter


def _turns(after: np.ndarray, scatter: float, step_ns: float) -> float:
    """How often the moments of the looks have gone all through a step, by what steps and looks differ and by jitter."""
    count, total_ns = float(after[:, STEPS].sum()), float(after[:, LENGTH].sum())
    longer, shorter = max(step_ns, LOOK_NS), min(step_ns, LOOK_NS)
    miss_ns = max(0.0, abs(longer - round(longer / shorter) * shorter) - CLOCK_SLACK * longer)
    jitter_ns = scatter * (count / len(after)) ** 0.5 * step_ns
    return float((total_ns / longer * miss_ns + 2.0 * jitter_ns * count**0.5) / shorter)


def _shares(blocks: np.ndarray) -> np.ndarray:
    """By rank: the share of its looks that found it waiting."""
    return np.asarray(blocks[:, RANKS:].sum(axis=0) / blocks[:, LENGTH].sum())


def _chance(blocks: np.ndarray) -> float:
    """Variance of one rank's share if all were alike and looks did not depend on one another."""
    looks = min(float(blocks[:, LENGTH].sum()) / LOOK_NS, LOOKS_PER_STEP * float(blocks[:, STEPS].sum()))
    share = min(max(float(_shares(blocks).mean()), 1.0 / looks), 1.0 - 1.0 / looks)
    return share * (1.0 - share) / looks


def _dependence(parts: tuple[np.ndarray, ...]) -> float:
    """By how much more sums over looks vary than those of independent ones would: one at least."""
    most = 1.0
    for reach in REACHES:
        varies = expected = freedom = 0.0
        for part in parts:
            count = len(part) // reach
            if count < 2:
                continue
            chosen = part[len(part) - count * reach :].reshape(count, reach, -1).sum(axis=1)
            looks = chosen[:, LENGTH] / LOOK_NS
            share = _shares(chosen)
            varies += float(((chosen[:, RANKS:] / chosen[:, LENGTH, None] - share) ** 2 * looks[:, None]).sum())
            expected += (count - 1) * float(np.maximum(share * (1.0 - share), 1.0 / looks.sum()).sum())
            freedom += count - 1
        if freedom >= FEWEST_FREEDOM:
            most = max(most, varies / expected)
    return most


def _first_long_step(
    before: np.ndarray,
    after: np.ndarray,
    steps: np.ndarray,
    begin_ns: np.ndarray,
    duration_ns: np.ndarray,
    between_ns: float,
) -> tuple[int, int]:
    """Step and time since which the device is late. The host is ahead: what makes it wait is a step launched before."""
    least, most = before[-NEAR_BLOCKS:, FIRST].min(), after[:NEAR_BLOCKS, LAST].max()
    near = (steps >= least) & (steps <= most)
    step, at_ns = int(after[0, FIRST]), int(after[0, BEGIN])
    if near.any() and steps[0] <= before[-1, FIRST]:
        first = int(np.argmax(np.cumsum((duration_ns[near] - between_ns)[::-1])[::-1]))
        step, at_ns = int(steps[near][first]), int(begin_ns[near][first])
    lead_ns = float(before[:, LEAD].sum() / before[:, STEPS].sum()) - SEEN_AFTER_NS
    ahead = max(0, int(lead_ns / (before[:, LENGTH].sum() / before[:, STEPS].sum())))
    return max(0, step - ahead), at_ns
