"""Groups whose operations a device does (NCCL and its like): which of enqueued, started and completed tells what.

There a call returns at once, its wait does not block the host, and the host runs steps ahead. So *enqueued* tells whose
host lags, *started* and *completed* tell what the devices stand in, and no duration is ever taken from host time.
*Started* is known only where the backend times its collectives; without it nobody is told apart. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....telemetry.tables import NO_GROUP
from ....telemetry.vocabulary import EventFlag
from ....telemetry.whole_steps import whole_steps_every
from ..columns.median import median
from ..columns.rows import pick
from ..detectors.slow.device_wait_time import stood_in
from ..detectors.slow.step_times import StepTimes
from ..detectors.slow.straggler import FEWEST_BASELINE_STEPS, LONGEST_BASELINE
from ..detectors.slow.straggler_memory import Straggler
from ..detectors.slow.wait_attribution import Waits, sum_by_rank_and_step
from ..state.job_state import JobState
from ..state.open_steps import FURTHEST_BEHIND
from ..state.rank_state import HeldUp
from .wait_thresholds import TIMES_LONGEST

#: Steps after which a gap between two ends on the device counts as usual: the first ones set up and compile.
SETTLED_STEPS = 5
#: Where starts are not known, a long kernel and a collective that does not end look the same: patience, then.
BLURRED_NS = 30_000_000_000
BLURRED_STEPS = 10
#: The recorder's status moves this often. Where steps keep time with it, one rank's stands seem a look longer, or none.
LOOK_NS = 100_000_000
#: The newest steps, in whose length a slow device must show: hosts run ahead of their devices.
LENGTHENED_STEPS = 5


def has_device_groups(job: JobState) -> bool:
    """Whether a device does any of the job's operations, so that host time is not their time."""
    return any(job.groups.on_device)


def tells_starts(job: JobState) -> bool:
    """Whether any member of any group has told that its device began an operation."""
    return bool((job.groups.rows["started"][job.groups.stamps > 0] >= 0).any())


@dataclass(frozen=True, slots=True, eq=False)
class KnownStarts:
    """What the starts in all groups tell of devices, by rank. timed: some are told; occupied: by them the device stands
    in a collective, or has not come to one that was launched."""

    timed: np.ndarray
    occupied: np.ndarray

    @classmethod
    def of(cls, job: JobState) -> KnownStarts:
        """From the newest rows of all groups: which ranks tell when a device begins, and which are busy."""
        rows = pick(job.groups.rows, (job.groups.stamps > 0) & (job.groups.rows["started"] >= 0))
        timed = np.zeros(int(job.groups.rows["rank"].max(initial=0)) + 1, bool)
        occupied = timed.copy()
        timed[rows["rank"]] = True
        occupied[rows["rank"][(rows["completed"] >= 0) & (rows["completed"] < rows["enqueued"])]] = True
        return cls(timed, occupied)


def not_begun(rows: np.ndarray, seq: int | np.ndarray, timed: np.ndarray, some_told: bool | np.ndarray) -> np.ndarray:
    """By GROUP_PROGRESS row: launched by the host, and the device is known not to have come to ``seq``.

    rows, timed: (n,), whether starts of this rank are told. seq, some_told: of all, or by row; whether any start in the
    row's group is told. Looks that miss all short calls have told none of a group yet; but nobody stands in one, while
    its peers are seen to, without being seen.
    """
    known = (rows["started"] >= 0) | (timed & some_told)
    begun = np.maximum(rows["started"], rows["completed"])
    return np.asarray(known & (rows["enqueued"] >= seq) & (begun < seq))


def may_not_have_begun(
    rows: np.ndarray, seq: int | np.ndarray, timed: np.ndarray, some_told: bool | np.ndarray
) -> np.ndarray:
    """By GROUP_PROGRESS row: launched, and nobody knows whether the device has come to ``seq``.

    Only where no start of this group is told, though starts of the rank's other groups are; else False. rows, timed:
    (n,); seq, some_told: as of ``not_begun``.
    """
    return np.asarray(timed & ~np.asarray(some_told) & (rows["enqueued"] >= seq) & (rows["completed"] < seq))


def all_begun(job: JobState, group: int, seq: int) -> bool:
    """Whether every member is known to be inside this collective: its device, or its host where that does them."""
    rows, stamps = job.groups.rows_of(group)
    begun = rows["started"] if job.groups.on_device[group] else rows["enqueued"]
    return bool(((stamps > 0) & (begun >= seq)).all())


def any_ended(job: JobState, group: int, seq: int) -> bool:
    """Whether any member has left the collective: then it ends for all, and who is still told to be inside was not
    seen.
    """
    rows, stamps = job.groups.rows_of(group)
    return bool(((stamps > 0) & (rows["completed"] >= seq)).any())


def note_gaps(job: JobState, places: np.ndarray, rows: np.ndarray, groups: np.ndarray) -> None:
    """Remembers by group the longest time that an operation was the oldest open one of a device and did end.

    rows: GROUP_PROGRESS, before they are put at these places; groups: of each. places, rows, groups: (n,). Ranks in
    their first steps do not count.
    """
    longer = job.groups.open_ages_ns[places] > job.groups.device_gaps_ns()[groups]
    if not longer.any():
        return
    longer &= rows["completed"] > job.groups.rows["completed"][places]
    if not longer.any():
        return
    places, rows, groups = places[longer], pick(rows, longer), groups[longer]
    before = pick(job.groups.rows, places)
    ended = (before["completed"] > 0) & (before["open"] > 0) & (job.groups.stamps[places] > 0)
    for place in np.flatnonzero(ended).tolist():
        row = job.progress.row_of(int(rows["rank"][place]))
        if row is not None and int(row["step"]) >= SETTLED_STEPS:
            group, age_ns = int(groups[place]), int(before["open_age_ns"][place])
            if age_ns > job.groups.device_gaps.get(group, 0):
                job.groups.note_device_gap(group, age_ns)


def patience_ns(job: JobState, group: int) -> int:
    """How old (ns) a wait in a device group must be before it is noticed as a hang.

    TIMES_LONGEST times the longest that its operations have taken so far; 0 where none is known, as of host groups.
    """
    return int(TIMES_LONGEST * job.groups.device_gaps.get(group, 0))


def longest_on_device_ns(job: JobState, group: int) -> int | None:
    """The longest that an operation of this group has kept a device, in ns; None before the first step was closed."""
    return None if job.steps.closed_step < 0 else job.groups.device_gaps.get(group, 0)


def launched_age_ns(job: JobState, rank: int, group: int, now: int) -> int:
    """For how many ns this rank's host has launched what its device has not ended in the group. now: bus time in Unix
    ns.

    Before that, its host was late, and what its host did then, a save perhaps, may take its time.
    """
    place = job.groups.first[group] + int(np.flatnonzero(job.groups.members[group] == rank)[0])
    return int(job.groups.open_ages_ns[place]) + max(0, now - int(job.groups.stamps[place]))


def device_horizon(job: JobState, horizon: int) -> int:
    """The newest step up to ``horizon`` that the devices have finished as well, as far as anybody tells its end.

    Asked of every message while hosts are ahead: as long as calls of the earliest step are open, only what came since
    is looked at.
    """
    told = np.append(job.groups.tells_ends & job.groups.are_on_device(), False)  # at the end, of no known group
    if not told.any():
        return horizon
    horizon = _summed_horizon(job, horizon)
    held, rows = job.open_steps.held_up, job.open_steps.calls.all()
    known = job.open_steps.calls.replaced, int(told.sum())
    if held is None or (held.replaced, held.told) != known or _goes_back(held, rows, told):
        held = job.open_steps.held_up = _find_open(rows, told, job.open_steps.calls.replaced)
    else:
        _note_ends(held, rows)
        if not held.open_seqs and horizon > held.step:
            held = job.open_steps.held_up = _find_open(rows, told, job.open_steps.calls.replaced)
    if held is None or not held.open_seqs:
        return horizon
    return min(horizon, held.step - 1)


def _summed_horizon(job: JobState, horizon: int) -> int:
    """The newest step up to ``horizon`` that is shipped whole, or of which every device that tells sums has told them.

    Open calls of other steps are only shipped when they are overdue. Ranks far behind, and those that have never told
    any, hold nobody up.
    """
    every, summed = whole_steps_every(job.world_size), job.open_steps.summed_step
    if every == 1 or horizon <= 0:
        return horizon
    expected = job.expected_ranks()[: summed.size]
    summed = summed[: expected.size][expected]
    summed = summed[summed > max(-1, horizon - FURTHEST_BEHIND)]
    if not summed.size:
        return 0 if horizon < every else horizon  # step 0 is whole; whoever tells none by the next one does not tell
    reached = int(summed.min())
    return min(horizon, reached + 1 if (reached + 1) % every == 0 else reached)


def _goes_back(held: HeldUp, rows: np.ndarray, told: np.ndarray) -> bool:
    """Whether what came since tells of another open call of this step or one before. rows: all pending."""
    new = rows[held.rows :]
    places = np.flatnonzero((new["done_ns"] == 0) & (new["step"] <= held.step))
    return bool(_may_hold(new, places, told).any())


def _note_ends(held: HeldUp, rows: np.ndarray) -> None:
    """Lets go of the calls whose ends came since, or the ends of later ones. rows: all pending."""
    new = rows[held.rows :]
    held.rows = rows.size
    ended = new[(new["done_ns"] > 0) & ((new["flags"] & int(EventFlag.P2P)) == 0)]
    for key, seq in zip(_rank_and_group(ended).tolist(), ended["seq"].tolist(), strict=True):
        if seq >= held.open_seqs.get(key, seq + 1):
            del held.open_seqs[key]


def _find_open(rows: np.ndarray, told: np.ndarray, replaced: int) -> HeldUp | None:
    """told: by group, and False for none.

    Nothing is joined, which would sort all rows: what is open of the earliest step is found among few of them.
    """
    without_end = np.flatnonzero(rows["done_ns"] == 0)
    without_end = without_end[_may_hold(rows, without_end, told)]
    if not without_end.size:
        return None
    step = rows["step"][without_end]
    for earliest in np.unique(step).tolist():
        lowest = still_open(pick(rows, without_end[step == earliest]), rows, told)
        if lowest.size:
            keys, seqs = _rank_and_group(lowest).tolist(), lowest["seq"].tolist()
            newest: dict[int, int] = {}
            for key, seq in zip(keys, seqs, strict=True):
                newest[key] = max(seq, newest.get(key, seq))
            return HeldUp(step=earliest, open_seqs=newest, rows=rows.size, replaced=replaced, told=int(told.sum()))
    return None


def _may_hold(rows: np.ndarray, places: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Of the rows at these places: which are collectives of groups whose ends are told."""
    is_told = told[np.minimum(rows["group"][places], told.size - 1)]
    return np.asarray(is_told & ((rows["flags"][places] & int(EventFlag.P2P)) == 0))


def still_open(still: np.ndarray, rows: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Those rows of ``still``, COLLECTIVES without an end, that go on. rows: all, with the ends; told: by group, told
    ends.

    Over is also a call of which a later one of the same rank and group has ended: a device does them one after the
    other, and an end that an agent has missed is missed for ever.
    """
    groups = np.zeros(NO_GROUP + 1, bool)
    groups[still["group"]] = True
    theirs = np.flatnonzero(groups[rows["group"]] & (rows["done_ns"] > 0))
    theirs = theirs[_may_hold(rows, theirs, told)]
    keys = _rank_and_group(still)
    known = np.sort(keys)
    ended, seqs = _rank_and_group(rows, theirs), rows["seq"][theirs]
    found = np.minimum(np.searchsorted(known, ended), known.size - 1)
    same = known[found] == ended
    newest = np.full(known.size, -1, np.int64)
    np.maximum.at(newest, found[same], seqs[same])
    first = np.searchsorted(known, keys)  # of equal keys the first one holds the number
    return pick(still, still["seq"] > newest[first])


def _rank_and_group(rows: np.ndarray, places: np.ndarray | slice = slice(None)) -> np.ndarray:
    return np.asarray((rows["group"][places].astype(np.int64) << 32) | rows["rank"][places].astype(np.int64))


def launched_at(job: JobState, rank: int, group: int, seq: int) -> tuple[int, int] | None:
    """(step, phase) in which this rank's host launched the call, maybe steps ahead of its device; None: not known any
    more.
    """
    rows = job.open_steps.calls.all()
    mine = rows[(rows["rank"] == rank) & (rows["group"] == group) & (rows["seq"] == seq)]
    mine = mine[(mine["flags"] & int(EventFlag.P2P)) == 0]
    return (int(mine["step"][-1]), int(mine["phase"][-1])) if mine.size else None


def device_rows(job: JobState, rows: np.ndarray) -> np.ndarray:
    """Those of COLLECTIVES rows (of known groups) that a device does. rows: (n,)."""
    return pick(rows, job.groups.are_on_device()[rows["group"]])


def measure_device_waits(rows: np.ndarray) -> Waits:
    """How long each rank's device stood in collectives. rows: COLLECTIVES of device groups.

    All leave a collective together, so who is late in coming stands in it for a short time and the others for a long
    one. Starts and ends are found by looking, as often too late as the other: sums over steps are right, not each one.
    """
    return sum_by_rank_and_step(rows["rank"].astype(np.int64), rows["step"], rows["phase"], stood_in(rows))


def launched_before(rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """By step, the mean ns from a call's launch to its end; 0 where no end is known.

    rows: (n,) of COLLECTIVES of device groups; steps: (steps,), ascending.
    """
    ended = rows["done_ns"] > 0
    place = np.searchsorted(steps, rows["step"])
    known = ended & (steps[np.minimum(place, steps.size - 1)] == rows["step"])
    before_ns = (rows["done_ns"] - rows["enqueued_ns"])[known]
    count = np.bincount(place[known], minlength=steps.size)
    return np.asarray(np.bincount(place[known], weights=before_ns, minlength=steps.size) / np.maximum(count, 1))


def has_become_slow(times: StepTimes, found: Straggler) -> bool:
    """Whether the rank became slow after enough known steps; False where it was slow as long as anything is known."""
    return found.based and int((times.steps < found.onset_step).sum()) >= FEWEST_BASELINE_STEPS


def shows_in_steps(times: StepTimes, found: Straggler) -> bool:
    """Whether the steps became longer by half of the excess or more, which looks alone cannot make up.

    One that was always slow needs an excess far above what looks err by instead.
    """
    if not has_become_slow(times, found):
        return 2 * found.excess_ns > 3 * LOOK_NS
    before = times.duration_ns[times.steps < found.onset_step][-LONGEST_BASELINE:]
    now_ns = float(median(times.duration_ns[-LENGTHENED_STEPS:]))
    # By what it has become slower: a pipeline's first stage always is, by what is left of the others' waits.
    return now_ns - float(median(before)) > found.excess * found.step_ns / 2.0
