"""Finds the rank that became slow so gradually that no window of steps sees it: a fan that clogs, memory that fills.

Windows compare with some hundred steps before; here blocks of steps are compared with the best that this rank ever did
against the others. Only ranks are watched for drift: a whole job that grows slower by and by looks like a ramp of batch
size or sequence length, which is planned work.

Method: medians of blocks of steps against the best block so far, noise by the median absolute difference of neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...columns.median import median
from .robust_excess import excess_over_others
from .step_times import StepTimes

BLOCK_STEPS = 64
#: Blocks kept; the best of those let go stays as the first row.
KEPT_BLOCKS = 48
#: Columns of a block before those of the ranks: newest step, begin of the first.
STEP, BEGIN, RANKS = 0, 1, 2
#: In units of the step time: how far the last two blocks lie above the best, and how much of it is the rank's own rise.
SMALLEST_RISE = 0.08
OWN_SHARE = 0.5
FEWEST_BLOCKS = 6
#: In standard deviations of a block.
SIGNIFICANCE = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A rank that became slow by and by. usual, rise: its excess at its best and since, in step times.

    onset_step: since when the rank is nearer to now than to its best.
    """

    rank: int
    onset_step: int
    onset_ns: int
    rise: float
    usual: float
    best_ns: int
    now_ns: int
    since_step: int


def no_blocks(ranks: int) -> np.ndarray:
    """An empty table of blocks, (0, 2 + 2 * ranks), for ``with_block``.

    Columns: last step, begin in Unix ns, each rank's excess in step times, each rank's own work in ns.
    """
    return np.zeros((0, RANKS + 2 * ranks))


def with_block(blocks: np.ndarray, times: StepTimes) -> np.ndarray:
    """The table with one more block of the steps since its last one; as it was where these are fewer than BLOCK_STEPS.

    blocks: as ``no_blocks`` tells. Beyond KEPT_BLOCKS the first two are joined, with the better of each rank.
    """
    last = blocks[-1, STEP] if len(blocks) else -1
    fresh = times.steps > last
    if int(fresh.sum()) < BLOCK_STEPS:
        return blocks
    own_ns = (times.self_ns - times.starved_ns)[fresh]
    excess = excess_over_others(own_ns) / np.maximum(times.duration_ns[fresh], 1)[:, None]
    row = [float(times.steps[-1]), float(times.begin_ns[fresh][0]), *median(excess, axis=0), *median(own_ns, axis=0)]
    blocks = np.vstack([blocks, row])
    if len(blocks) <= KEPT_BLOCKS:
        return blocks
    ranks = times.ranks.size
    excess_columns = slice(RANKS, RANKS + ranks)
    better = blocks[1, excess_columns] < blocks[0, excess_columns]
    blocks[1, RANKS:] = np.where(np.tile(better, 2), blocks[1, RANKS:], blocks[0, RANKS:])
    return blocks[1:]


def find_drift(blocks: np.ndarray, ranks: np.ndarray) -> Drift | None:
    """The rank whose last two blocks both lie far above its best. blocks: one row per block; ranks: (ranks,)."""
    if len(blocks) < FEWEST_BLOCKS or ranks.size < 2:
        return None
    excess, own_ns = blocks[:, RANKS : RANKS + ranks.size], blocks[:, RANKS + ranks.size :]
    past = np.maximum(excess[:-2], 0.0)
    best = past.argmin(axis=0)
    usual = past.min(axis=0)
    rise = excess[-2:].min(axis=0) - usual
    who = int(np.argmax(rise))
    before_ns, now_ns = float(own_ns[best[who], who]), float(own_ns[-2:, who].min())
    # From block to block a drift is small; pauses that strike now this rank, now that one, are not.
    jumps = 1.4826 * float(median(np.abs(np.diff(excess, axis=0)))) / 2.0**0.5
    if rise[who] < max(SMALLEST_RISE, SIGNIFICANCE * jumps):
        return None
    if now_ns < before_ns * (1.0 + OWN_SHARE * rise[who]):
        return None
    low = np.flatnonzero(excess[:, who] - usual[who] < rise[who] / 2.0)
    onset = int(low[-1]) + 1 if low.size else 0
    return Drift(
        rank=int(ranks[who]),
        onset_step=int(blocks[onset - 1, STEP]) + 1 if onset else 0,
        onset_ns=int(blocks[onset, BEGIN]),
        rise=float(rise[who]),
        usual=float(usual[who]),
        best_ns=int(before_ns),
        now_ns=int(now_ns),
        since_step=int(blocks[best[who], STEP]),
    )


def makes_steps_longer(blocks: np.ndarray, ranks: np.ndarray, drift: Drift) -> bool:
    """Whether the longest own work of any rank grew since ``drift.since_step`` by half of the drift's rise at least.

    Else others had time to spare and the drift costs nothing. blocks, ranks: as for ``find_drift``.
    """
    longest_ns = blocks[:, RANKS + ranks.size :].max(axis=1)
    now_ns, then_ns = float(longest_ns[-2:].min()), float(longest_ns[blocks[:, STEP] == drift.since_step][0])
    return 2.0 * (now_ns - then_ns) > drift.rise * then_ns


def has_come_back(blocks: np.ndarray, ranks: np.ndarray, rank: int, usual: float, rise: float) -> bool:
    """Whether the rank's last block lies nearer to its best again. blocks: one row per block; ranks: (ranks,)."""
    where = np.flatnonzero(ranks == rank)
    return bool(len(blocks) and where.size and blocks[-1, RANKS + int(where[0])] - usual < rise / 2.0)
