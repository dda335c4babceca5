"""What closed steps cost each rank itself: their lengths less its waits, into the window that detectors look at."""

from __future__ import annotations

import numpy as np

from ....telemetry.vocabulary import Phase, StepFlag
from ..columns.median import median
from ..columns.rows import pick
from ..detectors.desync.matching import Joined
from ..detectors.slow.checkpoint_straggler import with_more
from ..detectors.slow.device_straggler.launch_bound import with_launches
from ..detectors.slow.device_straggler.occupancy import LEAD, STEPS, with_looks
from ..detectors.slow.device_wait_time import stood_by_step
from ..detectors.slow.lag_coupling import begun_on_device, first_calls, with_starts
from ..detectors.slow.pipeline_stage_time import with_passes
from ..detectors.slow.robust_excess import excess_over_others
from ..detectors.slow.smallest_group_waits import with_inner_waits
from ..detectors.slow.step_times import StepTimes
from ..detectors.slow.straggler import WARM_UP_STEPS
from ..detectors.slow.wait_attribution import StepEdges, measure_waits, place_late_waits, release_times
from ..intake.device_groups import (
    device_rows,
    has_device_groups,
    launched_before,
    measure_device_waits,
    tells_starts,
)
from ..state.device_window import DeviceWindow
from ..state.job_state import JobState
from ..topology.pipeline_stages import busiest_groups, sends

#: Steps whose losses and gradient norms are kept.
KEPT_NUMBERS = 256
#: A step is not plain, and a save not quick, when these phases take more than one part in so many of it.
LEAST_SPECIAL = 50
_SPECIAL = [int(Phase.INIT), int(Phase.COMPILE), int(Phase.CHECKPOINT), int(Phase.RESTORE), int(Phase.EVAL)]


def _edges_of(step_rows: np.ndarray) -> StepEdges:
    rows = pick(step_rows, np.lexsort((step_rows["step"], step_rows["rank"])))
    return StepEdges(
        rank=rows["rank"].astype(np.int64), step=rows["step"], begin_ns=rows["begin_ns"], end_ns=rows["end_ns"]
    )


def measure(job: JobState, step_rows: np.ndarray, ready: Joined, p2p: np.ndarray, sums: np.ndarray) -> None:
    """Adds self times of closed steps to the window of ``job.steps``, for steps that all its ranks reported alike.
    Warm-up steps and those with a save or an evaluation give the longest times of phases, and of saves, only. Rows:
    step_rows (n,) of STEPS, p2p (n,) of COLLECTIVES, sums (n,) of DEVICE_STEPS; ready: these steps' collectives.
    """
    whole = _whole_steps(job, step_rows)
    if whole is None:
        return
    step_rows, ranks, full = whole
    chosen = step_rows.reshape(full.size, ranks.size)
    summed_ns = stood_by_step(sums, ranks, full)
    comparable = _are_comparable(job, ranks, chosen, summed_ns)
    if not comparable.all():
        full, chosen, summed_ns = full[comparable], chosen[comparable], summed_ns[comparable]
        if not full.size:
            return
    length = chosen["end_ns"] - chosen["begin_ns"]
    phases = chosen["phase_ns"].astype(np.int64)
    by_device = device_rows(job, ready.rows) if has_device_groups(job) else ready.rows[:0]
    is_summed = summed_ns[:, 0] >= 0
    on_device = bool(by_device.size or is_summed.any())
    blocked = np.zeros(phases.shape, np.int64)
    if (ready.rows.size or p2p.size) and not on_device:  # pipelines may have nothing but point-to-point calls
        blocked = _blocked_on_host(job, step_rows, ready, p2p, ranks, full)
    own = np.maximum(0, length - blocked.sum(axis=2))
    own_phases = np.maximum(0, phases - blocked)
    duration = median(length, axis=1).astype(np.int64)
    starved = np.minimum(spread_readings(chosen["run_delay_ns"]), own)
    told_phases = own_phases
    if on_device:
        blocked = _blocked_on_device(by_device, summed_ns, ranks, full, phases.shape)
        own = np.maximum(0, duration[:, None] - blocked.sum(axis=2))
        told_phases, starved = _data_alone(own_phases), np.zeros_like(own)
    _note_phases(job, ranks, full, chosen, own_phases)
    special = (own_phases[:, :, _SPECIAL].sum(axis=2) * LEAST_SPECIAL > length).any(axis=1)
    plain = ~special & (full >= WARM_UP_STEPS)
    if not plain.any():
        return
    times = StepTimes(
        ranks=ranks,
        steps=full[plain],
        begin_ns=chosen["begin_ns"].min(axis=1)[plain],
        duration_ns=duration[plain],
        self_ns=own[plain],
        starved_ns=starved[plain],
        phase_self_ns=told_phases[plain],
    )
    waited_ns = blocked.sum(axis=2)[plain]
    exchange = chosen["collective_ns"].min(axis=1)[plain]
    if has_device_groups(job):  # from launch to end is mostly the host's lead
        told = on_device and tells_starts(job)
        exchange = waited_ns.min(axis=1) if told else np.full(exchange.size, -1)
    _add_times(job, times, median(own_phases[plain][:, :, Phase.DATA], axis=1).astype(np.int64), exchange)
    if on_device:
        launched_ns = own_phases[:, :, Phase.FORWARD] + own_phases[:, :, Phase.BACKWARD]
        _look_at_devices(job, times, by_device, sums, waited_ns, launched_ns[plain], ~is_summed[plain])
    elif ready.rows.size and not has_device_groups(job):
        window, calls = job.steps.window, first_calls(ready)
        window.starts = with_starts(window.starts, calls, calls["enqueued_ns"], ranks, times.steps)
    _add_numbers(job, chosen if plain.all() else chosen[plain])


def _whole_steps(job: JobState, step_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows by step and rank of those steps that all ranks have told, these ranks, and the steps; None: of none."""
    if not step_rows.size:
        return None
    step_rows = pick(step_rows, np.lexsort((step_rows["rank"], step_rows["step"])))
    step, rank = step_rows["step"], step_rows["rank"]
    repeated = (step[1:] == step[:-1]) & (rank[1:] == rank[:-1])
    if repeated.any():
        step_rows = pick(step_rows, np.concatenate([~repeated, [True]]))
    ranks = np.flatnonzero(np.bincount(step_rows["rank"]))
    steps, counts = np.unique(step_rows["step"], return_counts=True)
    full = steps[counts == ranks.size]
    if not full.size or (job.steps.times.ranks.size and ranks.size < job.steps.times.ranks.size):
        return None
    if full.size < steps.size:
        step_rows = pick(step_rows, np.isin(step_rows["step"], full))
    return step_rows, ranks, full


def _are_comparable(job: JobState, ranks: np.ndarray, chosen: np.ndarray, summed_ns: np.ndarray) -> np.ndarray:
    """By step, whether all ranks have told the same of it: its calls, or the sums of its waits."""
    comparable = _comparable(job, ranks, (chosen["flags"] & int(StepFlag.PARTLY_SEEN)) != 0)
    return comparable & ((summed_ns >= 0).all(axis=1) | (summed_ns < 0).all(axis=1))


def _blocked_on_host(
    job: JobState, step_rows: np.ndarray, ready: Joined, p2p: np.ndarray, ranks: np.ndarray, full: np.ndarray
) -> np.ndarray:
    """(steps, ranks, phases): ns in which a rank waited for others, where hosts do the operations."""
    called, release = ready.rows, np.zeros(0, np.int64)
    if called.size:
        edges = _edges_of(step_rows)
        release = release_times(ready, job.groups.shape(job.ranks), edges)
        late = place_late_waits(ready, release, job.groups.shape(job.ranks), edges)
        called, release = late if late is not None else (called, release)
    waits = measure_waits(called, release, p2p)
    return _align(waits.ranks, waits.steps, waits.blocked_ns, ranks, full)


def _blocked_on_device(
    by_device: np.ndarray, summed_ns: np.ndarray, ranks: np.ndarray, full: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """(steps, ranks, phases): ns in which a rank's device waited for others. summed_ns: (steps, ranks), -1 not told."""
    blocked = np.zeros(shape, np.int64)
    if by_device.size:
        stood = measure_device_waits(by_device)
        blocked = _align(stood.ranks, stood.steps, stood.blocked_ns, ranks, full)
    is_summed = summed_ns[:, 0] >= 0
    blocked[is_summed] = 0
    blocked[is_summed, :, Phase.OTHER] = summed_ns[is_summed]
    return blocked


def _data_alone(own_phases: np.ndarray) -> np.ndarray:
    """The host only launches: what its own clock shows is nobody's work, and no phase's but waiting for data."""
    told = np.zeros_like(own_phases)
    told[:, :, Phase.DATA] = own_phases[:, :, Phase.DATA]
    return told


def _note_phases(
    job: JobState, ranks: np.ndarray, full: np.ndarray, chosen: np.ndarray, own_phases: np.ndarray
) -> None:
    """The longest of each phase, and how long each rank was at a checkpoint, in steps in which one was written."""
    later = full > 0
    if later.any():
        job.steps.longest_ns = np.maximum(job.steps.longest_ns, own_phases[later].max(axis=(0, 1)))
    if not later.all():
        job.steps.first_ns = np.maximum(job.steps.first_ns, own_phases[~later].max(axis=(0, 1)))
    own_saves = own_phases[:, :, Phase.CHECKPOINT]
    saving = (own_saves > 0).any(axis=1) & (full >= WARM_UP_STEPS)
    if saving.any():
        length = chosen["end_ns"] - chosen["begin_ns"]
        begins, is_quick = chosen["begin_ns"].min(axis=1), (own_saves * LEAST_SPECIAL <= length).all(axis=1)
        job.steps.saves = with_more(
            job.steps.saves, ranks, full[saving], begins[saving], own_saves[saving], is_quick[saving]
        )


def _add_times(job: JobState, times: StepTimes, data: np.ndarray, exchange: np.ndarray) -> None:
    """Into the window. data, exchange: by step, ns of fetching data and of the shortest exchange."""
    worst = np.maximum(excess_over_others(times.self_ns), 0).max(axis=1) if times.ranks.size > 1 else 0
    others = median(times.starved_ns, axis=1)  # a crowded node slows the job, but did not change it
    job.steps.add(times, (times.duration_ns - worst - others).astype(np.int64), data, exchange)


def _look_at_devices(
    job: JobState,
    times: StepTimes,
    by_device: np.ndarray,
    sums: np.ndarray,
    waited_ns: np.ndarray,
    launched_ns: np.ndarray,
    by_calls: np.ndarray,
) -> None:
    """waited_ns, launched_ns: (steps, ranks). by_calls: by step, whether its calls were told and not their sums."""
    window, ranks = job.steps.window, times.ranks
    window.looks = with_looks(
        window.looks,
        steps=times.steps,
        begin_ns=times.begin_ns,
        duration_ns=times.duration_ns,
        lead_ns=_lead_ns(window, by_device, times.steps),
        waited_ns=waited_ns,
    )
    window.launches = with_launches(window.launches, times.steps, launched_ns)
    window.inner = with_inner_waits(window.inner, job.groups.inner_groups(ranks), by_device, sums, ranks, times.steps)
    if sends(job):
        busiest = busiest_groups(job, ranks)
        window.passes = with_passes(window.passes, busiest, by_device, sums, ranks, times.steps)
    whole = pick(by_device, ~np.isin(by_device["step"], sums["step"]))  # of others, the first call may not be there
    window.starts = with_starts(window.starts, whole, begun_on_device(whole), ranks, times.steps[by_calls])


def _lead_ns(window: DeviceWindow, by_device: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """By step: how long before their ends its calls were launched; as before where none of its calls are known."""
    before_ns = launched_before(by_device, steps)
    known = before_ns > 0
    if known.any():
        usual_ns = float(before_ns[known].mean())
    else:
        usual_ns = float(window.looks[-1, LEAD] / window.looks[-1, STEPS]) if len(window.looks) else 0.0
    return np.where(known, before_ns, usual_ns)


def _comparable(job: JobState, ranks: np.ndarray, partly: np.ndarray) -> np.ndarray:
    """Which steps may be measured. partly: (steps, ranks), where a level below events hid who waited in collectives.

    Such a step shows a rank's waits as its own work, so it is never put beside whole ones: a job is measured by them
    only until the first step that all ranks saw whole, which begins a new window.
    """
    whole: np.ndarray = ~np.any(partly, axis=1)
    if job.steps.sighted:
        return whole
    if whole.any():
        job.steps.begin_sight(ranks)
        return whole
    none_whole: np.ndarray = np.all(partly, axis=1)
    return none_whole


def _add_numbers(job: JobState, chosen: np.ndarray) -> None:
    """chosen: (steps, ranks) of STEPS. A skipped update is no step for the numbers: its gradients were thrown away."""
    flags = chosen["flags"]
    updated = ((flags & int(StepFlag.SKIPPED)) == 0).all(axis=1)
    if not updated.all():
        chosen = chosen[updated]
        flags = chosen["flags"]
    if not ((flags & int(StepFlag.HAS_GRAD_NORM)) != 0).all() or job.steps.norms.shape[1] != chosen.shape[1]:
        return
    job.steps.norms = np.concatenate([job.steps.norms, chosen["grad_norm"]])[-KEPT_NUMBERS:]
    losses = np.where((flags & int(StepFlag.HAS_LOSS)) != 0, chosen["loss"], np.nan)
    job.steps.losses = np.concatenate([job.steps.losses, losses])[-KEPT_NUMBERS:]
    ends = np.stack([chosen["step"][:, 0], chosen["end_ns"].max(axis=1)], axis=1)
    job.steps.norm_steps = np.concatenate([job.steps.norm_steps, ends])[-KEPT_NUMBERS:]


def spread_readings(delay_ns: np.ndarray) -> np.ndarray:
    """Run delays with each reading shared evenly with the unread steps right before it; unread steps at the end get 0.

    delay_ns: (steps, ranks), -1 where a step was too short for a reading.
    """
    unread = delay_ns < 0
    if not unread.any():
        return delay_ns
    count = delay_ns.shape[0]
    place = np.where(unread, count, np.arange(count)[:, None])
    reading = np.minimum.accumulate(place[::-1])[::-1]  # where the reading is that covers this step
    known = np.concatenate([np.where(unread, 0, delay_ns), np.zeros((1, delay_ns.shape[1]), np.int64)])
    columns = np.arange(delay_ns.shape[1])
    covered = np.zeros_like(known)
    np.add.at(covered, (reading, columns), 1)
    return np.take_along_axis(known // np.maximum(covered, 1), reading, axis=0)


def _align(
    from_ranks: np.ndarray, from_steps: np.ndarray, values: np.ndarray, ranks: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Picks (step, rank, phase) out of (rank, step, phase); what is absent is zero."""
    out = np.zeros((steps.size, ranks.size, values.shape[2]), np.int64)
    row, row_known = _places_in(from_ranks, ranks)
    column, column_known = _places_in(from_steps, steps)
    picked = values[np.ix_(row[row_known], column[column_known])].transpose(1, 0, 2)
    out[np.ix_(column_known, row_known)] = picked
    return out


def _places_in(known: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each value stands among those that are known (ascending), and whether it does."""
    if not known.size:
        return np.zeros(values.size, np.intp), np.zeros(values.size, bool)
    place = np.searchsorted(known, values)
    return place, (place < known.size) & (known[np.minimum(place, known.size - 1)] == values)
