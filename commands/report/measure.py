"""What each rank worked and waited in each step, by the arithmetic of the job operator. Pure: arrays in, arrays out.

Hosts: waits from arrivals and ends (``wait_attribution`` of the job operator). Devices: how long each stood in its
collectives, by the calls themselves or by the sums that agents of large jobs tell (``device_wait_time``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...processors.job.columns.rows import pick
from ...processors.job.detectors.desync.matching import join_instances
from ...processors.job.detectors.slow.device_wait_time import stood_by_step, stood_in
from ...processors.job.detectors.slow.wait_attribution import (
    GroupShape,
    StepEdges,
    Waits,
    measure_waits,
    place_late_waits,
    release_times,
)
from ...processors.job.detectors.slow.wait_attribution import sum_by_rank_and_step as sums_of
from ...telemetry.tables import NO_GROUP
from ...telemetry.vocabulary import EventFlag

_NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """One step: seconds of each rank, NaN where not known."""

    step: int
    ranks: np.ndarray
    own_s: np.ndarray
    waited_s: np.ndarray


def measure_steps(
    step_rows: np.ndarray, calls: np.ndarray, sums: np.ndarray, shape: GroupShape, on_device: np.ndarray
) -> Iterator[MeasuredSteps]:
    """What each rank worked and waited, in seconds, step by step in their order.

    step_rows: STEPS; calls: COLLECTIVES; sums: DEVICE_STEPS; on_device: by group, and False for an unknown one at its
    end.
    """
    if not step_rows.size:
        return
    step_rows = _last_of_each(step_rows)
    ranks, steps = np.flatnonzero(np.bincount(step_rows["rank"])), np.unique(step_rows["step"])
    place, column = np.searchsorted(steps, step_rows["step"]), np.searchsorted(ranks, step_rows["rank"])
    length_ns = np.full((steps.size, ranks.size), np.nan)
    length_ns[place, column] = step_rows["end_ns"] - step_rows["begin_ns"]
    expected = np.zeros(length_ns.shape, np.int64)
    expected[place, column] = step_rows["collectives"]
    calls = pick(calls, calls["group"] != NO_GROUP)
    by_device = on_device[np.minimum(calls["group"], on_device.size - 1)]
    hosts, devices = pick(calls, ~by_device), pick(calls, by_device)
    waited_ns, seen = _waited(hosts, step_rows, shape, ranks, steps)
    stood_ns = stood_by_step(sums, ranks, steps)
    is_summed = stood_ns >= 0
    if devices.size:
        own = sums_of(devices["rank"].astype(np.int64), devices["step"], devices["phase"], stood_in(devices))
        found, told = _aligned(own, ranks, steps)
        stood_ns = np.where(is_summed, stood_ns, found)
        seen |= told
    seen |= is_summed | (expected == 0)
    if is_summed.any() or devices.size:  # hosts only launch: what their own clocks show is nobody's work
        waited_ns = np.maximum(stood_ns, 0).astype(np.float64)
        length_ns = np.where(np.isnan(length_ns), np.nan, _median_of_known(length_ns)[:, None])
    waited_ns = np.where(seen & ~np.isnan(length_ns), waited_ns, np.nan)
    own_ns = np.maximum(0.0, length_ns - waited_ns)
    for at, step in enumerate(steps.tolist()):
        yield MeasuredSteps(step=step, ranks=ranks, own_s=own_ns[at] / _NS, waited_s=waited_ns[at] / _NS)


def _waited(
    calls: np.ndarray, step_rows: np.ndarray, shape: GroupShape, ranks: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(steps, ranks): how long hosts stood still, and whether anything of it was told."""
    if not calls.size:
        return np.zeros((steps.size, ranks.size)), np.zeros((steps.size, ranks.size), bool)
    p2p = pick(calls, (calls["flags"] & int(EventFlag.P2P)) != 0)
    joined = join_instances(calls)
    called, release = joined.rows, np.zeros(0, np.int64)
    if called.size:
        rows = pick(step_rows, np.lexsort((step_rows["step"], step_rows["rank"])))
        edges = StepEdges(
            rank=rows["rank"].astype(np.int64), step=rows["step"], begin_ns=rows["begin_ns"], end_ns=rows["end_ns"]
        )
        release = release_times(joined, shape, edges)
        late = place_late_waits(joined, release, shape, edges)
        called, release = late if late is not None else (called, release)
    return _aligned(measure_waits(called, release, p2p), ranks, steps)


def _aligned(waits: Waits, ranks: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In the places of these ranks and steps: (ns, told)."""
    out, told = np.zeros((steps.size, ranks.size)), np.zeros((steps.size, ranks.size), bool)
    of_rank, of_step = np.isin(waits.ranks, ranks), np.isin(waits.steps, steps)
    where = np.ix_(np.searchsorted(steps, waits.steps[of_step]), np.searchsorted(ranks, waits.ranks[of_rank]))
    out[where] = waits.blocked_ns[of_rank][:, of_step].sum(axis=2).T
    told[where] = True
    return out, told


def _last_of_each(step_rows: np.ndarray) -> np.ndarray:
    """Sorted by step and rank; of what was told twice, the later."""
    rows = pick(step_rows, np.lexsort((step_rows["rank"], step_rows["step"])))
    again = (rows["step"][1:] == rows["step"][:-1]) & (rows["rank"][1:] == rows["rank"][:-1])
    return pick(rows, np.append(~again, True)) if again.any() else rows


def _median_of_known(values: np.ndarray) -> np.ndarray:
    return np.array([np.median(row[~np.isnan(row)]) for row in values])
