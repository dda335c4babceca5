"""JobOperator: who is stuck, who diverged, who is slow, who died first, inside one job. Pure; one key is one job.

Decisions are taken at places of the record stream that do not depend on batches: at a record that can change the
answer, or at a stamp that was asked for (``JobState.due_ns``), whether a timer or the next record gets there first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...telemetry.records import Block, Event, Identity, Record
from ...telemetry.tables import TABLES
from ...telemetry.vocabulary import EventName, Kind
from ..operator import Context, Timer
from .closing import MOST_PENDING_ROWS, prune_pending
from .crashes import judge_crash
from .events import TAKE
from .findings import clear_finding, revise_all
from .hangs import judge_joining, judge_stops, judge_waits
from .numeric import find_non_finite
from .progress import take_group_progress, take_progress
from .rows import copy_rows
from .signatures import note_open_calls, report_mismatch
from .state import JobState
from .steps import close_ready_steps, judge_late_numbers, judge_open_calls

NUMBER_HOLD_NS = 1_000_000_000
#: Steps that take no longer than those before may wait until so much has gathered, or so long.
CLOSE_ROWS = 16_384
CLOSE_NS = 4_000_000_000
_LOOK = "look"
_TABLE = "job"
_TIMES = {
    EventName.BLOCK_COLLECTIVES: ("enqueued_ns", "started_ns", "done_ns"),
    EventName.BLOCK_STEPS: ("begin_ns", "end_ns"),
    EventName.BLOCK_PROGRESS: ("read_ns",),
}
_GROUPED = frozenset({EventName.BLOCK_COLLECTIVES, EventName.BLOCK_STEP_GROUPS, EventName.BLOCK_GROUP_PROGRESS})
_IGNORED = frozenset(
    {
        EventName.EVIDENCE_REQUEST,
        EventName.AGENT_HEALTH,
        EventName.TICK,
        EventName.INPUT_SILENT,
        EventName.FINDING,
        EventName.INCIDENT,
    }
)


class JobOperator:
    """One instance serves all jobs; working copies are checked against the rows at every call."""

    name = "job"

    def __init__(self) -> None:
        self._jobs: dict[str, JobState] = {}

    def key_of(self, record: Record) -> str | None:
        payload = record.payload
        if isinstance(payload, Block) or (isinstance(payload, Event) and payload.name not in _IGNORED):
            return payload.identity.job or None
        return None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        job = self._load(ctx)
        for record in records:
            self._look_until(job, record.stamp_ns, ctx)
            payload = record.payload
            if isinstance(payload, Block):
                self._take_block(job, payload, record.stamp_ns, ctx)
            elif isinstance(payload, Event):
                self._take_event(job, payload, record.stamp_ns, ctx)
        self._save(job, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        job = self._load(ctx)
        self._look_until(job, timer.due_ns, ctx)
        self._save(job, ctx)

    # --- state ------------------------------------------------------------------------------------------------------
    def _load(self, ctx: Context) -> JobState:
        table = ctx.state.table(_TABLE)
        job = self._jobs.get(ctx.key)
        if job is None or not job.is_current(table):
            job = JobState.load(table) or JobState(job=ctx.key)
            self._jobs[ctx.key] = job
        return job

    def _save(self, job: JobState, ctx: Context) -> None:
        job.save(ctx.state.table(_TABLE))
        if job.due_ns:
            ctx.set_timer(_LOOK, job.due_ns)
        else:
            ctx.clear_timer(_LOOK)

    def _look_until(self, job: JobState, stamp_ns: int, ctx: Context) -> None:
        """Takes every decision that is due by then, each at its own stamp."""
        while job.due_ns and job.due_ns <= stamp_ns:
            now, job.due_ns = job.due_ns, 0
            if job.finished_ns:
                continue  # the last word has been said
            judge_stops(job, now, ctx)
            judge_open_calls(job, now, ctx)
            judge_crash(job, now, ctx)
            judge_late_numbers(job, now, ctx)
            revise_all(job, ctx, now)

    def _enter(self, job: JobState, identity: Identity, now: int, ctx: Context) -> bool:
        """Makes the record's attempt the current one. False: the record belongs to an attempt that is over."""
        if identity.cluster and not job.cluster:
            job.cluster, job.run, job.job = identity.cluster, identity.run, identity.job
            job.facts_changed = True
        attempt = identity.attempt
        if not attempt or attempt == job.attempt:
            return True
        if attempt in job.past_attempts:
            return False
        if job.attempt:
            judge_crash(job, now, ctx, finished=True)
            for finding in list(job.findings.values()):
                if finding.kind in (Kind.RANK_SLOW.value, Kind.SLOW_TOGETHER.value):
                    clear_finding(job, ctx, now, finding, "the job was restarted")
            job.past_attempts.append(job.attempt)
            job.begin_attempt(attempt)
        else:
            job.attempt = attempt
        job.facts_changed = True
        return True

    # --- blocks -----------------------------------------------------------------------------------------------------
    def _take_block(self, job: JobState, block: Block, stamp_ns: int, ctx: Context) -> None:
        if block.name not in TABLES or not self._enter(job, block.identity, stamp_ns, ctx):
            return
        rows = copy_rows(block.rows, TABLES[block.name])
        if block.name is EventName.BLOCK_COLLECTIVES and "peer" not in (block.rows.dtype.names or ()):
            rows["peer"] = -1
        offset = job.offsets.setdefault(block.identity.node, block.clock_offset_ns)
        for column in _TIMES.get(block.name, ()):
            rows[column] += offset * (rows[column] > 0)
        if block.name in _GROUPED:
            lookup = job.group_lookup(block.groups)
            rows["group"] = lookup[np.minimum(rows["group"], lookup.size - 1)]
        if block.name is EventName.BLOCK_COLLECTIVES:
            closed_ns = block.time_ns - block.clock_offset_ns + offset
            self._take_collectives(job, rows, closed_ns, stamp_ns, ctx)
        elif block.name is EventName.BLOCK_STEPS:
            self._take_steps(job, rows, block.identity.node, stamp_ns, ctx)
        elif block.name is EventName.BLOCK_STEP_GROUPS:
            job.add_step_groups(rows)
        elif block.name is EventName.BLOCK_PROGRESS:
            take_progress(job, rows, block.identity.node, stamp_ns)
            judge_stops(job, stamp_ns, ctx)
            judge_joining(job, stamp_ns, ctx)
            judge_waits(job, stamp_ns, ctx)  # agents send the groups' rows before the ranks'
        elif block.name is EventName.BLOCK_GROUP_PROGRESS:
            take_group_progress(job, rows, stamp_ns)

    def _take_collectives(self, job: JobState, rows: np.ndarray, closed_ns: int, stamp_ns: int, ctx: Context) -> None:
        job.add_pending(rows)
        note_open_calls(job, rows, closed_ns, stamp_ns)
        if job.pending_rows > MOST_PENDING_ROWS:
            mismatch = prune_pending(job)
            if mismatch is not None:
                report_mismatch(job, mismatch, stamp_ns, ctx)

    def _take_steps(self, job: JobState, rows: np.ndarray, node: str, stamp_ns: int, ctx: Context) -> None:
        job.add_step_rows(rows)
        job.note_steps(rows["rank"], rows["step"], node)
        bad = find_non_finite(rows)
        if bad is not None and not job.number_due_ns:
            job.number_due_ns = stamp_ns + NUMBER_HOLD_NS
            job.schedule(job.number_due_ns)
        if (
            job.findings
            or job.number_due_ns
            or not job.slow_step_ns
            or int((rows["end_ns"] - rows["begin_ns"]).min()) > job.slow_step_ns
            or job.pending_rows >= CLOSE_ROWS
            or stamp_ns - job.closed_stamp_ns >= CLOSE_NS
        ):
            close_ready_steps(job, stamp_ns, ctx)

    # --- events -----------------------------------------------------------------------------------------------------
    def _take_event(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        take = TAKE.get(event.name)
        if take is None or not self._enter(job, event.identity, stamp_ns, ctx):
            return
        job.facts_changed = True
        take(job, event, stamp_ns, ctx)
