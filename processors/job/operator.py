"""JobOperator: who is stuck, who diverged, who is slow, who died first, inside one job. Pure; one key is one job.

Decisions are taken at places of the record stream that do not depend on batches: at a record that can change the
answer, or at a stamp that was asked for (``JobState.due_ns``), whether a timer or the next record gets there first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from ...telemetry.records import Block, Event, Group, Identity, Record
from ...telemetry.tables import COLLECTIVES, STEPS, TABLES
from ...telemetry.vocabulary import EventName, ExitState, Kind, Level, Phase
from ..operator import Context, Timer
from . import narration
from .closing import MOST_PENDING_ROWS, Closed, close_steps, horizon_of, prune_pending
from .crash_order import Ending, Hold, judge_endings, role_hint
from .findings import clear_finding, open_finding, replace_finding, revise, revise_all
from .matching import Mismatch, find_mismatch, join_instances, judge_mismatch
from .numeric import find_explosion, find_non_finite
from .pace import find_pace_change, is_back_to_pace
from .progress import find_waits, oldest_open_ns, take_group_progress, take_progress
from .rows import concatenate, copy_rows, pick
from .state import JobState, OpenFinding
from .straggler import find_straggler, is_still_slow
from .thresholds import FLOOR_NS, waited_ns, waiting_threshold_ns
from .waiting import Blockage, Wait, find_blockage, longest_wait_for
from .words import phase_word

#: All ranks of a job that is suspended stop within this time of each other.
STOP_HOLD_NS = 250_000_000
NUMBER_HOLD_NS = 1_000_000_000
NEVER_JOINED_NS = 25_000_000_000
#: A blind rank may be innocent: wait longer before it is even named as a candidate.
UNSEEN_FACTOR = 2
#: A call that is still open when the next flush (250 ms) has come may never end.
OPEN_LOOK_NS = 310_000_000
#: Agents of other nodes flush a little later: one look serves them all.
OPEN_SLACK_NS = 60_000_000
#: Blocks among which such a call's other members are looked for; closing a step looks at all.
NEAR_FLUSHES = 64
MOST_OPEN_CALLS = 4096
#: Steps that take no longer than those before may wait until so much has gathered, or so long.
CLOSE_ROWS = 16_384
CLOSE_NS = 4_000_000_000
PACE_CHECK_STEPS = 8
GOOD_STEPS_TO_CLEAR = 3
#: A better cause may still replace the one that a crash was opened with.
CRASH_REVISION_NS = 10_000_000_000
_LOOK = "look"
#: Kinds that are over once all ranks have finished a later step.
_PASSING = frozenset({Kind.RANK_NOT_ENTERED.value, Kind.DEADLOCK.value, Kind.RANK_STOPPED.value})
_NUMBER_ERROR = re.compile(r"\b(nan|inf|infinite|finite|overflow)\b", re.IGNORECASE)
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
        self._events: dict[EventName, Callable[[JobState, Event, int, Context], None]] = {
            EventName.JOB_STARTED: self._take_job_started,
            EventName.JOB_SIGNALLED: self._take_job_signalled,
            EventName.JOB_FINISHED: self._take_job_finished,
            EventName.GROUP_DEFINED: self._take_group,
            EventName.RANK_STARTED: self._take_rank_started,
            EventName.RANK_EXCEPTION: self._take_ending,
            EventName.RANK_EXIT: self._take_ending,
            EventName.RANK_STOPPED: self._take_stopped,
            EventName.RANK_CONTINUED: self._take_continued,
            EventName.RANK_STALE: self._take_stale,
            EventName.RANK_STACK: self._take_stack,
            EventName.RANK_LEVEL: self._take_level,
        }

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
            self._judge_stops(job, now, ctx)
            self._judge_open_calls(job, now, ctx)
            self._judge_crash(job, now, ctx)
            self._judge_late_numbers(job, now, ctx)
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
            self._judge_crash(job, now, ctx, finished=True)
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
            self._judge_stops(job, stamp_ns, ctx)
            self._judge_joining(job, stamp_ns, ctx)
            self._judge_waits(job, stamp_ns, ctx)  # agents send the groups' rows before the ranks'
        elif block.name is EventName.BLOCK_GROUP_PROGRESS:
            take_group_progress(job, rows, stamp_ns)

    def _take_collectives(self, job: JobState, rows: np.ndarray, closed_ns: int, stamp_ns: int, ctx: Context) -> None:
        job.add_pending(rows)
        self._note_open_calls(job, rows, closed_ns, stamp_ns)
        if job.pending_rows > MOST_PENDING_ROWS:
            mismatch = prune_pending(job)
            if mismatch is not None:
                self._report_mismatch(job, mismatch, stamp_ns, ctx)

    def _note_open_calls(self, job: JobState, rows: np.ndarray, closed_ns: int, stamp_ns: int) -> None:
        """A call that does not match never ends: those still open after the next flush are worth a look."""
        if len(job.open_calls):
            late = (rows["enqueued_ns"] <= job.flushed_ns) & (rows["done_ns"] > 0)
            if late.any():
                job.open_calls = _still_open(job.open_calls, pick(rows, late))
        still = rows["done_ns"] == 0
        if still.any() and len(job.open_calls) < MOST_OPEN_CALLS:
            job.open_calls = np.concatenate([job.open_calls, _calls(pick(rows, still), stamp_ns)])
            job.schedule(stamp_ns + OPEN_LOOK_NS)
        job.flushed_ns = max(job.flushed_ns, closed_ns)

    def _judge_open_calls(self, job: JobState, now: int, ctx: Context) -> None:
        """No flush came since, or it did not complete them: whoever is in them waits."""
        old = now - job.open_calls[:, 3] >= OPEN_LOOK_NS - OPEN_SLACK_NS
        stays, job.open_calls = job.open_calls[old], job.open_calls[~old]
        if len(job.open_calls):
            job.schedule(int(job.open_calls[:, 3].min()) + OPEN_LOOK_NS)
        stays = stays[stays[:, 1] < len(job.groups)]
        if len(stays):  # each is worth one look; a hang is the progress rows' to tell
            lowest = np.full(len(job.groups) + 1, np.iinfo(np.int64).max)
            np.minimum.at(lowest, stays[:, 1], stays[:, 2])
            pending = concatenate(job.pending[-NEAR_FLUSHES:], COLLECTIVES)
            near = pick(pending, pending["seq"] >= lowest[np.minimum(pending["group"], len(job.groups))])
            if find_mismatch(join_instances(near), job.blind()) is not None:
                self._judge_signatures(job, now, ctx)

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
            self._close(job, stamp_ns, ctx)

    def _close(self, job: JobState, now: int, ctx: Context) -> None:
        """Closes what can be closed. Steps like those before may lie for a while: joining many at once is cheap."""
        horizon = horizon_of(job)
        if horizon > job.closed_step:
            job.closed_stamp_ns = now
            self._judge_steps(job, close_steps(job, horizon), now, ctx)

    # --- events -----------------------------------------------------------------------------------------------------
    def _take_event(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        take = self._events.get(event.name)
        if take is None or not self._enter(job, event.identity, stamp_ns, ctx):
            return
        job.facts_changed = True
        take(job, event, stamp_ns, ctx)

    def _take_job_started(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        job.finished_ns = job.signalled_ns = 0
        job.world_size = job.world_size or int(event.attributes.get("world_size", 0))

    def _take_job_signalled(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        if any(role_hint(ending) in ("signal", "error", "code") for ending in job.endings):
            self._judge_crash(job, stamp_ns, ctx, finished=True)
        job.signalled_ns = job.signalled_ns or event.time_ns
        if job.stopping_finding() is None and not _has_kind(job, Kind.PLANNED_STOP):
            body = narration.planned_body(job, (), event.time_ns, stamp_ns)
            open_finding(job, ctx, stamp_ns, kind=Kind.PLANNED_STOP, place="job", body=body)

    def _take_job_finished(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        """Nothing more will come: what is held is decided now, and what cannot last longer than the job ends."""
        job.finished_ns = event.time_ns
        job.exit_code = int(event.attributes.get("exit_code", 0))
        self._close(job, stamp_ns, ctx)
        self._judge_crash(job, stamp_ns, ctx, finished=True)
        self._judge_late_numbers(job, stamp_ns, ctx, finished=True)
        asked = bool(job.signalled_ns) or job.exit_code == 0
        for finding in list(job.findings.values()):
            finding.shown_ns = 0  # the last word must not wait for the revision gap
            revise(job, ctx, stamp_ns, finding)
            if asked or finding.kind in (Kind.RANK_SLOW.value, Kind.SLOW_TOGETHER.value):
                clear_finding(job, ctx, stamp_ns, finding, "the job ended")

    def _take_group(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        values = event.attributes
        if values.get("uid"):
            job.add_group(
                Group(
                    uid=str(values["uid"]),
                    name=str(values.get("name", "")),
                    desc=str(values.get("desc", "")),
                    ranks=str(values.get("ranks", "")),
                    size=int(values.get("size", 0)),
                    backend=str(values.get("backend", "")),
                    timeout_s=float(values.get("timeout_s", 0.0)),
                    is_default=bool(values.get("is_default", False)),
                )
            )

    def _take_rank_started(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        facts = job.facts(event.identity.rank)
        job.set_node(event.identity.rank, event.identity.node)
        facts.pid = int(event.attributes.get("pid", 0))
        facts.local_rank = int(event.attributes.get("local_rank", -1))
        facts.started_ns = event.time_ns
        facts.launcher_pid = int(event.attributes.get("launcher_pid", 0))
        job.world_size = max(job.world_size, int(event.attributes.get("world_size", 0)))
        for finding in _of_kind(job, Kind.RANK_NEVER_JOINED):
            if event.identity.rank in finding.suspects:
                clear_finding(job, ctx, stamp_ns, finding, f"rank {event.identity.rank} has come")

    def _take_ending(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        ending = _read_ending(job, event, stamp_ns)
        job.endings.append(ending)
        if ending.sort == "exit":
            facts = job.facts(ending.rank)
            facts.exited_ns = ending.time_ns
            facts.stopped_ns = 0
        self._judge_crash(job, stamp_ns, ctx)

    def _take_stopped(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        facts = job.facts(event.identity.rank)
        job.set_node(event.identity.rank, event.identity.node)
        if not facts.stopped_ns:
            facts.stopped_ns, facts.stopped_stamp_ns = _time_of(job, event), stamp_ns
        job.schedule(stamp_ns + STOP_HOLD_NS)

    def _take_continued(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        rank = event.identity.rank
        facts = job.facts(rank)
        facts.stopped_ns = facts.stopped_stamp_ns = 0
        facts.continued_ns = _time_of(job, event)
        row = job.progress_row(rank)
        if row is not None:
            job.progress[rank]["process_state"] = 0  # until the next row says
            job.progress_changed = True
        for finding in _of_kind(job, Kind.RANK_STOPPED):
            if rank in finding.suspects:
                clear_finding(job, ctx, stamp_ns, finding, f"the process of rank {rank} runs again")

    def _take_stale(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        job.facts(event.identity.rank).stale_ns = _time_of(job, event)

    def _take_stack(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        values = event.attributes
        if values.get("file"):
            job.facts(event.identity.rank).stack = {
                "file": str(values["file"]),
                "line": int(values.get("line", 0)),
                "function": str(values.get("function", "")),
                "method": str(values.get("method", "")),
                "phase": str(values.get("phase", "")),
                "time_ns": _time_of(job, event),
            }
            revise_all(job, ctx, stamp_ns)

    def _take_level(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        level = event.attributes.get("level")
        if level in (int(Level.OFF), Level.OFF.name.lower()):
            job.blind_ranks.add(event.identity.rank)

    # --- judgements -------------------------------------------------------------------------------------------------
    def _judge_signatures(self, job: JobState, now: int, ctx: Context) -> None:
        self._close(job, now, ctx)  # the steps before are the pattern by which two ranks are told apart
        mismatch = find_mismatch(join_instances(job.all_pending()), job.blind())
        if mismatch is not None:
            self._report_mismatch(job, mismatch, now, ctx)

    def _report_mismatch(self, job: JobState, mismatch: Mismatch, now: int, ctx: Context) -> None:
        """A mismatch explains whatever else stops this attempt, also what was said before its rows came in."""
        finding = job.stopping_finding()
        if finding is not None and finding.kind in (Kind.DESYNC.value, Kind.RANK_STOPPED.value):
            return
        if _has_kind(job, Kind.PLANNED_STOP):
            return
        earlier = job.recent[job.recent["step"] < max(member.step for member in mismatch.members)]
        divergence = judge_mismatch(mismatch, earlier)
        body = narration.mismatch_body(job, mismatch, divergence, now)
        if finding is not None:
            replace_finding(job, ctx, now, finding, kind=Kind.DESYNC, body=body)
            return
        place = f"{job.groups[mismatch.group].uid}:{mismatch.seq}"
        open_finding(job, ctx, now, kind=Kind.DESYNC, place=place, body=body, group=mismatch.group, seq=mismatch.seq)

    def _judge_crash(self, job: JobState, now: int, ctx: Context, *, finished: bool = False) -> None:
        if (job.finished_ns and not finished) or not any(role_hint(ending) != "none" for ending in job.endings):
            return
        self._judge_signatures(job, now, ctx)
        finding = job.stopping_finding()
        if (finding is not None and not finding.detail.get("crash")) or _has_kind(job, Kind.PLANNED_STOP):
            revise_all(job, ctx, now)
            return
        verdict = judge_endings(job.endings, now=now, ranks=job.ranks, signalled_ns=job.signalled_ns, finished=finished)
        if isinstance(verdict, Hold):
            job.schedule(verdict.until_ns)
        elif verdict is not None and finding is not None:
            suspects = [verdict.cause.rank] if verdict.cause else []
            if suspects != finding.suspects and now - finding.found_ns < CRASH_REVISION_NS and suspects:
                kind, body = narration.crash_body(job, verdict, now)
                replace_finding(job, ctx, now, finding, kind=kind, body=body)
            revise(job, ctx, now, finding)
        elif verdict is not None:
            if verdict.cause is not None and self._follows_from_numbers(job, verdict.cause):
                revise_all(job, ctx, now)
                return
            kind, body = narration.crash_body(job, verdict, now)
            place = f"step {body['first_bad']['step']}"
            open_finding(job, ctx, now, kind=kind, place=place, body=body, detail={"crash": True})

    def _follows_from_numbers(self, job: JobState, cause: Ending) -> bool:
        """A guard that raises because of a NaN that has been reported is a consequence."""
        reported = _has_kind(job, Kind.NUMERIC_ALL) or _has_kind(job, Kind.NUMERIC_FIRST_RANK)
        return reported and cause.sort == "exception" and bool(_NUMBER_ERROR.search(f"{cause.type} {cause.message}"))

    def _judge_stops(self, job: JobState, now: int, ctx: Context) -> None:
        stopped = [rank for rank in job.alive() if job.ranks[rank].stopped_ns]
        if not stopped or job.stopping_finding() is not None:
            return
        running = [rank for rank in job.alive() if rank not in stopped]
        if not running:
            return  # the whole job is suspended, which someone wanted
        for rank in stopped:
            ready = job.ranks[rank].stopped_stamp_ns + STOP_HOLD_NS
            if now < ready:
                job.schedule(ready)
                continue
            body = narration.stopped_body(job, rank, running, now)
            open_finding(job, ctx, now, kind=Kind.RANK_STOPPED, place=f"rank {rank}", body=body)
            return

    def _judge_joining(self, job: JobState, now: int, ctx: Context) -> None:
        missing = [rank for rank in range(job.world_size) if rank not in job.ranks]
        if not missing or len(missing) == job.world_size or job.stopping_finding() is not None:
            return
        waiting, ages = [], []
        for rank in job.alive():
            row = job.progress_row(rank)
            if row is not None and row["phase"] == int(Phase.INIT):
                waiting.append(rank)
                ages.append(int(row["phase_age_ns"]))
        if waiting and max(ages) >= NEVER_JOINED_NS:
            body = narration.never_joined_body(job, missing, waiting, now)
            open_finding(job, ctx, now, kind=Kind.RANK_NEVER_JOINED, place=f"ranks {missing[0]}", body=body)

    def _judge_waits(self, job: JobState, now: int, ctx: Context) -> None:
        finding = job.stopping_finding()
        if finding is not None:
            self._end_if_moved_on(job, finding, now, ctx)
            return
        if oldest_open_ns(job) < FLOOR_NS or _has_kind(job, Kind.PLANNED_STOP):
            return
        self._judge_signatures(job, now, ctx)
        if job.stopping_finding() is not None:
            return
        waits = find_waits(job)
        blockage = find_blockage(waits, FLOOR_NS)
        if blockage is None:
            return
        if blockage.sort == "deadlock":
            age_ns = min(waited_ns(job, blockage.wait.age_ns, rank) for rank in blockage.cycle)
            if age_ns >= max(FLOOR_NS, 2 * job.median_step_ns()):
                body = narration.deadlock_body(job, blockage, waits, now)
                self._open_blockage(job, ctx, now, Kind.DEADLOCK, blockage.wait, body)
            return
        self._judge_blockage(job, blockage, waits, now, ctx)

    def _judge_blockage(self, job: JobState, blockage: Blockage, waits: Sequence[Wait], now: int, ctx: Context) -> None:
        suspects = list(blockage.suspects)
        if blockage.sort == "inside":
            members = [int(rank) for rank in job.members[blockage.wait.group]]
            suspects = [rank for rank in members if self._is_lifeless(job, rank)]
        late = []
        threshold = 0
        for rank in suspects:
            wait = longest_wait_for(waits, rank) or blockage.wait
            limit = waiting_threshold_ns(job, rank, wait.group)
            if blockage.sort == "unknown":
                limit *= UNSEEN_FACTOR
            if waited_ns(job, wait.age_ns, rank) >= limit:
                late.append(rank)
                threshold = max(threshold, limit)
        if not late:
            return
        gone = [rank for rank in late if job.has_left(rank)]
        late = gone or late
        kind = Kind.RANK_NOT_ENTERED
        if gone:
            normal = any(ending.normal and ending.rank in gone for ending in job.endings)
            kind = Kind.DESYNC if normal else Kind.RANK_DIED
        elif len(late) == 1 and self._is_stopped(job, late[0]):
            kind = Kind.RANK_STOPPED
        body = narration.blockage_body(job, kind, blockage, late, threshold, now)
        self._open_blockage(job, ctx, now, kind, blockage.wait, body)

    def _open_blockage(
        self, job: JobState, ctx: Context, now: int, kind: Kind, wait: Wait, body: narration.Body
    ) -> None:
        place = f"{job.groups[wait.group].uid}:{'p2p ' if wait.p2p else ''}{wait.seq}"
        seq = -1 if wait.p2p else wait.seq
        open_finding(job, ctx, now, kind=kind, place=place, body=body, group=wait.group, seq=seq)

    def _is_lifeless(self, job: JobState, rank: int) -> bool:
        row = job.progress_row(rank)
        silent = row is not None and int(row["heartbeat_age_ns"]) > narration.STALE_NS
        return silent or self._is_stopped(job, rank) or job.has_left(rank)

    def _is_stopped(self, job: JobState, rank: int) -> bool:
        facts = job.ranks.get(rank)
        return facts is not None and bool(facts.stopped_ns)

    def _end_if_moved_on(self, job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
        """A hang that was none, or is over: the operation that was waited in has completed."""
        if finding.kind not in (Kind.RANK_NOT_ENTERED.value, Kind.DEADLOCK.value) or finding.seq < 0:
            return
        rows, stamps = job.rows_of_group(finding.group)
        seen = stamps > 0
        if seen.any() and bool((rows["completed"][seen] >= finding.seq).all()):
            clear_finding(job, ctx, now, finding, f"sequence {finding.seq} has completed on all members")

    def _judge_steps(self, job: JobState, closed: Closed, now: int, ctx: Context) -> None:
        if closed.mismatch is not None:
            self._report_mismatch(job, closed.mismatch, now, ctx)
        elif closed.short is not None and job.stopping_finding() is None and not _has_kind(job, Kind.PLANNED_STOP):
            short = closed.short
            ends = closed.rows["end_ns"][closed.rows["step"] == short.step]
            onset = int(ends.min()) if ends.size else now
            body = narration.short_step_body(job, short.group, short.step, short.counts, short.guilty, onset, now)
            place = f"{job.groups[short.group].uid}:step {short.step}"
            open_finding(job, ctx, now, kind=Kind.DESYNC, place=place, body=body, group=short.group)
        for finding in list(job.findings.values()):
            self._end_if_passed(job, finding, now, ctx)
        self._judge_numbers(job, closed.rows, now, ctx)
        self._judge_speed(job, now, ctx)

    def _end_if_passed(self, job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
        if finding.attempt != job.attempt:
            if job.closed_step > finding.step:
                clear_finding(job, ctx, now, finding, f"the restarted job has passed step {finding.step}")
        elif finding.kind in _PASSING and job.closed_step > max(finding.step, -1):
            clear_finding(job, ctx, now, finding, f"all ranks have finished step {job.closed_step}")

    # --- numbers and speed ------------------------------------------------------------------------------------------
    def _judge_numbers(self, job: JobState, rows: np.ndarray, now: int, ctx: Context) -> None:
        bad = find_non_finite(rows)
        if bad is None and len(job.norms):
            steps, ends = job.norm_steps[:, 0], job.norm_steps[:, 1]
            bad = find_explosion(steps, job.norms, job.times.ranks, ends)
        reported = _of_kind(job, Kind.NUMERIC_ALL) + _of_kind(job, Kind.NUMERIC_FIRST_RANK)
        if bad is None:
            for finding in reported:
                self._count_good_steps(job, finding, rows, now, ctx)
            return
        job.number_due_ns = 0
        for finding in reported:
            finding.detail["good"] = 0
        if not reported:
            kind, body = narration.number_body(job, bad, now)
            open_finding(job, ctx, now, kind=kind, place=f"step {bad.step}", body=body)

    def _count_good_steps(self, job: JobState, finding: OpenFinding, rows: np.ndarray, now: int, ctx: Context) -> None:
        finding.detail["good"] = finding.detail.get("good", 0) + int(np.unique(rows["step"]).size)
        job.facts_changed = True
        if finding.detail["good"] >= GOOD_STEPS_TO_CLEAR:
            clear_finding(job, ctx, now, finding, f"the numbers are good again since {finding.detail['good']} steps")

    def _judge_late_numbers(self, job: JobState, now: int, ctx: Context, *, finished: bool = False) -> None:
        """A bad number whose step never closed (the job hangs or dies of it): judged by the rows that came."""
        if not job.number_due_ns or (now < job.number_due_ns and not finished):
            return
        self._close(job, now, ctx)
        if not job.number_due_ns:
            return
        job.number_due_ns = 0
        rows = concatenate(job.step_rows, STEPS)
        if rows.size:
            bad = find_non_finite(rows)
            if bad is not None:
                self._judge_numbers(job, rows[rows["step"] == bad.step], now, ctx)

    def _judge_speed(self, job: JobState, now: int, ctx: Context) -> None:
        slow = _of_kind(job, Kind.RANK_SLOW)
        for finding in slow:
            detail = finding.detail
            if not is_still_slow(job.times, finding.suspects[0], detail["excess"], detail["usual"]):
                job.drop_steps(finding.step, job.closed_step)
                clear_finding(job, ctx, now, finding, f"rank {finding.suspects[0]} is as fast as usual again")
        if not slow and job.stopping_finding() is None:
            found = find_straggler(job.times)
            if found is not None:
                body = narration.straggler_body(job, found, now)
                detail = {"excess": found.excess, "usual": found.usual}
                place = f"rank {found.rank} step {found.onset_step}"
                open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)
        self._judge_pace(job, now, ctx)

    def _judge_pace(self, job: JobState, now: int, ctx: Context) -> None:
        if job.closed_step < job.pace_checked_step + PACE_CHECK_STEPS or not len(job.pace):
            return
        job.pace_checked_step = job.closed_step
        steps, begins, pace = job.pace[:, 0], job.pace[:, 1], job.pace[:, 2]
        reported = _of_kind(job, Kind.SLOW_TOGETHER)
        for finding in reported:
            if is_back_to_pace(pace, finding.detail["before_ns"], finding.detail["after_ns"]):
                clear_finding(job, ctx, now, finding, "the step time is as before again")
        if reported or _has_kind(job, Kind.RANK_SLOW) or job.stopping_finding() is not None:
            return
        change = find_pace_change(steps, begins, pace)
        if change is not None:
            body = narration.slow_together_body(job, change, now)
            detail = {"before_ns": change.before_ns, "after_ns": change.after_ns}
            open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {change.step}", body=body, detail=detail)


def _calls(rows: np.ndarray, stamp_ns: int) -> np.ndarray:
    """(n, 4): rank, group, sequence, stamp."""
    out = np.empty((rows.size, 4), np.int64)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = rows["rank"], rows["group"], rows["seq"], stamp_ns
    return out


def _still_open(calls: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Calls beyond the last of their rank and group that ended (calls of a group end in order, or nearly)."""
    shape = (
        int(max(calls[:, 0].max(), ended["rank"].max())) + 1,
        int(max(calls[:, 1].max(), ended["group"].max())) + 1,
    )
    last = np.full(shape, -1, np.int64)
    np.maximum.at(last, (ended["rank"], ended["group"]), ended["seq"])
    return np.asarray(calls[calls[:, 2] > last[calls[:, 0], calls[:, 1]]])


def _time_of(job: JobState, event: Event) -> int:
    """On the same clock as the rows of this node, so that what happened first comes first."""
    offset = job.offsets.get(event.identity.node)
    return event.mono_ns + offset if event.mono_ns and offset is not None else event.time_ns


def _read_ending(job: JobState, event: Event, stamp_ns: int) -> Ending:
    values = event.attributes
    exception = event.name is EventName.RANK_EXCEPTION
    phase = values.get("phase", "")
    return Ending(
        rank=event.identity.rank,
        sort="exception" if exception else "exit",
        time_ns=_time_of(job, event),
        arrived_ns=stamp_ns,
        step=int(values.get("step", -1)),
        phase=phase if isinstance(phase, str) else phase_word(int(phase)),
        type=str(values.get("type", "")),
        message=str(values.get("message", "")),
        communication=bool(values.get("communication", False)),
        signal=int(values.get("signal", 0 if exception else -1)),
        exit_code=int(values.get("exit_code", -1)),
        exit_state=int(values.get("exit_state", ExitState.RUNNING)),
        exception=bool(values.get("exception", False)),
        sender_pid=int(values.get("sender_pid", 0)),
        by_launcher=0 < int(values.get("sender_pid", 0)) == job.facts(event.identity.rank).launcher_pid,
        file=str(values.get("file", "")),
        line=int(values.get("line", 0)),
        function=str(values.get("function", "")),
    )


def _of_kind(job: JobState, kind: Kind) -> list[OpenFinding]:
    """Open findings of this kind in the current attempt."""
    return [f for f in job.findings.values() if f.kind == kind.value and f.attempt == job.attempt]


def _has_kind(job: JobState, kind: Kind) -> bool:
    return bool(_of_kind(job, kind))
