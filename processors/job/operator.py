"""JobOperator: who is stuck, who diverged, who is slow, who died first, inside one job. Pure; one key is one job.

Decisions are taken at places of the record stream that do not depend on batches: at a record that can change the
answer, or at a stamp that was asked for (``JobState.due_ns``), whether a timer or the next record gets there first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...telemetry.kind_sets import SPEED_KINDS
from ...telemetry.records import Block, Event, Flush, Record
from ...telemetry.vocabulary import EventName, Kind
from ..operator import Context, Timer
from .accounting.guarded_accounting import begin_attempt, look
from .crash.crashes import judge_crash
from .crash.job_end import LAST_WORDS_NS, begin_again, have_all_ended, judge_over
from .desync.mismatch import report_mismatch
from .events import TAKE
from .findings.register import clear_finding, follow_restart, revise_all
from .hang.dump_verdicts import judge_dumps
from .hang.hangs import judge_waits
from .hang.ras_answers import judge_ras
from .hang.rendezvous import judge_joining
from .hang.stopped_ranks import judge_stops
from .intake.bounds import is_within_bounds, most_ranks, tell_dropped
from .intake.check_interval import is_look_due
from .intake.device_groups import has_device_groups
from .intake.ingest import take_in
from .intake.starting import is_of_a_start
from .nodes.lost_nodes import judge_nodes
from .nodes.silent_nodes import hear, judge_silence, listen_on, note_progress, note_silence
from .numeric.bad_losses import judge_bad_losses
from .saves.emergency_outcome import judge_emergency
from .saves.save_findings import judge_unfinished
from .state.attempts import Place, place_of
from .state.job_state import JobState
from .state.micro_batch import FEWEST_NODES, Gathered, have_groups, tables_of
from .steps.closed_steps import (
    close_ready_steps,
    judge_counts,
    judge_late_numbers,
    judge_open_calls,
)
from .steps.closing_times import CLOSE_ROWS, CLOSE_SOON_NS, closing_patience_ns
from .steps.step_watermark import is_early, most_pending_rows, prune_pending
from .topology.placement import end_placement, follow_placement
from .torchrun_worlds import Worlds

NUMBER_HOLD_NS = 1_000_000_000
#: The steps of those counts, and what other nodes flush at the same time, come in right after.
COUNTS_HOLD_NS = 100_000_000
#: Jobs that are held beside their rows.
MAX_HELD = 4_096
_LOOK = "look"
#: What is known of a job goes so long after its last record.
KEPT_NS = 24 * 3_600_000_000_000
_FORGET = "forget"
_ENDS = frozenset({EventName.RANK_EXIT, EventName.LAUNCH_ENDED})
_IGNORED = frozenset(
    {EventName.EVIDENCE_REQUEST, EventName.AGENT_HEALTH, EventName.TICK, EventName.INPUT_SILENT}
    | {EventName.FINDING, EventName.INCIDENT}
)


class JobOperator:
    """Finds what is wrong inside jobs, from their blocks and events. One instance serves all jobs.

    Working copies are checked against the rows at every call.
    """

    name = "job"
    contains_itself = False
    keys_are_jobs = True
    #: A job takes 20 kB at least.
    most_keys = 16_384

    def __init__(self, *, listens: bool = False) -> None:
        """listens: tell silent nodes and the job's end from the records alone, as over Kafka, where nobody tells of
        them.
        """
        self._listens = listens
        self._jobs: dict[str, Worlds] = {}  # the longest unused first
        #: Stamp of the last record of each job whose working copy has made room.
        self._heard_ns: dict[str, int] = {}

    def forget(self, ctx: Context) -> None:
        """Ends the job's findings, and deletes what is known of it."""
        self._end(
            self._load(ctx), ctx, "the judge keeps no more jobs, and nothing has been heard of this one for longest"
        )

    def spare(self, ctx: Context) -> bool:
        """Never asked: ``forget`` ends what there is."""
        return False

    def let_go(self, key: str) -> None:
        """Drops the job's state from memory; its saved rows stay, and the next record loads them."""
        self._jobs.pop(key, None)

    def key_of(self, record: Record) -> str | None:
        """The job of a block or event; None where it names none, or is of a kind that jobs ignore."""
        payload = record.payload
        if isinstance(payload, Block | Flush) or (isinstance(payload, Event) and payload.name not in _IGNORED):
            return payload.identity.job or None
        return None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Takes in blocks and events of one job in their order, and judges at records and at stamps due between them.

        Saves the job's state at the end.
        """
        worlds = self._load(ctx)
        if not worlds.heard_ns:
            ctx.set_timer(_FORGET, ctx.now + KEPT_NS)
        worlds.heard_ns = ctx.now
        only_held = True
        before_ns = records[0].stamp_ns
        for record in records:
            if 0 < worlds.due_ns <= record.stamp_ns:
                if record.stamp_ns > before_ns:
                    self._pass_to(record.stamp_ns, worlds, ctx)
                worlds.look_until(record.stamp_ns, lambda job: self._look(job, ctx))
                only_held = False
            before_ns = record.stamp_ns
            payload = record.payload
            if isinstance(payload, Block | Flush):
                for job in worlds.of(payload):
                    only_held &= self._take_flush(job, payload, record.stamp_ns, ctx)
                    if job.placement.changed or job.placement.due_ns:
                        follow_placement(job, record.stamp_ns, ctx)
                        only_held = False
            elif isinstance(payload, Event):
                only_held = False
                for job in worlds.of(payload):
                    self._take_event(job, payload, record.stamp_ns, ctx)
                    if job.dropped_rows:
                        tell_dropped(job, record.stamp_ns, ctx)
                    if job.placement.changed or job.placement.due_ns:
                        follow_placement(job, record.stamp_ns, ctx)
        if not (only_held and worlds.hold_only):  # most messages of a large job
            self._save(worlds, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Judges what is due where no record came; or forgets a job not heard of for KEPT_NS."""
        worlds = self._load(ctx)
        if timer.name == _FORGET:
            self._forget(worlds, ctx)
            return
        worlds.look_until(timer.due_ns, lambda job: self._look(job, ctx))
        if self._listens:
            for job in worlds.states:
                judge_silence(job, timer.due_ns, ctx)
        self._save(worlds, ctx)

    def _pass_to(self, stamp_ns: int, worlds: Worlds, ctx: Context) -> None:
        """What ``on_timer`` would do by then: many records come at once (``flink.shard``), and time passes in them."""
        while 0 < worlds.due_ns <= stamp_ns:
            due_ns = worlds.due_ns
            worlds.look_until(due_ns, lambda job: self._look(job, ctx))
            if self._listens:
                for job in worlds.states:
                    judge_silence(job, due_ns, ctx)

    # --- state ------------------------------------------------------------------------------------------------------
    def _load(self, ctx: Context) -> Worlds:
        worlds = self._jobs.pop(ctx.key, None)
        if worlds is None or not worlds.are_current(ctx):
            worlds = Worlds.load(ctx)
            worlds.heard_ns = self._heard_ns.pop(ctx.key, 0)
            if len(self._jobs) >= MAX_HELD:
                oldest = next(iter(self._jobs))
                self._heard_ns[oldest] = self._jobs.pop(oldest).heard_ns
        self._jobs[ctx.key] = worlds
        return worlds

    def _save(self, worlds: Worlds, ctx: Context) -> None:
        worlds.save(ctx)
        if worlds.due_ns:
            ctx.set_timer(_LOOK, worlds.due_ns)
        else:
            ctx.clear_timer(_LOOK)

    def _forget(self, worlds: Worlds, ctx: Context) -> None:
        """Unless something was heard since the timer was set; after a restart nobody knows."""
        until_ns = (worlds.heard_ns or ctx.now) + KEPT_NS
        if until_ns > ctx.now:
            worlds.heard_ns = worlds.heard_ns or ctx.now
            ctx.set_timer(_FORGET, until_ns)
            return
        self._end(worlds, ctx, "nothing has been heard of the job for a day")

    def _end(self, worlds: Worlds, ctx: Context, because: str) -> None:
        for job in worlds.states:
            for finding in job.findings.all():
                clear_finding(job, ctx, ctx.now, finding, because)
        worlds.delete(ctx)
        ctx.clear_timer(_LOOK)
        ctx.clear_timer(_FORGET)
        self._jobs.pop(ctx.key, None)

    def _look(self, job: JobState, ctx: Context) -> None:
        """Takes the decision that is due, at its own stamp, after all that has come before it."""
        now = job.next_due_ns()
        self._take_gathered(job, now, ctx)
        if job.due_ns != now:
            return
        job.due_ns = 0
        judge_dumps(job, now, ctx)
        judge_ras(job, now, ctx)
        if job.ends.finished_ns:
            return  # the last word has been said
        judge_stops(job, now, ctx)
        judge_open_calls(job, now, ctx)
        judge_crash(job, now, ctx)
        judge_nodes(job, now, ctx)
        judge_late_numbers(job, now, ctx)
        judge_counts(job, now, ctx)
        judge_bad_losses(job, now, ctx)
        judge_unfinished(job, now, ctx)
        judge_emergency(job, now, ctx)
        if self._listens:
            listen_on(job, now)
            judge_over(job, now, ctx)
        elif job.open_steps.steps.size and have_all_ended(job):
            close_ready_steps(job, now, ctx)  # nobody is left to say that the job is over: its whichrank was killed
        revise_all(job, ctx, now)

    def _enter(self, job: JobState, payload: Block | Flush | Event, now: int, ctx: Context) -> bool:
        """Makes the record's attempt the current one. False: the record belongs to an attempt that is over."""
        identity = payload.identity
        if identity.cluster and not job.cluster:
            job.cluster, job.run, job.job = identity.cluster, identity.run, identity.job
            job.unsaved.facts = True
        attempt, attempts = identity.attempt, job.attempts
        if not attempt or (attempt in attempts.members and identity.rank < 0):
            return True
        place = place_of(payload, attempts, most_ranks(job))
        return self._settle(job, place, now, ctx)

    def _settle(self, job: JobState, place: Place, now: int, ctx: Context) -> bool:
        """What it means for the state that a record of this attempt has this place."""
        if place is Place.PAST:
            return False
        if place is Place.BEGINS and job.attempt:
            judge_crash(job, now, ctx, finished=True)
            judge_emergency(job, now, ctx, is_over=True)
            for finding in job.findings.all():
                if finding.kind in (Kind.RANK_SLOW.value, Kind.SLOW_TOGETHER.value, Kind.INPUT_SILENT.value):
                    clear_finding(job, ctx, now, finding, "the job was restarted")
            end_placement(job, job.last_exit_ns() or now, now, ctx)
            job.checkpoints.steps_before = job.checkpoints.saved_steps
            begin_attempt(job, job.checkpoints.saved_steps, now, ctx)
            job.begin_attempt(job.attempts.name)
            if self._listens:
                begin_again(job)  # also where nobody heard its ranks start
            follow_restart(job, ctx, now)
        elif place is Place.BEGINS:
            job.name_attempt(job.attempts.name)
        job.unsaved.facts = True
        return True

    # --- flushes ----------------------------------------------------------------------------------------------------
    def _take_flush(self, job: JobState, told: Block | Flush, stamp_ns: int, ctx: Context) -> bool:
        """Whether the flush is only held, to be taken with others, and has changed nothing else that is kept."""
        tables = tables_of(told)
        if not tables:
            return True
        if not job.is_of_current_attempt(told.identity):
            self._take_gathered(job, stamp_ns, ctx)
            if not self._enter(job, told, stamp_ns, ctx):
                return False
        node = told.identity.node
        if self._listens:
            hear(job, node, told.time_ns, stamp_ns, ctx)
        if node not in job.nodes.offsets:
            known = job.nodes.offset_of(node)
            job.nodes.offsets[node] = told.clock_offset_ns if known is None else known
            job.unsaved.facts = True
        gathered = Gathered(
            node=node,
            stamp_ns=stamp_ns,
            closed_ns=told.time_ns - told.clock_offset_ns,
            offset_ns=job.nodes.offsets[node],
            groups=job.groups.lookup(told.groups) if have_groups(tables) else None,
            tables=tables,
        )
        if len(job.nodes.offsets) < FEWEST_NODES:
            self._take_gathered(job, stamp_ns, ctx)
            self._take_in(job, [gathered], stamp_ns, ctx)
            return False
        holds = job.gathering.holds(node, tables)
        if holds:
            self._take_gathered(job, stamp_ns, ctx)
        job.gathering.add(gathered)
        return not holds

    def _take_gathered(self, job: JobState, now: int, ctx: Context) -> None:
        if job.gathering.due_ns:
            self._take_in(job, job.gathering.take(), now, ctx)

    def _take_in(self, job: JobState, flushes: Sequence[Gathered], now: int, ctx: Context) -> None:
        looked_ns = job.progress.newest_stamp_ns
        came = take_in(job, flushes)
        if job.dropped_rows:
            tell_dropped(job, now, ctx)
        if came.steps_begin:
            for finding in [each for each in job.findings.by_key.values() if each.kind in SPEED_KINDS]:
                clear_finding(job, ctx, now, finding, "an optimizer makes the steps from here on")
        if came.counts_differ and not job.steps.counts_due_ns:
            job.steps.counts_due_ns = now + COUNTS_HOLD_NS
            job.schedule(job.steps.counts_due_ns)
        if came.bad_number and not job.steps.number_due_ns:
            job.steps.number_due_ns = now + NUMBER_HOLD_NS
            job.schedule(job.steps.number_due_ns)
        if came.collectives and job.open_steps.calls.size > most_pending_rows(job):
            mismatch = prune_pending(job)
            if mismatch is not None:
                report_mismatch(job, mismatch, now, ctx)
        if came.step_length_ns:
            self._close_after_steps(job, came.step_length_ns, now, ctx)
        if came.collectives or came.device_sums:
            self._close_what_devices_ended(job, now, ctx)
        if came.progress:
            self._judge_progress(job, came.progress, looked_ns, now, ctx)

    def _judge_progress(
        self, job: JobState, flushes: Sequence[Gathered], before_ns: int, now: int, ctx: Context
    ) -> None:
        """before_ns: when the last progress came before these."""
        if job.ends.finished_ns:
            return  # ranks that outlive the command are nobody's job any more
        if self._listens:
            note_progress(job, flushes[-1].stamp_ns, ctx)
            for flush in flushes:
                note_silence(job, flush.node, flush.stamp_ns)
        judge_stops(job, now, ctx)
        look(job, now, ctx)
        if is_look_due(job, before_ns, job.progress.newest_stamp_ns):
            judge_nodes(job, now, ctx)
            judge_joining(job, now, ctx)
            judge_waits(job, now, ctx)

    def _close_after_steps(self, job: JobState, length_ns: int, now: int, ctx: Context) -> None:
        """length_ns: of the steps that were just told."""
        if job.steps.number_due_ns or job.open_steps.calls.size >= CLOSE_ROWS:
            close_ready_steps(job, now, ctx)
            return
        passed_ns = now - job.open_steps.closed_stamp_ns
        if passed_ns >= CLOSE_SOON_NS and passed_ns >= closing_patience_ns(job, length_ns):
            close_ready_steps(job, now, ctx)

    def _close_what_devices_ended(self, job: JobState, now: int, ctx: Context) -> None:
        """A device's last end of a step is seen after the step, and told later: without this it is closed with the
        next one."""
        passed_ns = now - job.open_steps.closed_stamp_ns
        if passed_ns < CLOSE_SOON_NS or not has_device_groups(job) or not job.open_steps.steps.size or is_early(job):
            return
        length_ns = job.open_steps.next_length_ns(job.steps.closed_step)
        if length_ns and passed_ns >= closing_patience_ns(job, length_ns):
            close_ready_steps(job, now, ctx)

    # --- events -----------------------------------------------------------------------------------------------------
    def _take_event(self, job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
        if event.name is EventName.LAUNCH_MET:
            if not is_of_a_start(job, event):
                self._take_gathered(job, stamp_ns, ctx)
            place = job.attempts.tell_token(event.identity.attempt, str(event.attributes.get("token", "")))
            self._settle(job, place, stamp_ns, ctx)
            return
        take = TAKE.get(event.name)
        if take is None or not is_within_bounds(job, event):
            return
        if not is_of_a_start(job, event):
            self._take_gathered(job, stamp_ns, ctx)
        if not self._enter(job, event, stamp_ns, ctx):
            return
        if self._listens and event.identity.rank >= 0:
            hear(job, event.identity.node, event.time_ns, stamp_ns, ctx)
        if self._listens and event.name is EventName.RANK_STARTED:
            begin_again(job)
        job.unsaved.facts = True
        take(job, event, stamp_ns, ctx)
        if event.name in _ENDS:
            job.schedule(stamp_ns + LAST_WORDS_NS)  # not at each of a large job's ends
