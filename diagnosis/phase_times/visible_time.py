"""The culprit from phase times alone, where nobody measured the waiting: it is hidden in the synchronising phase.

All ranks leave backward together (FSDP: forward and backward together), so who has the *least* visible time there came
last and made the others wait. Pure; the approach is TraceML's.
"""

from __future__ import annotations

from collections.abc import Sequence

from .step_phases import RankTimes, StepPhase, StepTimeCause, StepVerdict, StragglerSeverity, Strategy

#: Shares of the step from which waiting counts, and is grave.
WARN_SHARE, CRIT_SHARE = 0.10, 0.20
#: The share of a step in compute from which nothing else is worth looking at.
COMPUTE_SHARE = 0.90
#: A phase explains the gap from that share of it on.
COVERAGE = 0.80
WARN_STEPS, CRIT_STEPS = 2, 20
#: Sums of floats: 0.2 of 1.0 is meant to reach 20 %.
_ROUND = 1e-9

_SYNCHRONISING = {
    Strategy.DDP: (StepPhase.BACKWARD,),
    Strategy.FSDP: (StepPhase.FORWARD, StepPhase.BACKWARD),
}
_STRAGGLERS = {
    StepPhase.INPUT: StepTimeCause.INPUT_STRAGGLER,
    StepPhase.H2D: StepTimeCause.H2D_STRAGGLER,
    StepPhase.FORWARD: StepTimeCause.COMPUTE_STRAGGLER,
}
_BOUNDS = {
    StepPhase.INPUT: StepTimeCause.INPUT_BOUND,
    StepPhase.H2D: StepTimeCause.H2D_BOUND,
    StepPhase.RESIDUAL: StepTimeCause.RESIDUAL_BOUND,
}
_COMPUTE = (StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.OPTIMIZER)


def judge_visible(ranks: Sequence[RankTimes], steps: int, strategy: Strategy = Strategy.DDP) -> StepVerdict:
    """The verdict from phase times alone: a straggler and in which phase, else by ``judge_shares``.

    steps: how many the times are typical of; too few: WARM_UP.
    """
    if steps < WARN_STEPS or not ranks:
        return StepVerdict(cause=StepTimeCause.WARM_UP, text=f"{steps} steps are too few to judge")
    return _straggler(ranks, steps, strategy) or judge_shares(ranks, steps)


def judge_shares(ranks: Sequence[RankTimes], steps: int) -> StepVerdict:
    """The phase (input, copy to the device, rest) that takes most, if a tenth of the median rank's step or more.

    Else compute-bound or balanced. ranks: not empty; steps: how many they are typical of, for the severity alone.
    """
    shares = {phase: _median([_share(rank, (phase,)) for rank in ranks]) for phase in _BOUNDS}
    phase = max(shares, key=lambda each: shares[each])
    if shares[phase] >= WARN_SHARE - _ROUND:
        return StepVerdict(
            cause=_BOUNDS[phase],
            severity=_severity(shares[phase], steps, Strategy.DDP),
            phase=phase.value,
            score=shares[phase],
            text=f"{shares[phase]:.0%} of the step is {phase.value}",
        )
    compute = _median([_share(rank, _COMPUTE) for rank in ranks])
    if compute >= COMPUTE_SHARE - _ROUND:
        return StepVerdict(
            cause=StepTimeCause.COMPUTE_BOUND, score=compute, text=f"{compute:.0%} of the step is compute"
        )
    return StepVerdict(cause=StepTimeCause.BALANCED, text="no rank and no phase stands out")


def _straggler(ranks: Sequence[RankTimes], steps: int, strategy: Strategy) -> StepVerdict | None:
    phases = _SYNCHRONISING[strategy]
    visible = {rank.rank: sum(rank.of(phase) for phase in phases) for rank in ranks}
    # A rank whose synchronising phase was never seen cannot be compared.
    ordered = sorted((rank for rank in ranks if visible[rank.rank] > 0), key=lambda rank: visible[rank.rank])
    if len(ordered) < 2:
        return None
    culprit, victim = ordered[0], ordered[len(ordered) // 2]
    gap_s = visible[victim.rank] - visible[culprit.rank]
    score = min(gap_s / victim.step_s, 1.0) if victim.step_s > 0 else 0.0
    if score < WARN_SHARE - _ROUND:
        return None
    candidates = [StepPhase.INPUT, StepPhase.H2D]
    # Under FSDP forward itself contains waiting; a rank without any forward time was measured differently.
    if strategy is Strategy.DDP and min(culprit.of(StepPhase.FORWARD), victim.of(StepPhase.FORWARD)) > 0:
        candidates.append(StepPhase.FORWARD)
    excess_s = {phase: culprit.of(phase) - victim.of(phase) for phase in candidates}
    phase = max(candidates, key=lambda each: excess_s[each])
    coverage = min(max(excess_s[phase] / gap_s, 0.0), 1.0)
    is_explained = coverage >= COVERAGE - _ROUND
    cause = _STRAGGLERS[phase] if is_explained else StepTimeCause.STRAGGLER
    word = phase.value if is_explained else "sync"
    why = f": {excess_s[phase] * 1e3:.1f} ms more in {word}" if is_explained else "; no measured phase explains it"
    return StepVerdict(
        cause=cause,
        severity=_severity(score, steps, strategy),
        culprit=culprit.rank,
        culprits=(culprit.rank,),
        victim=victim.rank,
        phase=word,
        score=score,
        coverage=coverage,
        text=f"rank {culprit.rank} comes {gap_s * 1e3:.1f} ms late, rank {victim.rank} and others wait{why}",
    )


def _severity(share: float, steps: int, strategy: Strategy) -> StragglerSeverity:
    is_grave = share >= CRIT_SHARE - _ROUND and steps >= CRIT_STEPS and strategy is not Strategy.FSDP
    return StragglerSeverity.CRIT if is_grave else StragglerSeverity.WARN


def _share(rank: RankTimes, phases: Sequence[StepPhase]) -> float:
    return sum(rank.of(phase) for phase in phases) / rank.step_s if rank.step_s > 0 else 0.0


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
