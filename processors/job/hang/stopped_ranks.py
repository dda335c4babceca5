"""A process that is stopped (state T) while its peers run: told when they have shown it."""

from __future__ import annotations

from ....telemetry.vocabulary import Kind, ProcessState
from ...operator import Context
from ..findings.register import open_finding, replace_finding
from ..state.job_state import JobState
from . import hang_report

#: All ranks of a job that is suspended stop within this time of each other.
STOP_HOLD_NS = 250_000_000
#: A rank that lives this long after a peer stopped was not stopped with it.
WENT_ON_NS = 150_000_000
#: So long it is waited for such a sign; after that a process that does not look stopped is taken to run.
SIGN_OF_LIFE_NS = 1_500_000_000
#: All ranks of a job that is continued are seen to go on within this time of each other.
RESUME_NS = 1_500_000_000
_LOOK_AGAIN_NS = 100_000_000


def judge_stops(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding on a process that is stopped (state T) once a peer was seen to go on; sets a timer until then.

    Nothing where all are stopped, as someone wanted that, or where something graver is told.
    """
    if not job.may_be_stopped:
        return  # nearly always, and this is asked of every message
    if not any(facts.stopped_ns for facts in job.ranks.values()):
        job.may_be_stopped = False
        return
    stopped = [rank for rank in job.alive() if job.ranks[rank].stopped_ns]
    finding = job.findings.stopping()
    if not stopped or finding is not job.findings.noticed_wait():
        return
    others = [rank for rank in job.alive() if rank not in stopped]
    if not others:
        return  # the whole job is suspended, which someone wanted
    for rank in stopped:
        ready = job.ranks[rank].stopped_stamp_ns + STOP_HOLD_NS
        if now < ready:
            job.schedule(ready)
            continue
        running = [other for other in others if _went_on(job, other, rank, now)]
        if not running:
            job.schedule(now + _LOOK_AGAIN_NS)
            continue
        body = hang_report.stopped_body(job, rank, running, now)
        if finding is not None:
            replace_finding(job, ctx, now, finding, kind=Kind.RANK_STOPPED, body=body)
        else:
            open_finding(job, ctx, now, kind=Kind.RANK_STOPPED, place=f"rank {rank}", body=body)
        return


def _went_on(job: JobState, rank: int, stopped: int, now: int) -> bool:
    """Whether ``rank`` runs on after ``stopped`` was: a process is looked at seldom, so its heartbeat has to say so.

    On one node both are on one clock; another node's clock is no measure, so there it counts from the arrival.
    """
    row, facts, own = job.progress.row_of(rank), job.ranks[stopped], job.ranks[rank]
    if row is None or int(row["process_state"]) == ProcessState.STOPPED or _beats_since_its_stop(job, stopped):
        return False
    if own.continued_ns > facts.stopped_ns and int(row["read_ns"]) - own.continued_ns < RESUME_NS:
        return False  # they were stopped together, and now go on one after the other
    if now >= facts.stopped_stamp_ns + SIGN_OF_LIFE_NS:
        return True
    age_ns = int(row["heartbeat_age_ns"])
    if not age_ns:
        return False  # it has no heartbeat
    if job.node_of(rank) == job.node_of(stopped):
        return int(row["read_ns"]) - age_ns > facts.stopped_ns + WENT_ON_NS
    return int(job.progress.stamps[rank]) - age_ns > facts.stopped_stamp_ns + WENT_ON_NS


def _beats_since_its_stop(job: JobState, rank: int) -> bool:
    """A stopped process has no heartbeat: it goes on, and only the word of that is still to come."""
    row = job.progress.row_of(rank)
    if row is None or not int(row["heartbeat_age_ns"]):
        return False
    return int(row["read_ns"]) - int(row["heartbeat_age_ns"]) > job.ranks[rank].stopped_ns + WENT_ON_NS
