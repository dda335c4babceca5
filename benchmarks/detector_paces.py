"""Paces of jobs that never ran: how long each rank's own work takes in each step, with the habits of real jobs.

The figures behind the rules about speed come from thousands of them (``detectors.py``), and a test takes a few. Only
numbers: what becomes of a pace in collectives, agents and the operator is the tests' synthetic job's affair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichrank.processors.job.columns.median import median
from whichrank.processors.job.detectors.slow.robust_excess import excess_over_others
from whichrank.processors.job.detectors.slow.step_time_changepoint import (
    PaceChange,
    find_fresh_change,
    find_pace_change,
    kept_history,
)
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.detectors.slow.straggler import LONGEST_BASELINE, WARM_UP_STEPS, WINDOWS, find_straggler
from whichrank.processors.job.detectors.slow.straggler_memory import Straggler
from whichrank.processors.job.slow.pace_findings import PACE_CHECK_STEPS
from whichrank.telemetry.vocabulary import Phase

#: What a job does besides its even steps. Each is one healthy habit.
HABITS = (
    "even",
    "vary 1:8",
    "hiccups",
    "wandering",
    "drift",
    "ramp",
    "rank 0 logs",
    "uneven ranks",
    "crowded",
)
SHARES = {Phase.DATA: 0.15, Phase.FORWARD: 0.85}
MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """From step ``first`` to before ``last``, ``rank`` (-1: all) takes ``share`` of a step longer in ``phase``."""

    rank: int
    first: int
    share: float
    phase: Phase = Phase.FORWARD
    last: int = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pace:
    """One job: own seconds by (step, rank, phase), of it without a CPU (step, rank)."""

    own_s: np.ndarray
    starved_s: np.ndarray
    first_step: int = WARM_UP_STEPS

    def times(self) -> StepTimes:
        """All of its steps, as closing would hand them over."""
        steps, ranks, _ = self.own_s.shape
        self_s = self.own_s.sum(axis=2)
        duration_s = self_s.max(axis=1) * 1.02 + MS
        end_s = np.cumsum(duration_s)
        return StepTimes(
            ranks=np.arange(ranks),
            steps=np.arange(steps) + self.first_step,
            begin_ns=((end_s - duration_s) * 1e9).astype(np.int64),
            duration_ns=(duration_s * 1e9).astype(np.int64),
            self_ns=(self_s * 1e9).astype(np.int64),
            starved_ns=(np.minimum(self.starved_s, self_s) * 1e9).astype(np.int64),
            phase_self_ns=(self.own_s * 1e9).astype(np.int64),
        )


def draw_pace(
    chance: np.random.Generator,
    *,
    habit: str,
    ranks: int,
    steps: int,
    step_s: float,
    jitter: float,
    fault: Fault | None = None,
) -> Pace:
    own_s = np.zeros((steps, ranks, len(Phase)))
    length_s = step_s * _common(chance, habit, steps, step_s)[:, None] * np.ones(ranks)
    if habit == "uneven ranks":
        length_s = length_s * chance.uniform(0.85, 1.0, ranks)
    if habit == "drift":  # each rank's device warms up and cools down a little, over hundreds of steps
        length_s = length_s * (1.0 + np.cumsum(chance.normal(0.0, 0.0004, (steps, ranks)), axis=0))
    for phase, share in SHARES.items():
        own_s[:, :, phase] = length_s * share * np.maximum(0.5, chance.normal(1.0, jitter, (steps, ranks)))
    own_s[:, :, Phase.OTHER] = chance.exponential(1.0 * MS, (steps, ranks))  # what the kernel does in between
    starved_s = np.zeros((steps, ranks))
    if habit == "hiccups":
        strikes = chance.random((steps, ranks)) < 0.025
        own_s[:, :, Phase.DATA] += strikes * chance.uniform(0.1, 2.0, (steps, ranks))
    if habit == "wandering":
        who = chance.integers(0, ranks, steps)
        own_s[np.arange(steps), who, Phase.FORWARD] += chance.uniform(0.1, 0.5, steps)
    if habit == "rank 0 logs":
        own_s[9::10, 0, Phase.OTHER] += chance.uniform(0.05, 0.3) * step_s
    if habit == "crowded":
        starved_s, unseen_s = _crowd(chance, steps, ranks, step_s)
        own_s[:, :, Phase.FORWARD] += starved_s + unseen_s
    if fault is not None:
        slow = slice(fault.first, fault.last)
        guilty = slice(None) if fault.rank < 0 else slice(fault.rank, fault.rank + 1)
        own_s[slow, guilty, fault.phase] += fault.share * step_s
    return Pace(own_s=own_s, starved_s=starved_s)


def _common(chance: np.random.Generator, habit: str, steps: int, step_s: float) -> np.ndarray:
    """What all ranks' steps have in common, 1 at first."""
    if habit == "vary 1:8":
        return chance.uniform(1.0, 8.0, steps)
    if habit == "drift":
        return np.exp(np.cumsum(chance.normal(0.0, 0.002, steps)))
    if habit == "ramp":
        grown = np.linspace(0.0, 1.0, steps)
        if chance.random() < 0.5:  # in stairs of some seconds each
            stairs = max(8.0, steps * step_s / chance.uniform(5.0, 20.0))
            grown = np.floor(grown * stairs) / stairs
        return np.asarray(1.0 + chance.uniform(0.5, 3.0) * grown)
    return np.ones(steps)


def _crowd(chance: np.random.Generator, steps: int, ranks: int, step_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Others on the node take cores for seconds at a time, from some ranks more than from others.

    Most of it the kernel counts as run delay; a fifth (cold caches, a lower clock) nobody counts.
    """
    busy = np.zeros(steps)
    level = 0.0
    for step in range(steps):
        if chance.random() < min(0.5, step_s / 20.0):
            level = chance.choice([0.0, 0.05, 0.15, 0.3])
        busy[step] = level
    taken_s = busy[:, None] * step_s * chance.exponential(1.0, (steps, ranks)) * chance.uniform(0.5, 1.5, ranks)
    return taken_s * 0.8, taken_s * 0.2


def window(times: StepTimes, end: int) -> StepTimes:
    """The steps before ``end`` that a job's state would hold then."""
    part = slice(max(0, end - LONGEST_BASELINE - max(WINDOWS)), end)
    return StepTimes(
        ranks=times.ranks,
        steps=times.steps[part],
        begin_ns=times.begin_ns[part],
        duration_ns=times.duration_ns[part],
        self_ns=times.self_ns[part],
        starved_ns=times.starved_ns[part],
        phase_self_ns=times.phase_self_ns[part],
    )


def first_pace_change(pace: Pace) -> tuple[int, PaceChange] | None:
    """The same for a change of the whole job's pace, looked for as often as the operator does."""
    times = pace.times()
    slowest = np.maximum(excess_over_others(times.self_ns), 0).max(axis=1)
    pace_ns = (times.duration_ns - slowest - median(times.starved_ns, axis=1)).astype(np.int64)
    for end in range(PACE_CHECK_STEPS, times.steps.size + 1, PACE_CHECK_STEPS):
        part = slice(end - kept_history(pace_ns[:end]), end)
        seen = times.steps[part], times.begin_ns[part], pace_ns[part]
        found = find_pace_change(*seen) or find_fresh_change(*seen)
        if found is not None:
            return end, found
    return None


def first_straggler(pace: Pace) -> tuple[int, Straggler] | None:
    """The number of steps after which a straggler is found first, and what is said of it."""
    times = pace.times()
    for end in range(min(WINDOWS), times.steps.size + 1):
        found = find_straggler(window(times, end))
        if found is not None:
            return end, found
    return None
