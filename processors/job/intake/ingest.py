"""Gathered blocks into the job's state, table by table: nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ....telemetry.tables import STEPS
from ....telemetry.vocabulary import EventName, StepFlag
from ..columns.rows import concatenate
from ..detectors.numeric.bad_numbers import find_non_finite
from ..state.job_state import JobState
from ..state.micro_batch import Gathered
from ..state.open_rows import Arrived, OpenRows
from ..state.open_steps import mean_length_ns
from .call_counts import differ_in_count
from .open_call_checks import note_open_calls
from .progress import take_group_progress, take_progress


@dataclass(slots=True)
class Came:
    """What some blocks have brought. step_length_ns: the mean length of the steps told, 0 none was. progress: those of
    its table."""

    collectives: bool = False
    device_sums: bool = False
    counts_differ: bool = False
    bad_number: bool = False
    step_length_ns: int = 0
    steps_begin: bool = False  # of an optimizer, where inferred ones were known until now
    progress: Sequence[Gathered] = ()


def take_in(job: JobState, blocks: Sequence[Gathered]) -> Came:
    """Puts blocks into the job's state, and says what they have brought. Judges nothing.

    blocks: of the current attempt, in order of arrival; no node tells of the same twice, and all are of TABLES.
    """
    job.open_steps.changed = True
    came = Came()
    for name, alike in _by_table(blocks):
        if name is EventName.BLOCK_COLLECTIVES:
            _take_collectives(job, alike)
            came.collectives = True
        elif name is EventName.BLOCK_STEPS:
            _take_steps(job, alike, came)
        elif name is EventName.BLOCK_DEVICE_STEPS:
            before = _add(job.open_steps.on_device, alike)
            job.open_steps.note_summed(job.open_steps.on_device.all()[before:])
            came.device_sums = True
        elif name is EventName.BLOCK_STEP_GROUPS:
            came.counts_differ = _take_counts(job, alike)
        elif name is EventName.BLOCK_GROUP_PROGRESS:
            take_group_progress(job, alike)
        elif name is EventName.BLOCK_PROGRESS:
            take_progress(job, alike)
            came.progress = alike
    return came


def _by_table(blocks: Sequence[Gathered]) -> Iterable[tuple[EventName, Sequence[Gathered]]]:
    if len(blocks) == 1:  # each of a small job's messages
        return ((blocks[0].name, blocks),)
    found: dict[EventName, list[Gathered]] = {}
    for block in blocks:
        found.setdefault(block.name, []).append(block)
    return found.items()


def _add(table: OpenRows, blocks: Sequence[Gathered]) -> int:
    """At which row of the table theirs begin."""
    before = table.size
    for block in blocks:
        table.add(block.arrived)
    return before


def _take_collectives(job: JobState, blocks: Sequence[Gathered]) -> None:
    """Rows of one block alone are put into the job's terms only where that is needed at once."""
    before = _add(job.open_steps.calls, blocks)
    if not job.steps.are_seen():
        job.progress.note_calls(job.open_steps.calls.all()[before:], job.groups)
    if len(blocks) > 1 or len(job.open_steps.open_calls) or (blocks[0].arrived.rows["done_ns"] == 0).any():
        note_open_calls(job, job.open_steps.calls.all()[before:], blocks)
    for block in blocks:
        job.progress.flushed_ns[block.node] = block.closed_ns


def _take_counts(job: JobState, blocks: Sequence[Gathered]) -> bool:
    before = _add(job.open_steps.group_counts, blocks)
    if len(blocks) == 1:
        return differ_in_count(job, blocks[0].arrived)
    return differ_in_count(job, Arrived(rows=job.open_steps.group_counts.all()[before:]))


def _take_steps(job: JobState, blocks: Sequence[Gathered], came: Came) -> None:
    rows = concatenate([block.arrived.rows for block in blocks], STEPS)
    if not rows.size:
        return
    were_inferred = job.inferred
    if not job.take_sort_of_steps(inferred=bool((rows["flags"] & int(StepFlag.INFERRED)).all())):
        return
    came.steps_begin = were_inferred and not job.inferred
    _add(job.open_steps.steps, blocks)
    job.checkpoints.note_saving(rows)
    if job.steps.note_newest(rows["rank"], rows["step"]):
        for block in blocks:
            for rank in np.unique(block.arrived.rows["rank"]).tolist():
                job.set_node(rank, block.node)
    came.step_length_ns, came.bad_number = mean_length_ns(rows), find_non_finite(rows) is not None
