"""The window of closed steps of a large job, a row of state for each: a step that is closed does not change any more.

Of 16,384 ranks a step is 2 MB, and the window has hundreds. Which steps have to be written is told by how many lines
each table has of them; a window that begins anew is another one, whatever its steps are called.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from ...operator import Table
from ..columns.packing import pack, unpack
from .job_state import JobState
from .step_history import StepHistory
from .unsaved import Unsaved

#: Of fewer ranks the whole window is one row.
FEWEST_RANKS = 1024
_PREFIX = "step/"


def is_apart(steps: StepHistory) -> bool:
    """Whether the window stands in rows of its own."""
    return bool(steps.times.ranks.size >= FEWEST_RANKS)


def tables_of(steps: StepHistory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By name of each table with a line per step: (n,) its steps, ascending, and (n, ...) its lines."""
    times, window = steps.times, steps.window
    found = {
        "self_ns": (times.steps, times.self_ns),
        "starved_ns": (times.steps, times.starved_ns),
        "phase_self_ns": (times.steps[times.steps.size - len(times.phase_self_ns) :], times.phase_self_ns),
        "norms": (steps.norm_steps[:, 0], steps.norms),
        "losses": (steps.norm_steps[:, 0], steps.losses),
    }
    for name in ("inner", "starts", "passes", "launches"):
        lines = getattr(window, name)
        found[name] = lines[:, 0], lines
    return found


def save_steps(job: JobState, table: Table) -> None:
    """Puts the rows of steps that are new or have changed, and deletes those of steps that have left the window."""
    now = _lines_of_steps(job.steps) if is_apart(job.steps) else {}
    for step in job.kept_steps.keys() - now.keys():
        table.delete(_row_name(step))
    for step, lines in now.items():
        if job.kept_steps.get(step) != lines:
            table.put_later(_row_name(step), partial(_pack_step, job, step))
    job.kept_steps = now


def load_steps(table: Table, ranks: np.ndarray) -> dict[str, np.ndarray]:
    """The lines (n, ...) of the tables that ``tables_of`` names, from their rows. ranks: (ranks,), of the columns.

    Raises ValueError or KeyError for a row that is none.
    """
    empty = StepHistory(Unsaved())
    empty.begin_window(ranks)
    parts: dict[str, list[np.ndarray]] = {name: [lines] for name, (_, lines) in tables_of(empty).items()}
    for row, value in table.rows():
        if row.startswith(_PREFIX):
            for name, lines in unpack(value)[1].items():
                parts[name].append(lines)
    return {name: np.concatenate(lines) for name, lines in parts.items()}


def note_loaded(job: JobState) -> None:
    """What was just loaded counts as written."""
    job.kept_steps = _lines_of_steps(job.steps) if is_apart(job.steps) else {}


def _lines_of_steps(steps: StepHistory) -> dict[int, tuple[object, ...]]:
    """By step: its window, and which table has how many lines of it."""
    counts = [Counter(numbers.tolist()) for numbers, _ in tables_of(steps).values()]
    return {step: (steps.window_begun, *(count[step] for count in counts)) for step in set().union(*counts)}


def _pack_step(job: JobState, step: int) -> bytes:
    return pack({}, {name: lines[numbers == step] for name, (numbers, lines) in tables_of(job.steps).items()})


def _row_name(step: int) -> str:
    return f"{_PREFIX}{step:015d}"
