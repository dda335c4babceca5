"""The culprit from steps whose waiting is known: own work = step - wait, and who has most of it makes the others wait.

Ranks are compared with ranks of the same pipeline stage, over many steps, by robust statistics; a slow stage is told
from a slow rank, and lateness that wanders from rank to rank names nobody. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .step_phases import StepPhase, StepTimeCause, StepVerdict, StragglerSeverity
from .visible_time import CRIT_SHARE, CRIT_STEPS, WARN_STEPS

#: Robust z from which a rank stands out, and the share by which it must.
Z_LIMIT = 3.5
MIN_EXCESS = 0.05
#: With fewer ranks the spread says nothing, and the share alone must be larger.
MIN_RANKS_FOR_Z = 5
MIN_EXCESS_FEW = 0.07
#: In that share of the steps the same rank must have been the latest, and more often than chance: of two ranks with
#: pauses one is the latest in half of the steps by itself.
PERSISTENT = 0.5
CHANCE_SIGMAS = 3.5
#: A phase is named when it holds that share of the loss.
EXPLAINED = 0.5
#: A stage is slow from that share over the others' median on, when its ranks agree.
STAGE_EXCESS = 0.10
#: Lateness that changes hands is worth a word from that share of the step on.
WANDERING_SHARE = 0.10
_STRAGGLERS = {
    StepPhase.INPUT: StepTimeCause.INPUT_STRAGGLER,
    StepPhase.H2D: StepTimeCause.H2D_STRAGGLER,
    StepPhase.FORWARD: StepTimeCause.COMPUTE_STRAGGLER,
    StepPhase.BACKWARD: StepTimeCause.COMPUTE_STRAGGLER,
    StepPhase.OPTIMIZER: StepTimeCause.COMPUTE_STRAGGLER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Times in seconds, each of shape (steps, ranks); NaN: not recorded.

    ``stages``: pipeline stage per rank; ``nodes``: where each rank is; both empty where nobody says. ``step_s``: whole
    steps; ``wait_s``: what of them was waiting; ``phases_s``: the other phases that were measured.
    """

    ranks: tuple[int, ...]
    step_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]
    phases_s: Mapping[StepPhase, NDArray[np.float64]]
    stages: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


def robust_z(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """0.6745 (x - median) / MAD, the MAD at least 1 % of the median.

    NaN stays NaN. values: one per rank, of any unit.
    """
    middle = np.nanmedian(values)
    spread = np.nanmedian(np.abs(values - middle))
    result: NDArray[np.float64] = 0.6745 * (values - middle) / max(float(spread), 0.01 * abs(float(middle)), 1e-12)
    return result


def judge_self(table: StepTable) -> StepVerdict:
    """The verdict over the table's steps: a slow stage, a slow rank, one that changes, or balanced.

    WARM_UP for too few steps with all ranks.
    """
    own_s = table.step_s - table.wait_s
    is_whole: NDArray[np.bool_] = np.asarray(~np.isnan(own_s).any(axis=1))
    steps = int(is_whole.sum())
    if steps < WARN_STEPS or len(table.ranks) < 2:
        return StepVerdict(cause=StepTimeCause.WARM_UP, text=f"{steps} steps with all ranks are too few to judge")
    own_s = own_s[is_whole]
    typical_step_s = float(np.median(table.step_s[is_whole]))
    return (
        _slow_stage(table, own_s, typical_step_s, steps)
        or _slow_rank(table, own_s, is_whole, typical_step_s, steps)
        or _wandering(own_s, typical_step_s, steps)
        or StepVerdict(cause=StepTimeCause.BALANCED, text=f"no rank stands out over {steps} steps")
    )


def _slow_rank(
    table: StepTable, own_s: NDArray[np.float64], is_whole: NDArray[np.bool_], typical_step_s: float, steps: int
) -> StepVerdict | None:
    best: tuple[float, list[int], float] | None = None
    per_rank_s = np.median(own_s, axis=0)
    for members in _peers(table):
        slow, excess, reference_s = _slow_among(per_rank_s[members])
        if not slow:
            continue
        # All ranks of a node may be late together: then the latest is now the one and now the other of them.
        latest = float(np.mean(np.isin(own_s[:, members].argmax(axis=1), slow)))
        if latest >= _persistent(len(slow), len(members), steps) and (best is None or excess > best[0]):
            best = excess, [int(members[place]) for place in slow], reference_s
    if best is None:
        return None
    excess, slow, reference_s = best
    place = max(slow, key=lambda at: per_rank_s[at])
    lost_s = float(per_rank_s[place]) - reference_s
    phase, coverage = _phase(table, is_whole, place, slow, lost_s)
    waiting = np.argsort(np.median(table.wait_s[is_whole], axis=0))[::-1].tolist()
    victim = next((at for at in waiting if at not in slow), None)
    score = min(lost_s / typical_step_s, 1.0)
    is_explained = phase is not None and coverage >= EXPLAINED
    word = phase.value if phase is not None and is_explained else "sync"
    why = f", {coverage:.0%} of it in {word}" if is_explained else ""
    culprits = tuple(table.ranks[at] for at in slow)
    homes = {table.nodes[at] for at in slow} if table.nodes else set()
    node = homes.pop() if len(homes) == 1 else ""
    where = f", all on {node}" if node and len(slow) > 1 else f" on {node}" if node else ""
    who = f"rank {culprits[0]} works" if len(slow) == 1 else f"{len(slow)} ranks ({_some(culprits)}) work"
    return StepVerdict(
        cause=_STRAGGLERS.get(phase, StepTimeCause.STRAGGLER)
        if phase is not None and is_explained
        else StepTimeCause.STRAGGLER,
        severity=StragglerSeverity.CRIT if score >= CRIT_SHARE and steps >= CRIT_STEPS else StragglerSeverity.WARN,
        culprit=table.ranks[place],
        culprits=culprits,
        node=node,
        victim=None if victim is None else table.ranks[victim],
        phase=word,
        score=score,
        coverage=coverage,
        text=f"{who} {excess:.0%} longer than the others over {steps} steps{why}{where}",
    )


def _slow_among(peers_s: NDArray[np.float64]) -> tuple[list[int], float, float]:
    """Places of those that stand out, the largest excess among them, and the time that is normal, in seconds."""
    count = len(peers_s)
    # Of two ranks the faster one is what is normal.
    reference_s = float(np.median(peers_s) if count > 2 else peers_s.min())
    if count < 2 or reference_s <= 0:
        return [], 0.0, 0.0
    excess = peers_s / reference_s - 1
    if count >= MIN_RANKS_FOR_Z:
        is_out = (robust_z(peers_s) > Z_LIMIT) & (excess >= MIN_EXCESS)
    else:
        is_out = excess >= MIN_EXCESS_FEW
    return np.flatnonzero(is_out).tolist(), float(excess.max()), reference_s


def _some(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ..."


def _slow_stage(table: StepTable, own_s: NDArray[np.float64], typical_step_s: float, steps: int) -> StepVerdict | None:
    stages = sorted(set(table.stages))
    if len(stages) < 2:
        return None
    per_rank_s = np.median(own_s, axis=0)
    places = {stage: [at for at, each in enumerate(table.stages) if each == stage] for stage in stages}
    if min(len(members) for members in places.values()) < 2:
        # With one rank in a stage nobody can tell the stage from the rank.
        return None
    medians = {stage: float(np.median(per_rank_s[members])) for stage, members in places.items()}
    slowest = max(stages, key=lambda stage: medians[stage])
    others = float(np.median([medians[stage] for stage in stages if stage != slowest]))
    least_s = float(per_rank_s[places[slowest]].min())
    if others <= 0 or least_s < others * (1 + STAGE_EXCESS):
        return None
    score = min((medians[slowest] - others) / typical_step_s, 1.0)
    return StepVerdict(
        cause=StepTimeCause.STAGE_IMBALANCE,
        severity=StragglerSeverity.WARN,
        phase=f"stage {slowest}",
        score=score,
        text=f"all {len(places[slowest])} ranks of stage {slowest} work {medians[slowest] / others - 1:.0%} longer "
        f"than the other stages over {steps} steps: the partitioning, no device",
    )


def _wandering(own_s: NDArray[np.float64], typical_step_s: float, steps: int) -> StepVerdict | None:
    lost_s = float(np.mean(own_s.max(axis=1) - np.median(own_s, axis=1)))
    if lost_s < WANDERING_SHARE * typical_step_s:
        return None
    return StepVerdict(
        cause=StepTimeCause.WANDERING,
        score=min(lost_s / typical_step_s, 1.0),
        text=f"each step waits {lost_s * 1e3:.1f} ms for a rank, and another one each time: pauses or uneven samples",
    )


def _phase(
    table: StepTable, is_whole: NDArray[np.bool_], place: int, slow: Sequence[int], lost_s: float
) -> tuple[StepPhase | None, float]:
    """The phase with the largest excess over the peers' median, and how much of the loss it is."""
    excess_s: dict[StepPhase, float] = {}
    for phase, times_s in table.phases_s.items():
        seen_s = times_s[is_whole]
        # A rank without this phase cannot be compared in it.
        others = [at for at in range(seen_s.shape[1]) if at not in slow and not np.isnan(seen_s[:, at]).all()]
        if others and not np.isnan(seen_s[:, place]).all():
            typical = float(np.median(np.nanmedian(seen_s[:, others], axis=0)))
            excess_s[phase] = float(np.nanmedian(seen_s[:, place])) - typical
    if not excess_s or lost_s <= 0:
        return None, 0.0
    phase = max(excess_s, key=lambda each: excess_s[each])
    return phase, min(max(excess_s[phase] / lost_s, 0.0), 1.0)


def _persistent(suspects: int, ranks: int, steps: int) -> float:
    """The share of steps in which none of the suspects is the latest by chance."""
    chance = suspects / ranks
    return min(1.0, max(PERSISTENT, chance + CHANCE_SIGMAS * math.sqrt(chance * (1 - chance) / steps)))


def _peers(table: StepTable) -> Sequence[NDArray[np.intp]]:
    """Places of ranks that do the same work: a stage, or all."""
    if not table.stages:
        return [np.arange(len(table.ranks))]
    stages = np.array(table.stages)
    return [np.flatnonzero(stages == stage) for stage in sorted(set(table.stages))]
