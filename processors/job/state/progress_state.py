"""The newest word of each rank's progress, and what is usual between calls where a job shows no steps."""

from __future__ import annotations

import numpy as np

from ....telemetry.tables import PROGRESS
from ..detectors.hang.call_gaps import CallGaps
from .job_groups import JobGroups
from .rank_state import MOST_RANKS


class ProgressState:
    """rows: by rank, its newest PROGRESS row; stamps: when it came, 0 never; newest_stamp_ns: of them.

    rare_until_ns: by rank, when it was last in a phase without a usual length, 0 never. flushed_ns: by node, on its own
    clock. joining_looked_ns: when was last looked at who has not joined.
    """

    def __init__(self) -> None:
        self.rows = np.zeros(0, PROGRESS)
        self.stamps = np.zeros(0, np.int64)
        self.newest_stamp_ns = 0
        self.rare_until_ns = np.zeros(0, np.int64)
        self.flushed_ns: dict[str, int] = {}
        self.call_gaps = CallGaps()
        #: False: no rank has ``bad_loss``. Not saved.
        self.may_have_bad_loss = True
        self.joining_looked_ns = 0

    def row_of(self, rank: int) -> np.void | None:
        """The rank's newest PROGRESS row; None: it has told of none."""
        if 0 <= rank < self.rows.size and self.stamps[rank]:
            return self.rows[rank]  # type: ignore[no-any-return]
        return None

    def grow(self, rank: int) -> None:
        """Makes room for this rank, below MOST_RANKS."""
        if rank >= self.rows.size:
            size = min(MOST_RANKS, max(rank + 1, 2 * self.rows.size))
            self.rows = np.concatenate([self.rows, np.zeros(size - self.rows.size, PROGRESS)])
            more = np.zeros(size - self.stamps.size, np.int64)
            self.stamps = np.concatenate([self.stamps, more])
            self.rare_until_ns = np.concatenate([self.rare_until_ns, more])

    def note_calls(self, rows: np.ndarray, groups: JobGroups) -> None:
        """Adds calls to what is usual between two calls, for a job that shows no steps. rows: (n,) of COLLECTIVES.

        Rows of unknown groups, and of ranks that are no members, are left out.
        """
        rows = rows[rows["group"] < len(groups.known)]
        found = groups.places().find(rows["group"], rows["rank"])
        member = found >= 0
        if member.any():
            rows, chosen = rows[member], rows["group"][member].astype(np.intp)
            self.call_gaps.note(rows, found[member] + np.array(groups.first)[chosen], groups.are_on_device()[chosen])
