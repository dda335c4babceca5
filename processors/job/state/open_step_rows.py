"""Rows of open steps as rows ``open/N`` of a job's state (``state_rows``), and back."""

from __future__ import annotations

import numpy as np

from ....telemetry.vocabulary import EventName
from ...operator import Table
from ..columns.rows import copy_of, in_dtype
from .job_state import JobState
from .micro_batch import put_in_job_terms
from .open_rows import OpenChunk, OpenRows

#: What the tables of open rows are called in rows of state.
_OPEN_NAMES = {
    "rows": EventName.BLOCK_COLLECTIVES,
    "steps": EventName.BLOCK_STEPS,
    "groups": EventName.BLOCK_STEP_GROUPS,
    "device": EventName.BLOCK_DEVICE_STEPS,
}


def _open_tables(job: JobState) -> tuple[tuple[str, OpenRows], ...]:
    return (
        ("rows", job.open_steps.calls),
        ("steps", job.open_steps.steps),
        ("groups", job.open_steps.group_counts),
        ("device", job.open_steps.on_device),
    )


def save_open(job: JobState, table: Table) -> None:
    """Adds what came since the last call to the newest row, or to a new one where that is written already; begins anew
    after a step has closed. Most rows are never written: their steps close before the next commit."""
    if job.open_steps.rewrite:
        for name in job.open_steps.chunks:
            table.delete(name)
        job.open_steps.chunks, job.open_steps.chunk = [], None
        fresh = {name: rows.take_everything() for name, rows in _open_tables(job)}
        job.open_steps.rewrite = False
    else:
        fresh = {name: rows.take_unsaved() for name, rows in _open_tables(job)}
    if not any(fresh.values()):
        return
    if job.open_steps.chunk is None or job.open_steps.chunk.is_written:
        job.open_steps.chunk = OpenChunk()
        job.open_steps.chunks.append(f"open/{job.unsaved.revision:012d}")
    for name, parts in fresh.items():
        job.open_steps.chunk.parts += [(name, part) for part in parts]
    table.put_later(job.open_steps.chunks[-1], job.open_steps.chunk.write)


def read_open(job: JobState, arrays: dict[str, np.ndarray]) -> None:
    """Puts one row of open steps, by names of arrays, into the job. Of an earlier release the rows are in the node's
    times and numbers of groups.

    Raises KeyError or IndexError for arrays of something else.
    """
    tables = dict(_open_tables(job))
    offsets = arrays["offsets"].tolist()
    for place, rows in arrays.items():
        name, _, number = place.partition("/")
        if name not in tables:
            continue
        rows = in_dtype(rows, tables[name].dtype)
        offset_ns, lookup = offsets[int(number)], arrays.get(f"lookup/{number}")
        if offset_ns or lookup is not None:
            rows = put_in_job_terms(_OPEN_NAMES[name], copy_of(rows), offset_ns, lookup)
        tables[name].add(rows, saved=True)
