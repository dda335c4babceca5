"""Saves that were begun and not written: one that failed, and one that takes far longer than those before.

Training goes on meanwhile, and what it has done since the last durable checkpoint grows: a ticket for the first, a page
when the next one is not written either. A save that holds up its ranks is waited for as any other call (``hang``).
"""

from __future__ import annotations

from statistics import median

from ....telemetry.vocabulary import Kind, Severity
from ...operator import Context
from ..findings.register import clear_finding, open_finding, replace_finding
from ..state.checkpoint_saves import CheckpointSave
from ..state.job_state import JobState
from . import save_report

#: Beyond this, and so many times what the job's saves have taken, a save counts as one that does not end.
LONG_NS = 600_000_000_000
LONG_TIMES = 5.0
#: While it lasts it is looked at again so often.
_LOOK_NS = 60_000_000_000
_KINDS = (Kind.CHECKPOINT_FAILED, Kind.CHECKPOINT_UNFINISHED)


def judge_failed(job: JobState, save: CheckpointSave, now: int, ctx: Context) -> None:
    """Opens or revises the finding about a save of which a rank's part failed; the same one for failures in a row."""
    body = save_report.failed_body(job, save, now, severity=_severity(job))
    known = next(iter(job.findings.of_kind(Kind.CHECKPOINT_FAILED)), None)
    if known is None:
        open_finding(job, ctx, now, kind=Kind.CHECKPOINT_FAILED, place=f"step {save.step}", body=body)
    else:
        replace_finding(job, ctx, now, known, kind=Kind.CHECKPOINT_FAILED, body=body)


def judge_unfinished(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding about a save that does not end although training goes on; sets the next look."""
    if not any(save.is_open for save in job.checkpoints.saves):
        return  # nearly always, and this is asked at every look
    limit_ns = _limit_ns(job)
    for save in job.checkpoints.saves:
        if not save.is_open or job.findings.has_kind(Kind.CHECKPOINT_UNFINISHED):
            continue
        if now - save.begin_ns < limit_ns:
            job.schedule(save.begin_ns + limit_ns)
        elif _goes_on(job, save):
            body = save_report.unfinished_body(job, save, now, limit_ns, severity=_severity(job))
            open_finding(job, ctx, now, kind=Kind.CHECKPOINT_UNFINISHED, place=f"step {save.step}", body=body)
        else:
            job.schedule(now + _LOOK_NS)


def watch_open(job: JobState, now: int) -> None:
    """Asks for a look when a save that is open has taken too long."""
    limit_ns = _limit_ns(job)
    for save in job.checkpoints.saves:
        if save.is_open:
            job.schedule(max(now, save.begin_ns + limit_ns))


def settle_findings(job: JobState, now: int, ctx: Context) -> None:
    """Ends findings about saves once a later one, or the same one after all, is durable."""
    for kind in _KINDS:
        for finding in job.findings.of_kind(kind):
            saved = job.checkpoints.saved_steps
            if finding.step >= 0 and saved >= finding.step + finding.steps_before:
                clear_finding(job, ctx, now, finding, f"the checkpoint of step {saved} is durable")


def _limit_ns(job: JobState) -> int:
    usual_s = job.checkpoints.saves.usual_s
    return max(LONG_NS, int(LONG_TIMES * median(usual_s) * 1e9) if usual_s else 0)


def _goes_on(job: JobState, save: CheckpointSave) -> bool:
    """Whether steps are made after the one that is saved: the save holds nobody up."""
    return job.checkpoints.steps_before + job.steps.closed_step >= save.step + 1


def _severity(job: JobState) -> Severity:
    """A page from the second save in a row on that was not written."""
    missed = {save.step for save in job.checkpoints.saves if save.failed or save.is_open}
    return Severity.PAGE if sum(step > job.checkpoints.saved_steps for step in missed) > 1 else Severity.TICKET
