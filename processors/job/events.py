"""What single events change in a job's state, and which judgement each one calls for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...telemetry.records import Event, Group
from ...telemetry.vocabulary import EventName, ExitState, Kind, Level, Severity
from ..operator import Context
from .accounting.checkpoint_progress import note_exit
from .accounting.resumed_checkpoint import note_checkpoint
from .crash.crash_report import planned_body
from .crash.crashes import judge_crash, note_ending
from .crash.job_end import say_last_words
from .detectors.crash.crash_order import Ending, role_hint, weigh_thread_error
from .findings.call_sites import take_calls
from .findings.register import clear_finding, open_finding, revise_all
from .findings.wording import phase_word
from .hang.dump_verdicts import take_dump
from .hang.ras_answers import take_ras
from .hang.rendezvous import end_joining
from .hang.stopped_ranks import SIGN_OF_LIFE_NS, STOP_HOLD_NS
from .hang.urgency import STILL_BEFORE_END_NS, Motion, motion_of
from .intake.bounds import told_world_size
from .nodes.lost_nodes import judge_nodes
from .nodes.silent_nodes import clear_lost
from .numeric.bad_inputs import take_bad_input
from .numeric.bad_losses import BAD_LOSS_HOLD_NS
from .numeric.number_findings import revise_number_findings
from .saves.emergency_outcome import take_emergency
from .saves.save_states import take_save_state
from .state.job_state import JobState
from .state.rank_state import OpenFinding, RankStack
from .topology.placement import begin_placement_again


def _take_job_started(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    if job.ends.finished_ns:  # all commands had ended, and this is a new life of the job
        begin_placement_again(job)
        job.ends.finished_ns = job.ends.signalled_ns = job.ends.exit_code = 0
        if event.attributes.get("restarted"):
            _leave_start_before(job, event.time_ns)
    node = job.nodes.facts(event.identity.node)
    node.started, node.finished, node.state = True, False, "here"
    job.ledger.note_begin(event.time_ns)
    job.nodes.expected = max(job.nodes.expected, int(event.attributes.get("nodes", 0)))
    job.world_size = job.world_size or told_world_size(event)
    job.name = str(event.attributes.get("job_name", "")) or job.name


def _leave_start_before(job: JobState, time_ns: int) -> None:
    """whichrank has started its command again: it held its machines meanwhile, and no rank from before is left.

    Also none on a node that is lost, of whose end nobody tells: what starts now is the next attempt of its world.
    """
    job.ledger.is_over, job.ledger.changed = False, True
    for rank in job.alive():
        job.facts(rank).exited_ns = time_ns


def _take_job_signalled(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    if any(role_hint(ending) in ("signal", "error", "code") for ending in job.ends.endings):
        judge_crash(job, stamp_ns, ctx, finished=True)
    asked_ns = job.nodes.time_of(event)
    job.ends.signalled_ns = job.ends.signalled_ns or asked_ns
    noticed = job.findings.noticed_wait()
    if noticed is not None and _may_go_on(job, noticed):
        clear_finding(job, ctx, stamp_ns, noticed, "the job was asked to stop, and the one waited for was at work")
    if job.findings.stopping() is None and not job.findings.has_kind(Kind.PLANNED_STOP):
        body = planned_body(job, (), asked_ns, stamp_ns)
        open_finding(job, ctx, stamp_ns, kind=Kind.PLANNED_STOP, place="job", body=body)


def _may_go_on(job: JobState, noticed: OpenFinding) -> bool:
    """A wait for ranks that are at work is none that somebody has ended."""
    is_young = noticed.body.severity is Severity.INFO
    return is_young and all(
        motion_of(job, rank, still_ns=STILL_BEFORE_END_NS) is Motion.MOVES for rank in noticed.suspects
    )


def _take_job_finished(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """One node's command has ended; the job has when all have that were started."""
    job.ends.exit_code = job.ends.exit_code or int(event.attributes.get("exit_code", 0))
    job.nodes.facts(event.identity.node).finished = True
    _end_if_over(job, event.time_ns, stamp_ns, ctx)


def _end_if_over(job: JobState, ended_ns: int, stamp_ns: int, ctx: Context) -> None:
    """Nothing more will come: what is held is decided now, and what cannot last longer than the job ends."""
    if any(node.started and not node.finished and node.state == "here" for node in job.nodes.known.values()):
        return
    say_last_words(job, ended_ns, stamp_ns, ctx, asked=bool(job.ends.signalled_ns) or job.ends.exit_code == 0)


def _take_group(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    values = event.attributes
    if values.get("uid"):
        job.groups.add(
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


def _take_rank_started(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    job.set_node(event.identity.rank, event.identity.node)
    pid = int(event.attributes.get("pid", 0))
    if facts.exited_ns and pid != facts.pid:
        # A check that a wrapper script ran before its trainer had the rank's variables, and was not the rank.
        facts.exited_ns = facts.stopped_ns = 0
        job.ends.endings = [ending for ending in job.ends.endings if ending.rank != event.identity.rank]
    facts.pid = pid
    facts.local_rank = int(event.attributes.get("local_rank", -1))
    facts.started_ns = event.time_ns
    job.ledger.note_started(event.time_ns)
    facts.launcher_pid = int(event.attributes.get("launcher_pid", 0))
    facts.checks_inputs = bool(event.attributes.get("checks_inputs"))
    job.world_size = max(job.world_size, told_world_size(event))
    job.name = job.name or str(event.attributes.get("job_name", ""))
    if "owner_uid" in event.attributes:
        job.placement.owner = job.placement.owner or f"uid {event.attributes['owner_uid']}"
    end_joining(job, stamp_ns, ctx)


def _take_joining(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    job.set_node(event.identity.rank, event.identity.node)
    if event.attributes.get("joined"):
        facts.joined = True
    elif not facts.joining_ns:
        facts.joining_ns = job.nodes.time_of(event)
        facts.join_timeout_s = float(event.attributes.get("timeout_s", 0.0))
    end_joining(job, stamp_ns, ctx)


def _take_ending(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    ending = _read_ending(job, event, stamp_ns)
    if ending.sort == "exit" and ending.rank in job.ends.raised:
        job.ends.endings = weigh_thread_error(job.ends.endings, ending)
    else:
        job.ends.endings.append(ending)
    if ending.sort == "exception":
        job.ends.raised.add(ending.rank)
    if ending.sort == "exit":
        facts = job.facts(ending.rank)
        facts.exited_ns = ending.time_ns
        facts.stopped_ns = 0
        job.ledger.note_exit(ending.time_ns)
        note_exit(job, ending.rank, ending.step, ending.phase, ending.time_ns)
    note_ending(job, stamp_ns, ctx)


def _take_launch_ended(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    job.attempts.note_over(event.identity.attempt)


def _take_stopped(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    job.set_node(event.identity.rank, event.identity.node)
    if not facts.stopped_ns:
        facts.stopped_ns, facts.stopped_stamp_ns = job.nodes.time_of(event), stamp_ns
        job.may_be_stopped = True
    if event.attributes.get("left_behind"):  # it lasted until somebody came to read the rings: nothing to wait for
        facts.stopped_stamp_ns = stamp_ns - SIGN_OF_LIFE_NS
    job.schedule(stamp_ns + STOP_HOLD_NS)


def _take_continued(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    rank = event.identity.rank
    facts = job.facts(rank)
    facts.stopped_ns = facts.stopped_stamp_ns = 0
    facts.continued_ns = job.nodes.time_of(event)
    row = job.progress.row_of(rank)
    if row is not None:
        job.progress.rows[rank]["process_state"] = 0  # until the next row says
        job.unsaved.progress = True
    for finding in job.findings.of_kind(Kind.RANK_STOPPED):
        if rank in finding.suspects:
            clear_finding(job, ctx, stamp_ns, finding, f"the process of rank {rank} runs again")


def _take_stale(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    job.facts(event.identity.rank).stale_ns = job.nodes.time_of(event)


def _take_stack(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    values, facts, time_ns = event.attributes, job.facts(event.identity.rank), job.nodes.time_of(event)
    if facts.stack is not None and facts.stack.time_ns <= job.ends.signalled_ns < time_ns:
        return  # where it cleans up, and not where it stood when somebody ended it
    if values.get("file"):
        facts.stack = RankStack(
            file=str(values["file"]),
            line=int(values.get("line", 0)),
            function=str(values.get("function", "")),
            method=str(values.get("method", "")),
            phase=str(values.get("phase", "")),
            time_ns=time_ns,
        )
        revise_all(job, ctx, stamp_ns)


def _take_calls(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    if take_calls(job, event):
        revise_all(job, ctx, stamp_ns)


def _take_bad_loss(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    if not facts.bad_loss:
        facts.bad_loss = str(event.attributes.get("value", "NaN"))
        facts.bad_loss_ns = job.nodes.time_of(event)
        facts.bad_loss_calls = int(event.attributes.get("calls", 0))
        job.unsaved.facts = job.progress.may_have_bad_loss = True
        job.schedule(stamp_ns + BAD_LOSS_HOLD_NS)


def _take_bad_input(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    if take_bad_input(job, event):
        revise_number_findings(job, ctx, stamp_ns)


def _take_level(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    level = event.attributes.get("level")
    if level in (int(Level.OFF), Level.OFF.name.lower()):
        job.blind_ranks.add(event.identity.rank)


def _take_peer_connected(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    name = event.identity.node
    if event.attributes.get("role") == "judge":
        job.judged_by, job.judge_left = name, False
        for finding in job.findings.all():
            clear_finding(job, ctx, stamp_ns, finding, f"whichrank on {name}, which sees more, judges from now on")
        return
    job.nodes.facts(name).state = "here"
    _take_peer_clock(job, event, stamp_ns, ctx)
    clear_lost(job, name, stamp_ns, ctx)


def _take_peer_clock(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    offset = int(event.attributes.get("offset_ns", 0))
    if offset:
        job.nodes.facts(event.identity.node).offset_ns = offset
        if event.identity.node in job.nodes.offsets:
            job.nodes.offsets[event.identity.node] = offset


def _take_peer_lost(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    why = str(event.attributes.get("why", "closed"))
    if event.attributes.get("role") == "judge":
        if why == "left":
            job.judge_left = True
        else:
            job.judged_by = ""
        return
    node = job.nodes.facts(event.identity.node)
    node.state, node.lost_ns = why, stamp_ns
    node.silent_ns = int(event.attributes.get("silent_ns", 0))
    judge_nodes(job, stamp_ns, ctx)
    if any(other.finished for other in job.nodes.known.values()) and not job.ends.finished_ns:
        _end_if_over(job, event.time_ns, stamp_ns, ctx)


def _take_agent_stopped(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """Nothing more is seen of its node for a while. Where connections are watched, these tell."""
    node = job.nodes.facts(event.identity.node)
    if node.state == "here" and event.identity.node in job.nodes.heard:
        node.state, node.lost_ns, node.stopped_ns = "stopped", stamp_ns, event.time_ns


def _read_ending(job: JobState, event: Event, stamp_ns: int) -> Ending:
    values = event.attributes
    exception = event.name is EventName.RANK_EXCEPTION
    phase = values.get("phase", "")
    return Ending(
        rank=event.identity.rank,
        sort="exception" if exception else "exit",
        time_ns=job.nodes.time_of(event),
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
        pid=int(values.get("pid", 0)),
        sender_pid=int(values.get("sender_pid", 0)),
        by_launcher=0 < int(values.get("sender_pid", 0)) == job.facts(event.identity.rank).launcher_pid,
        in_main=bool(values.get("in_main", True)),
        file=str(values.get("file", "")),
        line=int(values.get("line", 0)),
        function=str(values.get("function", "")),
    )


def _take_device(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """The driver says on which device the rank's process is; several: the first."""
    facts = job.facts(event.identity.rank)
    if event.attributes.get("certainty") != "doubtful":
        facts.gpu = facts.gpu or str(event.attributes.get("gpu_uuid", ""))


def _take_scheduler(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """How many GPUs the job holds, ranks or not."""
    if event.attributes.get("what") == "allocation":
        job.placement.gpus_held = max(0, int(event.attributes.get("gpus", 0)))


def _take_checkpoint(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    values = event.attributes
    place, is_read = str(values["checkpoint"]), bool(values["read"])
    note_checkpoint(job, place, step=int(values.get("step", 0)), is_read=is_read)


#: What each event calls for; other events are none of this operator's business.
TAKE: Mapping[EventName, Callable[[JobState, Event, int, Context], None]] = {
    EventName.JOB_STARTED: _take_job_started,
    EventName.JOB_SIGNALLED: _take_job_signalled,
    EventName.JOB_FINISHED: _take_job_finished,
    EventName.GROUP_DEFINED: _take_group,
    EventName.RANK_STARTED: _take_rank_started,
    EventName.RANK_JOINING: _take_joining,
    EventName.RANK_EXCEPTION: _take_ending,
    EventName.RANK_EXIT: _take_ending,
    EventName.LAUNCH_ENDED: _take_launch_ended,
    EventName.RANK_STOPPED: _take_stopped,
    EventName.RANK_CONTINUED: _take_continued,
    EventName.RANK_STALE: _take_stale,
    EventName.RANK_STACK: _take_stack,
    EventName.RANK_CALLS: _take_calls,
    EventName.RANK_FLIGHT_RECORDER: take_dump,
    EventName.NCCL_RAS: take_ras,
    EventName.RANK_BAD_LOSS: _take_bad_loss,
    EventName.RANK_BAD_INPUT: _take_bad_input,
    EventName.RANK_LEVEL: _take_level,
    EventName.RANK_DEVICE: _take_device,
    EventName.SCHEDULER: _take_scheduler,
    EventName.RANK_CHECKPOINT: _take_checkpoint,
    EventName.CHECKPOINT_STATE: take_save_state,
    EventName.CHECKPOINT_EMERGENCY: take_emergency,
    EventName.AGENT_STOPPED: _take_agent_stopped,
    EventName.PEER_CONNECTED: _take_peer_connected,
    EventName.PEER_CLOCK: _take_peer_clock,
    EventName.PEER_LOST: _take_peer_lost,
}
