"""Closes steps: when every rank's step row is in, the step's collectives are joined once, measured and let go.

What remains of a closed step: a few numbers per rank (self time, waits, by phase), the pattern of signatures, the
longest time each phase has taken, and how many collectives each group has per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....telemetry.tables import COLLECTIVES
from ....telemetry.vocabulary import EventFlag
from ....telemetry.whole_steps import whole_steps_every
from ..columns.rows import concatenate, pick
from ..detectors.desync.matching import Joined, Mismatch, find_mismatch, join_instances
from ..detectors.slow.wait_attribution import waited_late
from ..intake.call_counts import ShortStep, check_counts
from ..state.job_state import JobState
from ..state.open_steps import FURTHEST_BEHIND
from .self_times import measure

#: Steps for which a collective is kept for those who have still to wait for it.
STEPS_HELD = 4
#: Jobs without steps, or with very long ones: at most this many rows, and so many for each rank, wait for a step to
#: close. At the reference load a rank makes 25 a second.
MOST_PENDING_ROWS, MOST_PENDING_ROWS_PER_RANK = 65_536, 96
#: Steps of which the pattern of signatures is kept, of those that are shipped whole.
PATTERN_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Closed:
    """What closing showed. rows: STEPS of the closed steps; mismatch, short: the first desync, if any."""

    rows: np.ndarray
    mismatch: Mismatch | None
    short: ShortStep | None


def is_early(job: JobState) -> bool:
    """Whether a rank that has not ended the next step holds up its closing for certain. Cheaper than ``horizon_of``."""
    if not job.steps.newest_step.size:
        return True
    furthest = int(job.steps.newest_step.max()) - FURTHEST_BEHIND
    if furthest > job.steps.closed_step:
        return False
    expected = job.expected_ranks()
    held_by = job.open_steps.held_by
    if (
        held_by < expected.size
        and expected[held_by]
        and furthest < job.steps.newest_step[held_by] <= job.steps.closed_step
    ):
        return True  # as at the last look, which is asked of every message
    behind = (
        (job.steps.newest_step <= job.steps.closed_step)
        & (job.steps.newest_step > furthest)
        & expected[: job.steps.newest_step.size]
    )
    job.open_steps.held_by = int(behind.argmax())
    return bool(behind[job.open_steps.held_by])


def horizon_of(job: JobState) -> int:
    """The newest step whose rows are in from every rank that is expected to send one; -1 none."""
    if not job.steps.newest_step.size:
        return -1
    newest = int(job.steps.newest_step.max())
    if job.world_size > len(job.ranks) and not job.nodes.are_missing():
        return max(-1, newest - FURTHEST_BEHIND)  # somebody is still to come
    expected = job.expected_ranks()
    steps = np.full(expected.size, -1, np.int64)
    steps[: job.steps.newest_step.size] = job.steps.newest_step
    of_expected = steps[expected]
    horizon = int(of_expected.min()) if of_expected.size else newest
    if horizon > newest - FURTHEST_BEHIND:
        return horizon
    within = of_expected[of_expected > newest - FURTHEST_BEHIND]
    return int(within.min()) if within.size else newest - FURTHEST_BEHIND


def close_steps(job: JobState, horizon: int) -> Closed:
    """Takes rows of all steps up to ``horizon`` out of ``job.open_steps``, and measures them into ``job.steps``.

    Calls that are not over stay open.
    """
    step_rows = job.open_steps.steps.all()
    done = step_rows["step"] <= horizon
    closing = pick(step_rows, done)
    job.open_steps.steps.keep(pick(step_rows, ~done))
    pending = job.open_steps.calls.all()
    instances = join_instances(pending)
    blind = job.groups.blind(job.blind_ranks)
    mismatch = find_mismatch(instances, blind)
    ready, left = _split_at(instances, horizon)
    ready, held = _hold_unwaited(job, ready, closing, horizon)
    p2p_rows = _p2p_of(pending)
    p2p_done = p2p_rows["step"] <= horizon
    kept = [part for part in (held.rows, left, pick(p2p_rows, ~p2p_done)) if part.size]
    job.open_steps.calls.keep(concatenate(kept, COLLECTIVES) if len(kept) > 1 else kept[0] if kept else left)
    short = check_counts(job, horizon, blind)
    _remember_pattern(job, ready, horizon, mismatch)
    sums = job.open_steps.on_device.all()
    summed = sums["step"] <= horizon
    measure(job, closing, _both(ready, held), pick(p2p_rows, p2p_done), pick(sums, summed))
    job.open_steps.on_device.keep(pick(sums, ~summed))
    job.steps.closed_step = max(job.steps.closed_step, horizon)
    job.steps.note_pace(instances.rows.size)
    job.unsaved.steps = job.open_steps.rewrite = True
    return Closed(rows=closing, mismatch=mismatch, short=short)


def most_pending_rows(job: JobState) -> int:
    """How many rows of calls may be pending; more are pruned.

    What is dropped of a step before it closes is missing where its waits are measured.
    """
    return max(MOST_PENDING_ROWS, MOST_PENDING_ROWS_PER_RANK * len(job.ranks))


def prune_pending(job: JobState) -> Mismatch | None:
    """For jobs without steps: drops every instance that all members have finished, and all but the newest of too many.

    The first mismatch among what was pending; None: there is none.
    """
    instances = join_instances(job.open_steps.calls.all())
    mismatch = find_mismatch(instances, job.groups.blind(job.blind_ranks))
    rows = instances.rows
    if rows.size:
        open_rows = np.add.reduceat((rows["done_ns"] == 0).astype(np.int64), instances.first)
        complete = instances.count == job.groups.shape(job.ranks).sizes[rows["group"][instances.first]]
        keep = ~(complete & (open_rows == 0))[instances.instance]
        rows = pick(rows, keep)
    job.open_steps.calls.keep(rows[-most_pending_rows(job) // 2 :])
    job.open_steps.rewrite = True
    return mismatch


def _p2p_of(rows: np.ndarray) -> np.ndarray:
    if not int(np.bitwise_or.reduce(rows["flags"])) & int(EventFlag.P2P):
        return rows[:0]
    return pick(rows, (rows["flags"] & int(EventFlag.P2P)) != 0)


def _split_at(instances: Joined, horizon: int) -> tuple[Joined, np.ndarray]:
    """The instances of closed steps, and the rows of the others.

    An instance belongs to the newest step among its rows: labels differ once a rank is out of step.
    """
    if not instances.first.size:
        return instances, instances.rows
    ready = np.maximum.reduceat(instances.rows["step"], instances.first) <= horizon
    if ready.all():
        return instances, instances.rows[:0]
    return _part(instances, ready), pick(instances.rows, ~ready[instances.instance])


def _hold_unwaited(job: JobState, ready: Joined, closing: np.ndarray, horizon: int) -> tuple[Joined, Joined]:
    """``ready`` without, and only, what all have called and some wait for in a later step, as far as that is known.

    Their wait is measured when that step closes, and needs to know when the others came.
    """
    rows = ready.rows
    nothing = Joined(rows=rows[:0], first=ready.first[:0], count=ready.count[:0], instance=ready.instance[:0])
    if not rows.size or not closing.size:
        return ready, nothing
    later, late = rows["done_ns"] == 0, waited_late(rows)
    if late.any():
        newest_end = np.zeros(int(max(rows["rank"].max(), closing["rank"].max())) + 1, np.int64)
        np.maximum.at(newest_end, closing["rank"], closing["end_ns"])
        later |= late & (rows["started_ns"] > newest_end[rows["rank"]])
    if not later.any():
        return ready, nothing
    group = rows["group"][ready.first]
    holding = np.logical_or.reduceat(later, ready.first) & (ready.count == job.groups.shape(job.ranks).sizes[group])
    holding &= np.maximum.reduceat(rows["step"], ready.first) > horizon - STEPS_HELD
    holding &= ~np.array([*job.groups.on_device, True], bool)[np.minimum(group, len(job.groups.on_device))]
    return _part(ready, ~holding), _part(ready, holding)


def _part(instances: Joined, chosen: np.ndarray) -> Joined:
    """Some of the instances. chosen: by instance."""
    count = instances.count[chosen]
    return Joined(
        rows=pick(instances.rows, chosen[instances.instance]),
        first=np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64) if count.size else count,
        count=count,
        instance=np.repeat(np.arange(count.size), count),
    )


def _both(one: Joined, other: Joined) -> Joined:
    """The instances of both, which have none in common."""
    if not other.count.size:
        return one
    count = np.concatenate([one.count, other.count])
    return Joined(
        rows=concatenate([one.rows, other.rows], COLLECTIVES),
        first=np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64),
        count=count,
        instance=np.repeat(np.arange(count.size), count),
    )


def _remember_pattern(job: JobState, ready: Joined, horizon: int, mismatch: Mismatch | None) -> None:
    """Of the steps before a mismatch only: where both come at once, they tell who left the pattern."""
    fresh = pick(ready.rows, ready.first)
    if mismatch is not None:
        first = min(member.step for member in mismatch.members)
        fresh, horizon = pick(fresh, fresh["step"] < first), min(horizon, first - 1)
    every = whole_steps_every(job.world_size)
    oldest = horizon - PATTERN_STEPS * every
    fresh = pick(fresh, (fresh["step"] > oldest) & (fresh["step"] % every == 0))
    kept = pick(job.steps.recent, job.steps.recent["step"] > oldest)
    job.steps.recent = concatenate([kept, fresh], COLLECTIVES) if kept.size else fresh
