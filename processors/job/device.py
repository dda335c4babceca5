"""Groups whose operations a device does (NCCL and its like): which of enqueued, started and completed tells what.

There a call returns at once, its wait does not block the host, and the host runs steps ahead. So *enqueued* tells whose
host lags, *started* and *completed* tell what the devices stand in, and no duration is ever taken from host time.
*Started* is known only where the backend times its collectives; without it nobody is told apart. Pure.
"""

from __future__ import annotations

import numpy as np

from ...telemetry.vocabulary import EventFlag
from .matching import join_instances
from .median import median
from .rows import pick
from .state import JobState
from .straggler import FEWEST_BASELINE_STEPS, LONGEST_BASELINE, StepTimes, Straggler
from .thresholds import DEFAULT_TIMEOUT_S, FLOOR_NS, SHARE_OF_TIMEOUT, STEPS_OF_PATIENCE, TIMES_LONGEST
from .waits import Waits, sum_by_rank_and_step

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
    return any(job.on_device)


def not_begun(rows: np.ndarray, seq: int) -> np.ndarray:
    """Of GROUP_PROGRESS rows: launched by the host, and the device's stream is known not to have come to it."""
    begun = np.maximum(rows["started"], rows["completed"])
    return np.asarray((rows["started"] >= 0) & (rows["enqueued"] >= seq) & (begun < seq))


def all_begun(job: JobState, group: int, seq: int) -> bool:
    """Whether every member's device is known to be inside this collective."""
    rows, stamps = job.rows_of_group(group)
    return bool(((stamps > 0) & (rows["started"] >= seq)).all())


def any_ended(job: JobState, group: int, seq: int) -> bool:
    """Whether a member's device has left it: then it ends for all, and who is still told to be inside was not seen."""
    rows, stamps = job.rows_of_group(group)
    return bool(((stamps > 0) & (rows["completed"] >= seq)).any())


def note_gaps(job: JobState, before: np.ndarray, rows: np.ndarray, groups: np.ndarray, known: np.ndarray) -> None:
    """Remembers how long an operation has been the oldest open one of its device and did end.

    before, rows: GROUP_PROGRESS of the same members and groups, the last look and this; known: there was a last look.
    """
    if not has_device_groups(job):
        return
    ended = known & (rows["completed"] > before["completed"]) & (before["completed"] > 0) & (before["open"] > 0)
    for place in np.flatnonzero(ended & np.array(job.on_device, bool)[groups]).tolist():
        row = job.progress_row(int(rows["rank"][place]))
        if row is not None and int(row["step"]) >= SETTLED_STEPS:
            group, age_ns = int(groups[place]), int(before["open_age_ns"][place])
            if age_ns > job.device_gaps.get(group, 0):
                job.device_gaps[group] = age_ns
                job.steps_changed = True


def patience_ns(job: JobState, group: int) -> int:
    """How long a wait in a device group has to last at least, by what it has taken before; 0 on the host."""
    return int(TIMES_LONGEST * job.device_gaps.get(group, 0))


def device_threshold_ns(job: JobState, group: int) -> int:
    """For a wait that a device, not a host, keeps up."""
    if job.closed_step < 0:  # the first step sets up and compiles
        return int(SHARE_OF_TIMEOUT * (job.groups[group].timeout_s or DEFAULT_TIMEOUT_S) * 1e9)
    return max(FLOOR_NS, STEPS_OF_PATIENCE * job.median_step_ns(), patience_ns(job, group))


def device_horizon(job: JobState, horizon: int) -> int:
    """The newest step up to ``horizon`` that the devices have finished as well, as far as anybody tells its end."""
    told = [
        index for index in np.flatnonzero(job.on_device) if (job.rows_of_group(int(index))[0]["completed"] > 0).any()
    ]
    if not told:
        return horizon
    rows = join_instances(job.pending.all()).rows
    still = rows["step"][(rows["done_ns"] == 0) & np.isin(rows["group"], told)]
    return min(horizon, int(still.min()) - 1) if still.size else horizon


def launched_at(job: JobState, rank: int, group: int, seq: int) -> tuple[int, int] | None:
    """(step, phase) in which this rank's host launched the call; it may be steps ahead of its device by now."""
    rows = job.pending.all()
    mine = rows[(rows["rank"] == rank) & (rows["group"] == group) & (rows["seq"] == seq)]
    mine = mine[(mine["flags"] & int(EventFlag.P2P)) == 0]
    return (int(mine["step"][-1]), int(mine["phase"][-1])) if mine.size else None


def device_rows(job: JobState, rows: np.ndarray) -> np.ndarray:
    """Those of COLLECTIVES rows (of known groups) that a device does."""
    return pick(rows, np.array(job.on_device, bool)[rows["group"]])


def measure_device_waits(rows: np.ndarray) -> Waits:
    """How long each rank's device stood in collectives. rows: COLLECTIVES of device groups.

    All leave a collective together, so who is late in coming stands in it for a short time and the others for a long
    one. Starts and ends are found by looking, as often too late as the other: sums over steps are right, not each one.
    """
    known = (rows["started_ns"] > 0) & (rows["done_ns"] > 0)
    stood = np.where(known, np.maximum(rows["done_ns"] - rows["started_ns"], 0), 0)
    return sum_by_rank_and_step(rows["rank"].astype(np.int64), rows["step"], rows["phase"], stood)


def launched_before(rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """By step: how long before their ends its calls were launched, in the mean. rows: COLLECTIVES of device groups."""
    ended = rows["done_ns"] > 0
    place = np.searchsorted(steps, rows["step"])
    known = ended & (steps[np.minimum(place, steps.size - 1)] == rows["step"])
    before_ns = (rows["done_ns"] - rows["enqueued_ns"])[known]
    count = np.bincount(place[known], minlength=steps.size)
    return np.asarray(np.bincount(place[known], weights=before_ns, minlength=steps.size) / np.maximum(count, 1))


def has_become_slow(times: StepTimes, found: Straggler) -> bool:
    """Whether enough is known of the steps before, or a device was slow as long as anything is."""
    return found.based and int((times.steps < found.onset_step).sum()) >= FEWEST_BASELINE_STEPS


def shows_in_steps(times: StepTimes, found: Straggler) -> bool:
    """Whether the steps became longer as well, which a slow device's must and what only looks make up does not."""
    if not has_become_slow(times, found):
        return 2 * found.excess_ns > 3 * LOOK_NS
    before = times.duration_ns[times.steps < found.onset_step][-LONGEST_BASELINE:]
    now_ns = float(median(times.duration_ns[-LENGTHENED_STEPS:]))
    return now_ns - float(median(before)) > found.excess_ns / 2.0
