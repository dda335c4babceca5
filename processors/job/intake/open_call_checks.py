"""When calls that were open at a flush are looked at: most have ended by then; one that does not match never ends."""

from __future__ import annotations

import numpy as np

from ..columns.rows import pick
from ..state.job_state import JobState
from ..state.micro_batch import Arrivals

#: A call that was still open at a flush is looked at so much later: by then most have ended. A mismatch is to be told
#: within a second of the call, whose flush comes half a second after it at the latest.
OPEN_LOOK_NS = 210_000_000
#: Jobs of short steps are flushed every 250 ms: the next flush says which calls have ended, and few looks are needed.
SHORT_STEP_NS = 200_000_000
SHORT_STEP_LOOK_NS = 300_000_000
#: Of a node that has not flushed before.
_NEVER_NS = -(1 << 62)


def note_open_calls(job: JobState, came: Arrivals) -> None:
    """Keeps calls that have not ended, and sets a timer to look at them; forgets those kept that have ended since.

    To be called before the flushes are noted. came: of COLLECTIVES.
    """
    rows = came.rows
    if len(job.open_steps.open_calls):
        flushed_ns = [job.progress.flushed_ns.get(flush.node, _NEVER_NS) + flush.offset_ns for flush in came.flushes]
        old = rows["enqueued_ns"] <= np.array(flushed_ns)[came.of_flush]
        if old.any():
            job.open_steps.open_calls.end(pick(rows, old))
    still = (rows["done_ns"] == 0).nonzero()[0]
    if still.size:
        stamps_ns = np.array([flush.stamp_ns for flush in came.flushes])[came.of_flush[still]]
        if job.open_steps.open_calls.add(pick(rows, still), stamps_ns):
            job.schedule(int(stamps_ns[0]) + open_look_ns(job))


def open_look_ns(job: JobState) -> int:
    """How many ns after the flush that had them calls still open are looked at; longer for jobs with short steps."""
    return SHORT_STEP_LOOK_NS if 0 < job.steps.slow_step_ns < SHORT_STEP_NS else OPEN_LOOK_NS
