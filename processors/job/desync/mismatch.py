"""Compares signatures when it may matter: near calls that stay open, at closing, before anything else is blamed.

A mismatch explains whatever else stops an attempt, also what was said before its rows came in.
"""

from __future__ import annotations

from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..detectors.desync.matching import Mismatch, judge_mismatch
from ..findings.register import open_finding, replace_finding
from ..state.finding_memory import AskedCall, FindingDetail
from ..state.job_state import JobState
from . import desync_report

#: A signal for a whole process group reaches ranks as soon as us, who may be slow to note it.
SIGNAL_DOUBT_NS = 100_000_000


#: Ranks of each side whose lines of code are asked for.
MOST_GUILTY, MOST_INNOCENT = 4, 2
#: For so long a mismatch of a few waits for the votes of those who have yet to come to that call.
UNDECIDED_NS = 2_000_000_000


def report_mismatch(job: JobState, mismatch: Mismatch, now: int, ctx: Context) -> bool:
    """Opens a desync finding, or replaces the one that says what stopped the attempt: a mismatch explains it.

    False: who left the common path is not decided yet, look again. True: reported, or to be left as it is (a desync or
    a stopped rank is told already, or the job was asked to stop).
    """
    finding = job.findings.stopping()
    if finding is not None and finding.kind in (Kind.DESYNC.value, Kind.RANK_STOPPED.value):
        return True
    # Ranks that are told to stop leave their way: some frameworks talk to each other from the signal's handler.
    if job.findings.has_kind(Kind.PLANNED_STOP) or 0 < job.ends.signalled_ns <= mismatch.onset_ns + SIGNAL_DOUBT_NS:
        return True
    earlier = job.steps.recent[job.steps.recent["step"] < max(member.step for member in mismatch.members)]
    divergence = judge_mismatch(mismatch, earlier, job.steps.last_seqs.get(mismatch.group))
    if divergence.by == "none" and _more_are_to_come(job, mismatch):
        return False
    body = desync_report.mismatch_body(job, mismatch, divergence, now)
    parties = [*divergence.guilty[:MOST_GUILTY], *divergence.innocent[:MOST_INNOCENT]]
    detail = FindingDetail(calls=tuple(AskedCall(rank, mismatch.group, False, mismatch.seq) for rank in parties))
    if finding is not None:
        replace_finding(job, ctx, now, finding, kind=Kind.DESYNC, body=body, detail=detail)
        return True
    place = f"{job.groups.known[mismatch.group].uid}:{mismatch.seq}"
    open_finding(
        job,
        ctx,
        now,
        kind=Kind.DESYNC,
        place=place,
        body=body,
        group=mismatch.group,
        seq=mismatch.seq,
        detail=detail,
    )
    return True


def _more_are_to_come(job: JobState, mismatch: Mismatch) -> bool:
    """Whether living members of the group are still on their way to the call, and the first there not long."""
    if job.ends.endings:
        return False
    there = {member.rank: member for member in mismatch.members}
    hidden = job.hidden_ranks()
    missing = [rank for rank in job.groups.members[mismatch.group].tolist() if rank not in there and rank not in hidden]
    if not any(rank in job.ranks and not job.has_left(rank) for rank in missing):
        return False
    rows = ((member, job.progress.row_of(rank)) for rank, member in there.items())
    return all(row is not None and int(row["read_ns"]) - member.enqueued_ns < UNDECIDED_NS for member, row in rows)
