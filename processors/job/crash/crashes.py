"""Findings about ranks that ended: one per attempt, on the earliest initiating cause, revised if a better one comes."""

from __future__ import annotations

import re
from dataclasses import replace

from ....telemetry.vocabulary import Bucket, ExitState, Kind, Phase, Severity
from ...operator import Context
from ..detectors.crash.crash_order import SIGINT, SIGKILL, SIGTERM, CrashVerdict, Ending, Hold, judge_endings, role_hint
from ..findings.register import open_finding, raise_severity, replace_finding, revise, revise_all
from ..findings.wording import phase_word
from ..hang.hang_before_end import judge_taken_down, judge_timed_out
from ..hang.urgency import STILL_BEFORE_END_NS, Motion, motion_of
from ..nodes.lost_nodes import explain_by_node
from ..state.finding_memory import FindingDetail
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from ..steps.closed_steps import judge_signatures
from . import crash_report

#: A better cause may still replace the one that a crash was opened with.
CRASH_REVISION_NS = 10_000_000_000
#: By then the rows of the step whose numbers an error speaks of have come from all ranks.
NUMBERS_TOLD_NS = 1_000_000_000
#: A judgement goes through all endings, so of many it is made seldom: ten thousand ranks that end at once are judged
#: twice a second, the four of a small job at each ending.
_PAUSE_NS_PER_ENDING = 50_000
_NUMBER_ERROR = re.compile(r"\b(nan|inf|infinite|finite|overflow)\b", re.IGNORECASE)


def note_ending(job: JobState, now: int, ctx: Context) -> None:
    """To be called after each ending: judges the crash now, or sets a timer where many come at once."""
    due_ns = job.ends.endings_judged_ns + _PAUSE_NS_PER_ENDING * len(job.ends.endings)
    if now < due_ns:
        job.schedule(due_ns)
    else:
        judge_crash(job, now, ctx)


def judge_crash(job: JobState, now: int, ctx: Context, *, finished: bool = False) -> None:
    """Puts the attempt's endings into order; opens, replaces or revises its finding, or sets a timer where it is too
    early.

    finished: no more records will come, so nothing is held back. Does nothing once the job has ended with exit code 0
    or because it was told to: the last word on it has been said.
    """
    if job.ends.finished_ns and not finished:
        if job.ends.exit_code == 0 or job.ends.signalled_ns:
            return
        finished = True  # an exit that was seen after the command's own end
    if not any(role_hint(ending) != "none" for ending in job.ends.endings):
        return
    job.ends.endings_judged_ns, job.unsaved.facts = now, True
    judge_signatures(job, now, ctx)
    finding, noticed = job.findings.stopping(), job.findings.noticed_wait()
    is_other = finding is not None and finding is not noticed and not finding.detail.is_crash
    if is_other or job.findings.has_kind(Kind.PLANNED_STOP):
        revise_all(job, ctx, now)
        return
    # Who was never seen may be on a node from which nothing comes, and well.
    unseen = [] if job.nodes.are_missing() else [rank for rank in range(job.world_size) if rank not in job.ranks]
    verdict = judge_endings(
        job.ends.endings,
        now=now,
        ranks=job.ranks,
        unseen=unseen,
        leaving=_leaving(job, now),
        signalled_ns=job.ends.signalled_ns,
        finished=finished,
    )
    if isinstance(verdict, Hold):
        job.schedule(verdict.until_ns)
    elif verdict is not None and noticed is not None:
        _end_noticed(job, noticed, verdict, now, ctx)
    elif verdict is not None and finding is not None:
        kind, body = crash_report.crash_body(job, verdict, now)
        suspects = [item.rank for item in body.suspects]
        is_answer = bool(suspects) or body.bucket is Bucket.CAPACITY
        if suspects != finding.suspects and now - finding.found_ns < CRASH_REVISION_NS and is_answer:
            replace_finding(job, ctx, now, finding, kind=kind, body=body)
        revise(job, ctx, now, finding)
    elif verdict is not None:
        _tell_crash(job, verdict, now, ctx, finished=finished)


def _tell_crash(job: JobState, verdict: CrashVerdict, now: int, ctx: Context, *, finished: bool) -> None:
    """Open a finding of it, or of the wait or node that explains it; of numbers only once they are told."""
    if verdict.cause is not None and _speaks_of_numbers(verdict.cause):
        told_ns = verdict.cause.arrived_ns + NUMBERS_TOLD_NS
        if job.findings.has_kind(Kind.NUMERIC_ALL) or job.findings.has_kind(Kind.NUMERIC_FIRST_RANK):
            revise_all(job, ctx, now)
            return
        if now < told_ns and not finished:
            job.schedule(told_ns)
            return
    aborted = verdict.cause is None or role_hint(verdict.cause) in ("abort", "victim")
    if aborted and verdict.sort in ("died", "victims") and judge_timed_out(job, now, ctx):
        return
    if _is_taken_down(verdict) and judge_taken_down(
        job, _first_ns(verdict), now, ctx, only_still=verdict.sort != "planned"
    ):
        return
    kind, body = crash_report.crash_body(job, verdict, now)
    if verdict.sort == "victims" and not body.suspects:
        kind, body = explain_by_node(job, now) or (kind, body)
    place = f"step {body.first_bad.step}"
    open_finding(job, ctx, now, kind=kind, place=place, body=body, detail=FindingDetail(is_crash=True))


def _end_noticed(job: JobState, noticed: OpenFinding, verdict: CrashVerdict, now: int, ctx: Context) -> None:
    """Ranks end while others are seen to wait for one. What that one died of by itself is the answer; where somebody or
    a time-out has ended it all, what stood before is."""
    cause = verdict.cause
    by_itself = cause is not None and cause.rank in noticed.suspects and verdict.sort in ("raised", "died", "left")
    still = any(motion_of(job, rank, still_ns=STILL_BEFORE_END_NS) is not Motion.MOVES for rank in noticed.suspects)
    if by_itself and not (_is_taken_down(verdict) and still):
        kind, body = crash_report.crash_body(job, verdict, now)
        noticed.detail = replace(noticed.detail, is_crash=True)
        replace_finding(job, ctx, now, noticed, kind=kind, body=body)
        return
    if still or not noticed.suspects or not _is_taken_down(verdict):
        raise_severity(job, ctx, now, noticed, Severity.PAGE)
    revise_all(job, ctx, now)


def _is_taken_down(verdict: CrashVerdict) -> bool:
    """Whether a person or a scheduler may have ended the job, so that nobody died by itself."""
    if verdict.sort in ("planned", "together"):
        return True
    return verdict.sort == "died" and verdict.cause is not None and verdict.cause.signal in (SIGKILL, SIGTERM, SIGINT)


def _first_ns(verdict: CrashVerdict) -> int:
    return min(ending.time_ns for ending, _ in verdict.roles)


def _leaving(job: JobState, now: int) -> list[Ending]:
    """Ranks whose last row shows them past the end of their script. Their interpreter may take seconds to end, and a
    launcher that clears up after their peers' errors may be faster."""
    rows = job.progress.rows
    left = (job.progress.stamps > 0) & (rows["phase"] == int(Phase.EXIT)) & (rows["phase_age_ns"] > 0)
    return [
        Ending(
            rank=rank,
            sort="exit",
            time_ns=int(rows["read_ns"][rank]) - int(rows["phase_age_ns"][rank]),
            arrived_ns=now,
            step=int(rows["step"][rank]),
            phase=phase_word(int(Phase.EXIT)),
            exit_code=0,
            exit_state=int(ExitState.NORMAL),
        )
        for rank in left.nonzero()[0].tolist()
        if rank in job.ranks
    ]


def _speaks_of_numbers(cause: Ending) -> bool:
    """A guard that raises because of a NaN is a consequence of it, and only tells it first."""
    return cause.sort == "exception" and bool(_NUMBER_ERROR.search(f"{cause.type} {cause.message}"))
