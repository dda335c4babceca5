"""What single events change in a job's state, and which judgement each one calls for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...telemetry.records import Event, Group
from ...telemetry.vocabulary import EventName, ExitState, Kind, Level
from ..operator import Context
from .crash_order import Ending, role_hint, weigh_thread_error
from .crash_story import planned_body
from .crashes import judge_crash
from .findings import clear_finding, open_finding, revise, revise_all
from .hangs import SIGN_OF_LIFE_NS, STOP_HOLD_NS
from .joining import end_joining
from .state import JobState
from .steps import close_ready_steps, judge_late_numbers
from .words import phase_word


def _take_job_started(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    job.finished_ns = job.signalled_ns = 0
    job.world_size = job.world_size or int(event.attributes.get("world_size", 0))
    job.name = str(event.attributes.get("job_name", "")) or job.name


def _take_job_signalled(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    if any(role_hint(ending) in ("signal", "error", "code") for ending in job.endings):
        judge_crash(job, stamp_ns, ctx, finished=True)
    job.signalled_ns = job.signalled_ns or event.time_ns
    if job.stopping_finding() is None and not job.has_kind(Kind.PLANNED_STOP):
        body = planned_body(job, (), event.time_ns, stamp_ns)
        open_finding(job, ctx, stamp_ns, kind=Kind.PLANNED_STOP, place="job", body=body)


def _take_job_finished(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """Nothing more will come: what is held is decided now, and what cannot last longer than the job ends."""
    job.finished_ns = event.time_ns
    job.exit_code = int(event.attributes.get("exit_code", 0))
    close_ready_steps(job, stamp_ns, ctx)
    judge_crash(job, stamp_ns, ctx, finished=True)
    judge_late_numbers(job, stamp_ns, ctx, finished=True)
    asked = bool(job.signalled_ns) or job.exit_code == 0
    for finding in list(job.findings.values()):
        finding.shown_ns = 0  # the last word must not wait for the revision gap
        revise(job, ctx, stamp_ns, finding)
        if asked or finding.kind in (Kind.RANK_SLOW.value, Kind.SLOW_TOGETHER.value):
            clear_finding(job, ctx, stamp_ns, finding, "the job ended")


def _take_group(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
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


def _take_rank_started(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    job.set_node(event.identity.rank, event.identity.node)
    facts.pid = int(event.attributes.get("pid", 0))
    facts.local_rank = int(event.attributes.get("local_rank", -1))
    facts.started_ns = event.time_ns
    facts.launcher_pid = int(event.attributes.get("launcher_pid", 0))
    job.world_size = max(job.world_size, int(event.attributes.get("world_size", 0)))
    end_joining(job, stamp_ns, ctx)


def _take_joining(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    job.set_node(event.identity.rank, event.identity.node)
    if event.attributes.get("joined"):
        facts.joined = True
    elif not facts.joining_ns:
        facts.joining_ns = _time_of(job, event)
        facts.join_timeout_s = float(event.attributes.get("timeout_s", 0.0))
    end_joining(job, stamp_ns, ctx)


def _take_ending(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    ending = _read_ending(job, event, stamp_ns)
    if ending.sort == "exit":
        job.endings = weigh_thread_error(job.endings, ending)
    else:
        job.endings.append(ending)
    if ending.sort == "exit":
        facts = job.facts(ending.rank)
        facts.exited_ns = ending.time_ns
        facts.stopped_ns = 0
    judge_crash(job, stamp_ns, ctx)


def _take_stopped(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    facts = job.facts(event.identity.rank)
    job.set_node(event.identity.rank, event.identity.node)
    if not facts.stopped_ns:
        facts.stopped_ns, facts.stopped_stamp_ns = _time_of(job, event), stamp_ns
    if event.attributes.get("left_behind"):  # it lasted until somebody came to read the rings: nothing to wait for
        facts.stopped_stamp_ns = stamp_ns - SIGN_OF_LIFE_NS
    job.schedule(stamp_ns + STOP_HOLD_NS)


def _take_continued(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    rank = event.identity.rank
    facts = job.facts(rank)
    facts.stopped_ns = facts.stopped_stamp_ns = 0
    facts.continued_ns = _time_of(job, event)
    row = job.progress_row(rank)
    if row is not None:
        job.progress[rank]["process_state"] = 0  # until the next row says
        job.progress_changed = True
    for finding in job.of_kind(Kind.RANK_STOPPED):
        if rank in finding.suspects:
            clear_finding(job, ctx, stamp_ns, finding, f"the process of rank {rank} runs again")


def _take_stale(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    job.facts(event.identity.rank).stale_ns = _time_of(job, event)


def _take_stack(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
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


def _take_level(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    level = event.attributes.get("level")
    if level in (int(Level.OFF), Level.OFF.name.lower()):
        job.blind_ranks.add(event.identity.rank)


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
        pid=int(values.get("pid", 0)),
        sender_pid=int(values.get("sender_pid", 0)),
        by_launcher=0 < int(values.get("sender_pid", 0)) == job.facts(event.identity.rank).launcher_pid,
        in_main=bool(values.get("in_main", True)),
        file=str(values.get("file", "")),
        line=int(values.get("line", 0)),
        function=str(values.get("function", "")),
    )


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
    EventName.RANK_STOPPED: _take_stopped,
    EventName.RANK_CONTINUED: _take_continued,
    EventName.RANK_STALE: _take_stale,
    EventName.RANK_STACK: _take_stack,
    EventName.RANK_LEVEL: _take_level,
}
