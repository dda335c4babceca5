"""The rows of steps that are not closed yet, and what of them is written to state."""

from __future__ import annotations

import numpy as np

from ....telemetry.tables import COLLECTIVES, DEVICE_STEPS, STEP_GROUPS, STEPS
from .open_calls import OpenCalls
from .open_rows import OpenChunk, OpenRows
from .rank_state import HeldUp

#: A rank this far behind the newest step does not hold up the others' steps any longer.
FURTHEST_BEHIND = 64


class OpenSteps:
    """calls, steps, group_counts, on_device: COLLECTIVES, STEPS, STEP_GROUPS and DEVICE_STEPS rows.

    summed_step: by rank, the newest step of which its device's sums have come, -1 none.

    held_up: of devices, the open call that the closing of steps waits for; held_by: the rank for which it has waited at
    the last look (not saved). rewrite, changed: whether all, or what is new, has to be written; chunks: names of the
    rows of state that hold them; chunk: the newest of these. closed_stamp_ns: when steps were last closed.
    """

    def __init__(self, chunks: list[str] | None = None) -> None:
        self.calls = OpenRows(COLLECTIVES)
        self.steps = OpenRows(STEPS)
        self.group_counts = OpenRows(STEP_GROUPS)
        self.on_device = OpenRows(DEVICE_STEPS)
        self.summed_step = np.zeros(0, np.int64)
        self.held_up: HeldUp | None = None
        self.held_by = 0
        self.rewrite = self.changed = True
        self.chunks = chunks if chunks is not None else []
        self.chunk: OpenChunk | None = None
        self.closed_stamp_ns = 0
        self.open_calls = OpenCalls()
        self._next_length = (-1, -1, -1), 0

    def note_summed(self, rows: np.ndarray) -> None:
        """Keeps the newest step that each rank's device has told the sums of. rows: DEVICE_STEPS (n,)."""
        if not rows.size:
            return
        highest = int(np.maximum.reduce(rows["rank"]))
        if highest >= self.summed_step.size:
            more = np.full(highest + 1 - self.summed_step.size, -1, np.int64)
            self.summed_step = np.concatenate((self.summed_step, more))
        np.maximum.at(self.summed_step, rows["rank"], rows["step"])

    def next_length_ns(self, closed_step: int) -> int:
        """The mean length in ns of the step after ``closed_step``, by those rows that are in; 0 where none is."""
        rows = self.steps
        known = closed_step, rows.replaced, rows.size
        if self._next_length[0] != known:  # asked of every message while devices are behind their hosts
            of_next = rows.all()["step"] == closed_step + 1
            self._next_length = known, mean_length_ns(rows.all()[of_next]) if of_next.any() else 0
        return self._next_length[1]


def mean_length_ns(rows: np.ndarray) -> int:
    """The mean length of steps. rows: STEPS (n,), n > 0."""
    return int(np.add.reduce(rows["end_ns"] - rows["begin_ns"])) // rows.size
