"""Finds the rank whose own work takes longer than the others': self time, not waiting, step after step.

In a synchronous job all ranks have the same step time and the slow one is the one that never waits. So each rank's
self time (step time minus its waits) is compared with that of the others in the same step, and the difference with
what was usual for this rank. Short windows find large differences soon, long ones small differences surely.
Method: a window-limited generalised likelihood ratio (Willsky and Jones 1976; Lai 1995), with all steps since a change
in one of the windows, and a threshold that follows from how rarely a sound job may be told.
Fetching data is also judged by itself (``_find_in_data``): it is a small part of most steps, and hardly ever waited in.
Time for which a rank's main thread had no CPU is taken out first: on a crowded node it is most of the noise. What only
shows with it, or only without it, is no slow rank: a thread may wait while its device works.
"""

from __future__ import annotations

from dataclasses import replace
from math import log, pi

import numpy as np

from .....telemetry.vocabulary import Phase
from ...columns.median import median
from .robust_excess import (
    MANY_RANKS,
    PAUSE_CHANCE,
    SMALLEST_NOISE,
    View,
    excess_over_others,
    may_be_pauses,
    view,
)
from .step_times import StepTimes
from .straggler_memory import Straggler

WARM_UP_STEPS = 3
#: The excess has to hold over this many plain steps; longer windows find smaller ones.
WINDOWS = (*range(6, 17), *range(18, 25, 2), 28, 32, 36, 40, 48, 56, 64)
SHORTEST_WINDOW_NS = 300_000_000
#: Windows longer than ``RECENT_STEPS`` need so many times their length: what was usual has to be known as well.
LONG_PAST = 2
#: What a job's steps are like now; and of so many the phases are known.
RECENT_STEPS = 32
#: Where steps are long, so few tell, if all of them stand out so far: who loses a tenth of each is named within five.
SUDDEN_WINDOW, SUDDEN_WINDOW_NS, SUDDEN_Z, SUDDEN_FACTOR = 3, 3_000_000_000, 8.0, 1.2
FEWEST_BASELINE_STEPS = 6
LONGEST_BASELINE = 128
#: Ranks with this share of the slowest one's excess are slow together with it.
COMPANY_SHARE = 0.5
#: In units of the step time.
SMALLEST_EXCESS = 0.05
SMALLEST_EXCESS_NS = 4_000_000
#: Without a baseline a difference may be how this job always runs, so it has to be large and to last.
UNBASED_STEPS = 20
UNBASED_EXCESS = 0.15
UNBASED_NS = 2_000_000_000
#: A sound job has nobody named by chance in so long, whatever its ranks and the length of its steps; of few long steps
#: so much is asked all the same. What windows of all lengths find is more than one finds by the integral of x times
#: exp(-1.166 x), x from the threshold over the root of the longest window to that of the shortest.
FALSE_ALARM_NS, LEAST_SIGNIFICANCE, LOOKS = 500 * 3_600_000_000_000, 5.0, 0.45
#: Nobody who stands out by less, in standard deviations, is slow together with who stands out by more.
LEAST_Z = 2.5
#: And nobody is worth a look who stands out by less than such a share of what will be asked: of two ranks, who share
#: the noise that a slow one makes; of some; and of many, of whom one always stands out so far.
LOOK_SHARE_OF_TWO, LOOK_SHARE, LOOK_SHARE_OF_MANY = 0.42, 0.52, 0.65
#: A rank is judged against its own past while the others' rise is within their noise, and where most of its own
#: rise shows against them as well.
COMMON_Z = 2.0
OWN_SHARE = 0.7
OWN_SUPPORT_Z = 2.5
#: Below this against the others neither view names anyone.
LEAST_GAIN = OWN_SHARE * SMALLEST_EXCESS
#: Share of its excess by which a rank's own work has to have grown, where its noise lets that be seen.
OWN_RISE = 0.3
#: A rank that is slow only because it gets no CPU is told when it has lasted, and by a wide margin.
#: Who is kept from its CPU also loses time that nobody counts (cold caches): up to this share of what is counted.
UNCOUNTED_SHARE = 0.5
STARVED_WINDOW_NS = 10_000_000_000
STARVED_Z = 8.0
#: What shows in fetching data alone has to stand out more, and by this share in the whole step as well.
DATA_SIGNIFICANCE = 8.0
DATA_SUPPORT = 0.5
#: Where all ranks wait for a CPU for this share of their steps, what nobody counts strikes now one, now another of
#: them for a second or two: in shorter windows only a wide margin names anyone.
CROWDED_SHARE = 0.05
CROWDED_Z = 7.2
CROWDED_WINDOW_NS = 2_000_000_000
#: There, waits for a CPU that a rank's own waiting hid would make another one slow by what is taken out of the rest:
#: so much of the excess must show with them and without.
CROWDED_SUPPORT = 2.0 / 3.0
#: The others' own work in the window, compared with before, from which on the whole machine is to blame.
COMMON_RISE = 1.5
PERSISTENT_SHARE = 0.6
_LOOKED_AT = np.array((SUDDEN_WINDOW, *WINDOWS))


def find_straggler(times: StepTimes, *, on_device: bool = False) -> Straggler | None:
    """The rank that has become, or always was, slower than the others by more than the job's own noise; None: nobody.

    on_device: devices do the work, hosts only launch it and fetch data.
    """
    if times.steps.size < min(WINDOWS) or times.ranks.size < 2 or not _anyone_stands_out(times):
        return None
    return _find_in_data(times, on_device) or _find_in_steps(times)


def _significance(times: StepTimes) -> float:
    """In standard deviations: what chance makes of one of the ranks in one of the windows as rarely as false alarms may
    be, for a look after each step (Siegmund and Venkatraman 1995)."""
    step_ns = float(median(times.duration_ns[-RECENT_STEPS:]))
    rate = max(step_ns / FALSE_ALARM_NS / times.ranks.size, 1e-300)
    asked = LEAST_SIGNIFICANCE
    for _ in range(4):  # until it no longer changes
        asked = max(LEAST_SIGNIFICANCE, (2.0 * log(asked * LOOKS / (2.0 * pi) ** 0.5 / rate)) ** 0.5)
    return asked


def _find_in_steps(times: StepTimes) -> Straggler | None:
    if not times.starved_ns.any():
        return _find_in(times, _significance(times))
    crowded = _is_crowded(times)
    fed = replace(times, self_ns=times.self_ns - times.starved_ns)
    for seen, other in ((fed, times), (times, fed)):
        found = _find_in(seen, _significance(times), crowded=crowded)
        if found is None:
            continue
        found = replace(found, starved_ns=_starved_more_ns(times, found))
        if seen is fed and found.excess_ns < UNCOUNTED_SHARE * found.starved_ns:
            continue
        if _gain_of(other, found) > (CROWDED_SUPPORT if crowded else 0.5) * found.excess:
            return found
    lasting = _find_in(times, STARVED_Z, shortest=RECENT_STEPS)
    if lasting is None or int(times.duration_ns[-lasting.window :].sum()) < STARVED_WINDOW_NS:
        return None
    return replace(lasting, starved_ns=_starved_more_ns(times, lasting))


def _find_in_data(times: StepTimes, on_device: bool) -> Straggler | None:
    """Who has become slower in fetching data, without the noise of the rest of its steps, which must not deny it.

    Data is a small part of most steps, and the one in which a rank rarely waits for others. Of a device only some looks
    tell how long it stood, and in a pipeline who works for a late one stands out with it: there its data alone counts.
    """
    kept = times.phase_self_ns.shape[0]
    if not kept:
        return None
    data = StepTimes(
        ranks=times.ranks,
        steps=times.steps[-kept:],
        begin_ns=times.begin_ns[-kept:],
        duration_ns=times.duration_ns[-kept:],
        self_ns=times.phase_self_ns[:, :, Phase.DATA],
        starved_ns=times.starved_ns[-kept:],
        phase_self_ns=times.phase_self_ns,
    )
    found = _find_in(data, DATA_SIGNIFICANCE)
    if found is None or not found.based:
        return None
    fed = replace(times, self_ns=times.self_ns - times.starved_ns)
    if not on_device and min(_gain_of(times, found), _gain_of(fed, found)) < DATA_SUPPORT * found.excess:
        return None
    return _of_whole_steps(times, found)


def _of_whole_steps(times: StepTimes, found: Straggler) -> Straggler:
    """The same straggler, with what is told and remembered of whole steps measured in whole steps."""
    column, window = int(np.flatnonzero(times.ranks == found.rank)[0]), found.window
    others = np.delete(times.self_ns, column, axis=1)
    waited = times.duration_ns[:, None] - others
    excess = excess_over_others(times.self_ns)[:, column] / np.maximum(times.duration_ns, 1)
    before = excess[:-window]
    usual = max(0.0, float(median(before)))
    return replace(
        found,
        phase=int(Phase.DATA),
        usual=usual,
        starved_ns=_starved_more_ns(times, found),
        others_self_ns=int(median(others[-window:])),
        self_ns=int(median(times.self_ns[-window:, column])),
        waited_ns=max(0, int(median(waited[-window:]))),
        waited_before_ns=max(0, int(median(waited[:-window]))),
        noise=max(SMALLEST_NOISE, 1.4826 * float(median(np.abs(before - median(before))))),
    )


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


def _is_crowded(times: StepTimes) -> bool:
    """Whether the usual rank has spent much of its last steps ready to run, but without a CPU."""
    recent = slice(-RECENT_STEPS, None)
    by_rank = times.starved_ns[recent].sum(axis=0)
    return float(median(by_rank)) > CROWDED_SHARE * float(times.duration_ns[recent].sum())


def _find_in(times: StepTimes, significance: float, *, crowded: bool = False, shortest: int = 0) -> Straggler | None:
    """shortest: of the windows that are looked at, in steps."""
    windows = [window for window in _worth_a_look(times) if window >= shortest]
    if not windows:
        return None
    keep = LONGEST_BASELINE + max(WINDOWS)
    excess_ns = excess_over_others(times.self_ns[-keep:])
    duration_ns = np.maximum(times.duration_ns[-keep:], 1)
    excess = excess_ns / duration_ns[:, None]
    for window in windows:
        window_ns = int(duration_ns[-window:].sum())
        if window > RECENT_STEPS and excess.shape[0] < LONG_PAST * window:
            continue
        if window_ns < (SUDDEN_WINDOW_NS if window == SUDDEN_WINDOW else SHORTEST_WINDOW_NS):
            continue
        asked = max(CROWDED_Z, significance) if crowded and window_ns < CROWDED_WINDOW_NS else significance
        if window == SUDDEN_WINDOW:
            asked = max(SUDDEN_Z, SUDDEN_FACTOR * asked)
        found = _look_through_window(times, excess, excess_ns, window, asked)
        if found is not None:
            return found
    return None


def _worth_a_look(times: StepTimes) -> list[int]:
    """The windows in which somebody's mean excess would do, whatever was usual, and stands out from the noise of all
    ranks by a good part of what is asked."""
    recent = slice(-max(WINDOWS), None)
    excess = excess_over_others(times.self_ns[recent]) / np.maximum(times.duration_ns[recent], 1)[:, None]
    highest = np.cumsum(excess[::-1], axis=0).max(axis=1)  # of the sums over the last 1, 2, ... steps
    enough = 0.99 * LEAST_GAIN  # rounding must not decide
    windows = _LOOKED_AT[highest.size >= _LOOKED_AT]
    least = np.maximum(enough * windows, _least_z(times) * _pooled_noise(excess) * windows**0.5)
    return [int(window) for window in windows[highest[windows - 1] >= least]]


def _least_z(times: StepTimes) -> float:
    """By how many standard deviations somebody has to stand out for a closer look."""
    if times.ranks.size > MANY_RANKS:
        return LOOK_SHARE_OF_MANY * _significance(times)
    return (LOOK_SHARE if times.ranks.size > 2 else LOOK_SHARE_OF_TWO) * _significance(times)


def _pooled_noise(excess: np.ndarray) -> float:
    return 1.4826 * float(median(np.abs(excess - median(excess, axis=0))))


def _anyone_stands_out(times: StepTimes) -> bool:
    """A cheap look at the last steps: without half of what is asked for, in any window, there is nothing to find."""
    recent = excess_over_others(times.self_ns[-max(WINDOWS) :]) / times.duration_ns[-max(WINDOWS) :, None]
    noise = _least_z(times) * _pooled_noise(recent)
    highest = np.cumsum(recent[::-1], axis=0).max(axis=1)  # of the sums over the last 1, 2, ... steps
    windows = _LOOKED_AT[highest.size >= _LOOKED_AT]
    return bool((highest[windows - 1] > np.maximum(SMALLEST_EXCESS / 2.0 * windows, noise * windows**0.5)).any())


def _look_through_window(
    times: StepTimes, excess: np.ndarray, excess_ns: np.ndarray, window: int, significance: float
) -> Straggler | None:
    past = excess.shape[0] - window
    based = past >= FEWEST_BASELINE_STEPS
    others = view(excess, window, based=based, signed=False, least_gain=LEAST_GAIN)
    if others is None or not ((others.gain > LEAST_GAIN) & (others.gain > OWN_SUPPORT_Z * others.noise)).any():
        return None  # neither view would name anyone
    gain, z = others.gain, others.gain / others.noise
    if based:
        own, own_z = _against_own_past(times, others, window, past)
        better = own_z > z
        # Who looks slow because the others became faster is as fast as before.
        as_before = (own.gain < OWN_RISE * gain) & (own.noise < OWN_RISE * gain)
        gain, z = np.where(better, own.gain, gain), np.where(better, own_z, np.where(as_before, 0.0, z))
    candidate = int(np.argmax(z))
    level, usual = float(gain[candidate]), float(others.usual[candidate])
    if level < (SMALLEST_EXCESS if based else UNBASED_EXCESS) or z[candidate] < significance:
        return None
    if others.middle[candidate] < level / 2.0:
        return None
    if not based and (window < UNBASED_STEPS or int(times.duration_ns[-window:].sum()) < UNBASED_NS):
        return None
    slow = others.recent[:, candidate] - usual > level / 2.0
    if slow.mean() < (1.0 if window == SUDDEN_WINDOW else PERSISTENT_SHARE) and _shows_in_single_steps(
        others, candidate
    ):
        return None
    if based and _may_be_pauses(times, excess, level / 2.0, int(slow.sum()), window):
        return None
    typical_ns = float(median(excess_ns[-window:, candidate][slow]))
    if typical_ns < SMALLEST_EXCESS_NS:
        return None
    if based and _all_rose(times.self_ns[-excess.shape[0] :], candidate, window, typical_ns):
        return None
    waited = np.delete(times.duration_ns[:, None] - times.self_ns, candidate, axis=1)[-excess.shape[0] :]
    onset = _first_slow_step(excess[:, candidate], usual + level / 2.0)
    chosen = times.self_ns[-window:][slow]
    offset = times.steps.size - excess.shape[0]
    return Straggler(
        rank=int(times.ranks[candidate]),
        onset_step=int(times.steps[offset + onset]),
        onset_ns=int(times.begin_ns[offset + onset]),
        excess=float(median(others.recent[slow, candidate])) - usual,
        excess_ns=int(typical_ns),
        usual=usual,
        phase=_slow_phase(times, candidate, window, slow),
        z=float(z[candidate]),
        window=window,
        slow_steps=int(slow.sum()),
        step_ns=int(median(times.duration_ns[-window:])),
        others_self_ns=int(median(np.delete(chosen, candidate, axis=1))),
        self_ns=int(median(chosen[:, candidate])),
        waited_ns=max(0, int(median(waited[-window:][slow]))),
        waited_before_ns=max(0, int(median(waited[:-window]))) if past else 0,
        company=tuple(int(rank) for rank in times.ranks[_in_company(others, candidate, level)]),
        based=based,
        noise=float(others.noise[candidate]) * window**0.5,
    )


def _shows_in_single_steps(others: View, candidate: int) -> bool:
    """Whether noise would not hide that a step is slow."""
    step_noise = float(others.noise[candidate]) * others.recent.shape[0] ** 0.5
    return bool(others.gain[candidate] > 2.0 * step_noise)


def _against_own_past(times: StepTimes, others: View, window: int, past: int) -> tuple[View, np.ndarray]:
    """By rank: its own past, in usual step times, and how sure a rise is; zero where that view does not hold."""
    keep = window + past
    usual_ns = max(1.0, float(median(times.duration_ns[-keep:-window])))
    own = view(times.self_ns[-keep:] / usual_ns, window, based=True, signed=True)
    assert own is not None
    ranks = own.gain.size
    if ranks > MANY_RANKS:
        common = np.full(ranks, float(median(own.middle)))
    else:
        common = np.array([float(median(np.delete(own.middle, rank))) for rank in range(ranks)])
    common_noise = own.noise * 1.25 / max(1, ranks - 1) ** 0.5
    alone = (common < COMMON_Z * common_noise) & (others.gain > OWN_SHARE * own.gain)
    alone &= others.gain > OWN_SUPPORT_Z * others.noise
    return own, np.where(alone, own.gain / own.noise, 0.0)


def _in_company(others: View, candidate: int, level: float) -> np.ndarray:
    """By rank: whether it is slower as well: a node's ranks, or those that play one role, slow down together."""
    also = (others.middle > COMPANY_SHARE * level) & (others.gain > LEAST_Z * others.noise)
    also[candidate] = False
    return also


def _may_be_pauses(times: StepTimes, excess: np.ndarray, threshold: float, slow: int, window: int) -> bool:
    """In either view: others' pauses hide one's own against them, steps of varying length against the past.

    So few steps as the fewest three pauses in a row may fill, on one of many ranks.
    """
    usual_ns = max(1.0, float(median(times.duration_ns[-excess.shape[0] : -window])))
    own = times.self_ns[-excess.shape[0] : -window] / usual_ns
    chance = PAUSE_CHANCE / times.ranks.size if window == SUDDEN_WINDOW else PAUSE_CHANCE
    return any(may_be_pauses(before, threshold, slow, window, chance) for before in (excess[:-window], own))


def _all_rose(self_ns: np.ndarray, candidate: int, window: int, typical_ns: float) -> bool:
    """A crowded machine slows every rank, one of them most: no cause of that rank's own unless it stands far out."""
    others = np.delete(self_ns, candidate, axis=1)
    now, usual = float(median(others[-window:])), float(median(others[:-window]))
    return now > COMMON_RISE * usual and typical_ns < now - usual


def _first_slow_step(excess: np.ndarray, level: float) -> int:
    """Index at which the slow steps most likely began: where all that follows lies furthest above ``level``."""
    return int(np.argmax(np.cumsum((excess - level)[::-1])[::-1]))


def _slow_phase(times: StepTimes, candidate: int, window: int, slow: np.ndarray) -> int:
    """The phase that holds most of the excess; -1 where none is known, as of what a device does."""
    known = min(window, times.phase_self_ns.shape[0])  # fewer where the steps of a fault were taken out
    chosen = times.phase_self_ns[times.phase_self_ns.shape[0] - known :][slow[window - known :]]
    if not chosen.size:
        return -1
    others = median(np.delete(chosen, candidate, axis=1), axis=1)
    excess = median(chosen[:, candidate] - others, axis=0)
    return int(np.argmax(excess)) if (excess > 0).any() else -1
