"""The culprit from steps whose waiting is known: own work = step - wait, and who has most of it makes the others wait.

Ranks are compared with ranks of the same pipeline stage, over many steps, by robust statistics; a slow stage is told
from a slow rank, and lateness that wanders from rank to rank names nobody. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .phases import Cause, Severity, StepPhase, StepVerdict
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
#: A stage is slow from that share over the others' median on, when its ranks agree.
STAGE_EXCESS = 0.10
#: Lateness that changes hands is worth a word from that share of the step on.
WANDERING_SHARE = 0.10
_STRAGGLERS = {
    StepPhase.INPUT: Cause.INPUT_STRAGGLER,
    StepPhase.H2D: Cause.H2D_STRAGGLER,
    StepPhase.FORWARD: Cause.COMPUTE_STRAGGLER,
    StepPhase.BACKWARD: Cause.COMPUTE_STRAGGLER,
    StepPhase.OPTIMIZER: Cause.COMPUTE_STRAGGLER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Times in seconds, each of shape (steps, ranks); NaN: not recorded. ``stages``: pipeline stage per rank.

    ``step_s``: whole steps; ``wait_s``: what of them was waiting; ``phases_s``: the other phases that were measured.
    """

    ranks: tuple[int, ...]
    step_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]
    phases_s: Mapping[StepPhase, NDArray[np.float64]]
    stages: tuple[int, ...] = ()


def robust_z(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """0.6745 (x - median) / MAD, the MAD at least 1 % of the median. NaN stays NaN."""
    middle = np.nanmedian(values)
    spread = np.nanmedian(np.abs(values - middle))
    result: NDArray[np.float64] = 0.6745 * (values - middle) / max(float(spread), 0.01 * abs(float(middle)), 1e-12)
    return result


def judge_self(table: StepTable) -> StepVerdict:
    """The verdict over the table's steps."""
    own_s = table.step_s - table.wait_s
    is_whole: NDArray[np.bool_] = np.asarray(~np.isnan(own_s).any(axis=1))
    steps = int(is_whole.sum())
    if steps < WARN_STEPS or len(table.ranks) < 2:
        return StepVerdict(cause=Cause.WARM_UP, text=f"{steps} steps with all ranks are too few to judge")
    own_s = own_s[is_whole]
    typical_step_s = float(np.median(table.step_s[is_whole]))
    return (
        _slow_stage(table, own_s, typical_step_s, steps)
        or _slow_rank(table, own_s, is_whole, typical_step_s, steps)
        or _wandering(own_s, typical_step_s, steps)
        or StepVerdict(cause=Cause.BALANCED, text=f"no rank stands out over {steps} steps")
    )


def _slow_rank(
    table: StepTable, own_s: NDArray[np.float64], is_whole: NDArray[np.bool_], typical_step_s: float, steps: int
) -> StepVerdict | None:
    per_rank_s = np.median(own_s, axis=0)
    best: tuple[float, int, float] | None = None
    for members in _peers(table):
        peers_s = per_rank_s[members]
        middle = float(np.median(peers_s))
        if middle <= 0 or len(members) < 2:
            continue
        # Of two ranks the faster one is what is normal.
        reference = middle if len(members) > 2 else float(peers_s.min())
        z = robust_z(peers_s)
        for place, member in enumerate(members):
            excess = float(peers_s[place]) / reference - 1 if reference > 0 else 0.0
            is_out = (
                z[place] > Z_LIMIT and excess >= MIN_EXCESS
                if len(members) >= MIN_RANKS_FOR_Z
                else excess >= MIN_EXCESS_FEW
            )
            latest = float(np.mean(own_s[:, members].argmax(axis=1) == place))
            if is_out and latest >= _persistent(len(members), steps) and (best is None or excess > best[0]):
                best = excess, int(member), reference
    if best is None:
        return None
    excess, place, reference = best
    lost_s = float(per_rank_s[place]) - reference
    phase, coverage = _phase(table, is_whole, place, lost_s)
    victim = int(np.argsort(np.median(table.wait_s[is_whole], axis=0))[-1])
    score = min(lost_s / typical_step_s, 1.0)
    is_explained = phase is not None and coverage >= 0.5
    word = phase.value if phase is not None and is_explained else "sync"
    why = f", {coverage:.0%} of it in {word}" if is_explained else ""
    return StepVerdict(
        cause=_STRAGGLERS.get(phase, Cause.STRAGGLER) if phase is not None and is_explained else Cause.STRAGGLER,
        severity=Severity.CRIT if score >= CRIT_SHARE and steps >= CRIT_STEPS else Severity.WARN,
        culprit=table.ranks[place],
        victim=table.ranks[victim] if victim != place else None,
        phase=word,
        score=score,
        coverage=coverage,
        text=f"rank {table.ranks[place]} works {excess:.0%} longer than its peers over {steps} steps{why}",
    )


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
        cause=Cause.STAGE_IMBALANCE,
        severity=Severity.WARN,
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
        cause=Cause.WANDERING,
        score=min(lost_s / typical_step_s, 1.0),
        text=f"each step waits {lost_s * 1e3:.1f} ms for a rank, and another one each time: pauses or uneven samples",
    )


def _phase(table: StepTable, is_whole: NDArray[np.bool_], place: int, lost_s: float) -> tuple[StepPhase | None, float]:
    """The phase with the largest excess over the peers' median, and how much of the loss it is."""
    excess_s: dict[StepPhase, float] = {}
    for phase, times_s in table.phases_s.items():
        seen_s = times_s[is_whole]
        # A rank without this phase cannot be compared in it.
        others = [at for at in range(seen_s.shape[1]) if at != place and not np.isnan(seen_s[:, at]).all()]
        if others and not np.isnan(seen_s[:, place]).all():
            typical = float(np.median(np.nanmedian(seen_s[:, others], axis=0)))
            excess_s[phase] = float(np.nanmedian(seen_s[:, place])) - typical
    if not excess_s or lost_s <= 0:
        return None, 0.0
    phase = max(excess_s, key=lambda each: excess_s[each])
    return phase, min(max(excess_s[phase] / lost_s, 0.0), 1.0)


def _persistent(ranks: int, steps: int) -> float:
    """The share of steps in which nobody is the latest by chance."""
    chance = 1 / ranks
    return min(1.0, max(PERSISTENT, chance + CHANCE_SIGMAS * (chance * (1 - chance) / steps) ** 0.5))


def _peers(table: StepTable) -> Sequence[NDArray[np.intp]]:
    """Places of ranks that do the same work: a stage, or all."""
    if not table.stages:
        return [np.arange(len(table.ranks))]
    stages = np.array(table.stages)
    return [np.flatnonzero(stages == stage) for stage in sorted(set(table.stages))]
