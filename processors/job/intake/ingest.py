"""Gathered flushes into the job's state, table by table: nothing is judged here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....telemetry.vocabulary import EventName, StepFlag
from ..detectors.numeric.bad_numbers import find_non_finite
from ..state.job_state import JobState
from ..state.micro_batch import Arrivals, Gathered, arrivals_by_table, ranks_by_flush
from ..state.open_steps import mean_length_ns
from .bounds import keep_within_bounds
from .call_counts import differ_in_count
from .open_call_checks import note_open_calls
from .progress import take_group_progress, take_progress


@dataclass(slots=True)
class Came:
    """What some flushes have brought. step_length_ns: the mean length of the steps told, 0 none was. progress: those
    with its table."""

    collectives: bool = False
    device_sums: bool = False
    counts_differ: bool = False
    bad_number: bool = False
    step_length_ns: int = 0
    steps_begin: bool = False  # of an optimizer, where inferred ones were known until now
    progress: Sequence[Gathered] = ()


def take_in(job: JobState, flushes: Sequence[Gathered]) -> Came:
    """Puts flushes into the job's state, and says what they have brought. Judges nothing.

    flushes: of the current attempt, in order of arrival; no node tells of the same twice.
    """
    job.open_steps.changed = True
    came = Came()
    for name, table in arrivals_by_table(flushes):
        keep_within_bounds(job, table)
        if name is EventName.BLOCK_COLLECTIVES:
            _take_collectives(job, table)
            came.collectives = True
        elif name is EventName.BLOCK_STEPS:
            _take_steps(job, table, came)
        elif name is EventName.BLOCK_DEVICE_STEPS:
            job.open_steps.on_device.add(table.rows)
            job.open_steps.note_summed(table.rows)
            came.device_sums = True
        elif name is EventName.BLOCK_STEP_GROUPS:
            job.open_steps.group_counts.add(table.rows)
            came.counts_differ = differ_in_count(job, table.rows)
        elif name is EventName.BLOCK_GROUP_PROGRESS:
            take_group_progress(job, table)
        elif name is EventName.BLOCK_PROGRESS:
            take_progress(job, table)
            came.progress = table.flushes
    return came


def _take_collectives(job: JobState, came: Arrivals) -> None:
    rows = came.rows
    job.open_steps.calls.add(rows)
    if not job.steps.are_seen():
        job.progress.note_calls(rows, job.groups)
    if len(job.open_steps.open_calls) or (rows["done_ns"] == 0).any():
        note_open_calls(job, came)
    for flush in came.flushes:
        job.progress.flushed_ns[flush.node] = flush.closed_ns


def _take_steps(job: JobState, table: Arrivals, came: Came) -> None:
    rows = table.rows
    if not rows.size:
        return
    were_inferred = job.inferred
    if not job.take_sort_of_steps(inferred=bool((rows["flags"] & int(StepFlag.INFERRED)).all())):
        return
    came.steps_begin = were_inferred and not job.inferred
    job.open_steps.steps.add(rows)
    job.checkpoints.note_saving(rows)
    if job.steps.note_newest(rows["rank"], rows["step"]):
        for flush, ranks in ranks_by_flush(table):
            for rank in np.unique(ranks).tolist():
                job.set_node(rank, flush.node)
    came.step_length_ns, came.bad_number = mean_length_ns(rows), find_non_finite(rows) is not None
