"""Finds the rank whose own work takes longer than the others': self time, not waiting, step after step.

In a synchronous job all ranks have the same step time and the slow one is the one that never waits. So each rank's
self time (step time minus its waits) is compared with that of the others in the same step, and the difference with
what was usual for this rank. Short windows find large differences soon, long ones small differences surely.
Time for which a rank's main thread had no CPU is taken out first: on a crowded node it is most of the noise. What only
shows with it, or only without it, is no slow rank: a thread may wait while its device works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .median import median

WARM_UP_STEPS = 5
#: The excess has to hold over this many plain steps; longer windows find smaller ones.
WINDOWS = (8, 12, 16, 24, 32)
SHORTEST_WINDOW_NS = 300_000_000
FEWEST_BASELINE_STEPS = 6
BASELINE_STEPS = 16
LONGEST_BASELINE = 128
#: In units of the step time.
SMALLEST_EXCESS = 0.05
SHORT_BASELINE_EXCESS = 0.12
SMALLEST_EXCESS_NS = 4_000_000
#: Without a baseline a difference may be how this job always runs, so it has to be large and to last.
UNBASED_STEPS = 20
UNBASED_EXCESS = 0.15
UNBASED_NS = 2_000_000_000
SIGNIFICANCE = 5.5
#: A rank that is slow only because it gets no CPU is told when it has lasted, and by a wide margin.
STARVED_WINDOW_NS = 10_000_000_000
STARVED_Z = 8.0
#: Fewer means over a window than this say less about noise than the steps themselves.
FEWEST_BLOCKS = 8
#: The others' own work in the window, compared with before, from which on the whole machine is to blame.
COMMON_RISE = 1.5
SMALLEST_NOISE = 0.012
PERSISTENT_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """Closed plain steps in order; the same ranks in each. Plain: nobody evaluates, saves, restores or compiles.

    steps, begin_ns, duration_ns: (n,); self_ns: (n, ranks), of it without a CPU: starved_ns; phase_self_ns:
    (m, ranks, phases) of the last m steps.
    """

    ranks: np.ndarray
    steps: np.ndarray
    begin_ns: np.ndarray
    duration_ns: np.ndarray
    self_ns: np.ndarray
    starved_ns: np.ndarray
    phase_self_ns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """excess: share of the step time by which the rank is slower than usual, against the others. z: how sure.

    starved_ns: of ``excess_ns``, what it waited for a CPU.
    """

    rank: int
    onset_step: int
    onset_ns: int
    excess: float
    excess_ns: int
    usual: float
    phase: int
    z: float
    window: int
    slow_steps: int
    step_ns: int
    others_self_ns: int
    self_ns: int
    starved_ns: int = 0


def excess_over_others(self_ns: np.ndarray) -> np.ndarray:
    """(n, ranks) self times minus the median of the other ranks in the same step."""
    ranks = self_ns.shape[1]
    if ranks < 2:
        return np.zeros(self_ns.shape)
    if ranks > 12:  # leaving one out changes nothing any more
        return np.asarray(self_ns - median(self_ns, axis=1, keepdims=True))
    others = [median(np.delete(self_ns, rank, axis=1), axis=1) for rank in range(ranks)]
    return np.asarray(self_ns - np.stack(others, axis=1))


def find_straggler(times: StepTimes) -> Straggler | None:
    """The rank that has become, or always was, slower than the others by more than the job's own noise."""
    if times.steps.size < min(WINDOWS) or times.ranks.size < 2 or not _anyone_stands_out(times):
        return None
    if not times.starved_ns.any():
        return _find_in(times)
    fed = replace(times, self_ns=times.self_ns - times.starved_ns)
    for seen, other in ((fed, times), (times, fed)):
        found = _find_in(seen)
        if found is None:
            continue
        found = replace(found, starved_ns=_starved_more_ns(times, found))
        if _gain_of(other, found) > found.excess / 2.0:
            return found
        lasting = int(times.duration_ns[-found.window :].sum()) >= STARVED_WINDOW_NS and found.z >= STARVED_Z
        if seen is times and lasting and found.window == max(WINDOWS):
            return found
    return None


def _gain_of(times: StepTimes, found: Straggler) -> float:
    """By how much the same rank stands out more than before in the same steps of another series."""
    column = int(np.flatnonzero(times.ranks == found.rank)[0])
    excess = excess_over_others(times.self_ns)[:, column] / np.maximum(times.duration_ns, 1)
    before = excess[: -found.window]
    usual = float(median(before)) if before.size >= FEWEST_BASELINE_STEPS else 0.0
    return float(median(excess[-found.window :])) - max(usual, 0.0)


def _starved_more_ns(times: StepTimes, found: Straggler) -> int:
    """How much longer than the others the rank waited for a CPU, per step of the window."""
    column = int(np.flatnonzero(times.ranks == found.rank)[0])
    return int(excess_over_others(times.starved_ns[-found.window :])[:, column].mean())


def _find_in(times: StepTimes) -> Straggler | None:
    keep = LONGEST_BASELINE + max(WINDOWS)
    excess_ns = excess_over_others(times.self_ns[-keep:])
    duration = np.maximum(times.duration_ns[-keep:], 1)
    excess = excess_ns / duration[:, None]
    for window in WINDOWS:
        if excess.shape[0] < window or int(duration[-window:].sum()) < SHORTEST_WINDOW_NS:
            continue
        found = _look_through_window(times, excess, excess_ns, window)
        if found is not None:
            return found
    return None


def _anyone_stands_out(times: StepTimes) -> bool:
    """A cheap look at the last steps: without half the smallest excess there is nothing to find."""
    recent = excess_over_others(times.self_ns[-max(WINDOWS) :]) / times.duration_ns[-max(WINDOWS) :, None]
    level = max(float(median(recent[-min(WINDOWS) :], axis=0).max()), float(recent.mean(axis=0).max()))
    return level > SMALLEST_EXCESS / 2.0


def is_still_slow(times: StepTimes, rank: int, excess: float, usual: float) -> bool:
    """False once the rank's excess over the last steps has fallen to a third of what it was found with."""
    where = np.flatnonzero(times.ranks == rank)
    if times.steps.size < min(WINDOWS) or not where.size:
        return True
    recent = excess_over_others(times.self_ns[-min(WINDOWS) :])[:, where[0]] / times.duration_ns[-min(WINDOWS) :]
    return float(median(recent)) - usual > max(excess / 3.0, SMALLEST_EXCESS / 2.0)


def _look_through_window(times: StepTimes, excess: np.ndarray, excess_ns: np.ndarray, window: int) -> Straggler | None:
    recent, before = excess[-window:], excess[:-window]
    middle = median(recent, axis=0)
    based = before.shape[0] >= FEWEST_BASELINE_STEPS
    usual = median(before, axis=0) if based else np.zeros(middle.shape)
    # One long step must not carry a window: what stands out counts twice the middle at most.
    level = np.minimum(recent, np.maximum(2.0 * middle, 0.0)).mean(axis=0)
    gain = level - np.maximum(usual, 0.0)
    candidate = int(np.argmax(gain))
    # A machine that is suddenly crowded makes every rank erratic: noise within the window counts as well.
    noise = max(
        _noise_of_mean(recent - middle, window),
        _noise_of_mean(recent[:, candidate] - middle[candidate], window),
        _noise_of_mean(before - usual, window) if based else 0.0,
    )
    smallest = UNBASED_EXCESS
    if based:
        smallest = SMALLEST_EXCESS if before.shape[0] >= BASELINE_STEPS else SHORT_BASELINE_EXCESS
    threshold = max(smallest, SIGNIFICANCE * noise)
    if gain[candidate] < threshold or middle[candidate] - max(usual[candidate], 0.0) < threshold / 2.0:
        return None
    if not based and (window < UNBASED_STEPS or int(times.duration_ns[-window:].sum()) < UNBASED_NS):
        return None
    slow = recent[:, candidate] - max(usual[candidate], 0.0) > gain[candidate] / 2.0
    if slow.mean() < PERSISTENT_SHARE:
        return None
    typical_ns = float(median(excess_ns[-window:, candidate][slow]))
    if typical_ns < SMALLEST_EXCESS_NS:
        return None
    if based and _all_rose(times.self_ns[-excess.shape[0] :], candidate, window, typical_ns):
        return None
    onset = _first_slow_step(excess[:, candidate], float(max(usual[candidate], 0.0) + gain[candidate] / 2.0))
    chosen = times.self_ns[-window:][slow]
    others = np.delete(chosen, candidate, axis=1)
    offset = times.steps.size - excess.shape[0]
    return Straggler(
        rank=int(times.ranks[candidate]),
        onset_step=int(times.steps[offset + onset]),
        onset_ns=int(times.begin_ns[offset + onset]),
        excess=float(median(recent[slow, candidate])) - float(max(usual[candidate], 0.0)),
        excess_ns=int(typical_ns),
        usual=float(max(usual[candidate], 0.0)),
        phase=_slow_phase(times, candidate, window, slow),
        z=float(gain[candidate] / noise),
        window=window,
        slow_steps=int(slow.sum()),
        step_ns=int(median(times.duration_ns[-window:])),
        others_self_ns=int(median(others)),
        self_ns=int(median(chosen[:, candidate])),
    )


def _all_rose(self_ns: np.ndarray, candidate: int, window: int, typical_ns: float) -> bool:
    """A crowded machine slows every rank, one of them most: no cause of that rank's own unless it stands far out."""
    others = np.delete(self_ns, candidate, axis=1)
    now, usual = float(median(others[-window:])), float(median(others[:-window]))
    return now > COMMON_RISE * usual and typical_ns < now - usual


def _noise_of_mean(residuals: np.ndarray, window: int) -> float:
    """Standard deviation of a mean over ``window`` steps, robust, pooled over ranks; steps are not independent."""
    step_noise = 1.4826 * float(median(np.abs(residuals)))
    noise = max(step_noise, SMALLEST_NOISE) / window**0.5
    blocks = residuals.shape[0] // window
    if blocks >= FEWEST_BLOCKS:
        means = residuals[-blocks * window :].reshape(blocks, window, -1).mean(axis=1)
        noise = max(noise, 1.4826 * float(median(np.abs(means))))
    return float(noise)


def _first_slow_step(excess: np.ndarray, level: float) -> int:
    """Index at which the slow steps most likely began: where all that follows lies furthest above ``level``."""
    return int(np.argmax(np.cumsum((excess - level)[::-1])[::-1]))


def _slow_phase(times: StepTimes, candidate: int, window: int, slow: np.ndarray) -> int:
    """The phase that holds most of the excess."""
    chosen = times.phase_self_ns[-window:][slow]
    others = median(np.delete(chosen, candidate, axis=1), axis=1)
    return int(np.argmax(median(chosen[:, candidate] - others, axis=0)))
