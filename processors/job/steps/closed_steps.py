"""What the closing of steps decides, and when it is due: desync, numbers, speed, and which findings are over."""

from __future__ import annotations

import numpy as np

from ....telemetry.kind_sets import NUMERIC_KINDS
from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..accounting.guarded_accounting import judge_slow, take_steps
from ..columns.rows import pick
from ..desync import desync_report
from ..desync.mismatch import MOST_GUILTY, MOST_INNOCENT, report_mismatch
from ..detectors.desync.matching import find_mismatch, join_instances
from ..detectors.numeric.bad_numbers import find_non_finite
from ..findings.register import clear_finding, open_finding, replace_finding, revise
from ..findings.wording import ranks_words
from ..intake.device_groups import device_horizon, has_device_groups
from ..intake.open_call_checks import open_look_ns
from ..numeric.number_findings import judge_numbers
from ..slow.slow_findings import judge_speed
from ..state.finding_memory import AskedCall, FindingDetail
from ..state.job_state import JobState
from ..state.open_steps import FURTHEST_BEHIND
from ..state.rank_state import OpenFinding
from .step_watermark import Closed, close_steps, horizon_of, is_early

#: Agents of other nodes flush a little later: one look serves them all.
OPEN_SLACK_NS = 30_000_000
#: Newest rows among which such a call's other members are looked for; closing a step looks at all.
NEAR_ROWS = 16_384
#: Kinds that are over once all ranks have finished a later step.
_PASSING = frozenset(
    {
        Kind.RANK_NOT_ENTERED.value,
        Kind.DEADLOCK.value,
        Kind.RANK_STOPPED.value,
        Kind.NODE_LOST.value,
        Kind.COLLECTIVE_STALLED.value,
    }
)
_ENDED_BY_STEPS = _PASSING | NUMERIC_KINDS


def close_ready_steps(job: JobState, now: int, ctx: Context) -> None:
    """Closes the steps that every expected rank has ended, and judges what they show; nothing where there are none.

    A rank holds up closing only until it is ``FURTHEST_BEHIND`` the newest step: then steps close without it.
    """
    if is_early(job):
        return
    horizon = horizon_of(job)
    if horizon > job.steps.closed_step and has_device_groups(job):
        # Whom nobody tells the end of must not hold up the rest for ever.
        horizon = max(device_horizon(job, horizon), int(job.steps.newest_step.max()) - FURTHEST_BEHIND)
    if horizon > job.steps.closed_step:
        job.open_steps.closed_stamp_ns = now
        judge_steps(job, close_steps(job, horizon), now, ctx)


def judge_steps(job: JobState, closed: Closed, now: int, ctx: Context) -> None:
    """Takes closed steps into the account, opens and clears the findings that depend on them, desync first."""
    take_steps(job, closed.rows, now, ctx)
    if closed.mismatch is not None:
        report_mismatch(job, closed.mismatch, now, ctx)
    elif (
        closed.short is not None
        and job.findings.stopping() is job.findings.noticed_wait()
        and not job.findings.has_kind(Kind.PLANNED_STOP)
    ):
        short = closed.short
        ends = closed.rows["end_ns"][closed.rows["step"] == short.step]
        onset = int(ends.min()) if ends.size else now
        body = desync_report.short_step_body(job, short.group, short.step, short.counts, short.guilty, onset, now)
        innocent = [rank for rank in short.counts if rank not in short.guilty]
        parties = [*short.guilty[:MOST_GUILTY], *innocent[:MOST_INNOCENT]]
        detail = FindingDetail(calls=tuple(AskedCall(rank, short.group, False, -1) for rank in parties))
        noticed = job.findings.noticed_wait()
        if noticed is not None:
            replace_finding(job, ctx, now, noticed, kind=Kind.DESYNC, body=body, detail=detail)
        else:
            place = f"{job.groups.known[short.group].uid}:step {short.step}"
            open_finding(job, ctx, now, kind=Kind.DESYNC, place=place, body=body, group=short.group, detail=detail)
    for finding in job.findings.all():
        _end_if_passed(job, finding, now, ctx)
    judge_numbers(job, closed.rows, now, ctx)
    judge_speed(job, now, ctx)
    judge_slow(job, now, ctx)


def ends_with_steps(job: JobState, finding: OpenFinding) -> bool:
    """Whether closing any step may end the finding; those about speed take many steps."""
    return finding.attempt != job.attempt or finding.kind in _ENDED_BY_STEPS


def _end_if_passed(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
    if finding.attempt != job.attempt:
        if _has_passed(job, finding):
            clear_finding(job, ctx, now, finding, _passed_words(finding))
        else:
            revise(job, ctx, now, finding)
    elif finding.kind in _PASSING and (said := went_on(job, finding)):
        clear_finding(job, ctx, now, finding, said)


def _has_passed(job: JobState, finding: OpenFinding) -> bool:
    """Whether all ranks have finished a step beyond the one that a finding of an earlier attempt is about."""
    closed, before = job.steps.closed_step, job.checkpoints.steps_before
    return closed >= 0 and before + closed > finding.steps_before + finding.step


def went_on(job: JobState, finding: OpenFinding) -> str:
    """A sentence on who has finished a later step than the finding's; "" while nobody has, or a suspect has not.

    A step is closed without those who are far behind: they may stand where they stood.
    """
    beyond = max(finding.step, -1)
    if job.steps.closed_step <= beyond:
        return ""
    expected = job.expected_ranks()
    steps = np.full(expected.size, -1, np.int64)
    steps[: job.steps.newest_step.size] = job.steps.newest_step[: expected.size]
    if any(rank < expected.size and expected[rank] and steps[rank] <= beyond for rank in finding.suspects):
        return ""
    passed, behind = expected & (steps > beyond), np.flatnonzero(expected & (steps <= beyond))
    finished = min(job.steps.closed_step, int(steps[passed].min())) if passed.any() else job.steps.closed_step
    count, everybody = int(passed.sum()), max(job.world_size, len(job.alive()))
    if count >= everybody:
        return f"all ranks have finished step {finished}"
    return f"{count} of {everybody} ranks have finished step {finished}{_left_behind(behind, steps[behind] + 1)}"


def _left_behind(ranks: np.ndarray, steps: np.ndarray) -> str:
    """steps: in which they are."""
    if not ranks.size:
        return ""
    if ranks.size == 1:
        return f"; {ranks_words(ranks.tolist())} has not: it is in step {int(steps[0])}"
    first, last = int(steps.min()), int(steps.max())
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"; {ranks_words(ranks.tolist())} have not: they are in {where}"


def _passed_words(finding: OpenFinding) -> str:
    where = f"step {finding.step}" if finding.step >= 0 else "its first step"
    resumed = f", counted from the checkpoint after {finding.steps_before} steps" if finding.steps_before else ""
    return f"the restarted job has passed {where} of the attempt that failed{resumed}"


def judge_late_numbers(job: JobState, now: int, ctx: Context, *, finished: bool = False) -> None:
    """Judges bad numbers of a step that does not close (the job hangs or dies of it), by the rows that came.

    Once ``number_due_ns`` has come, or at once where ``finished``: no more records will come.
    """
    if not job.steps.number_due_ns or (now < job.steps.number_due_ns and not finished):
        return
    close_ready_steps(job, now, ctx)
    if not job.steps.number_due_ns:
        return
    job.steps.number_due_ns = 0
    rows = job.open_steps.steps.all()
    if rows.size:
        bad = find_non_finite(rows)
        if bad is not None:
            judge_numbers(job, rows[rows["step"] == bad.step], now, ctx)


def judge_counts(job: JobState, now: int, ctx: Context) -> None:
    """Closes steps once ``counts_due_ns`` has come, as ranks called different numbers of collectives in one step."""
    if job.steps.counts_due_ns and now >= job.steps.counts_due_ns:
        job.steps.counts_due_ns = 0
        close_ready_steps(job, now, ctx)


def judge_signatures(job: JobState, now: int, ctx: Context) -> bool:
    """Closes what can be closed, then reports a mismatch among all pending calls. False: undecided, look again."""
    close_ready_steps(job, now, ctx)  # the steps before are the pattern by which two ranks are told apart
    mismatch = find_mismatch(join_instances(job.open_steps.calls.all()), job.groups.blind(job.blind_ranks))
    return mismatch is None or report_mismatch(job, mismatch, now, ctx)


def judge_open_calls(job: JobState, now: int, ctx: Context) -> None:
    """Looks at calls that a flush left open long enough ago: reports a mismatch there; sets a timer for the others."""
    patience_ns = open_look_ns(job)
    stays = job.open_steps.open_calls.take_seen_until(now - patience_ns + OPEN_SLACK_NS)
    if len(job.open_steps.open_calls):
        job.schedule(job.open_steps.open_calls.first_stamp_ns() + patience_ns)
    stays = stays[stays[:, 1] < len(job.groups.known)]
    if len(stays):  # each is worth one look; a hang is the progress rows' to tell
        near = _rows_near(job.open_steps.calls.all()[-NEAR_ROWS:], stays[:, 1], stays[:, 2], len(job.groups.known))
        if find_mismatch(join_instances(near), job.groups.blind(job.blind_ranks)) is not None and not judge_signatures(
            job, now, ctx
        ):
            stays[:, 3] = now
            job.open_steps.open_calls.put_back(stays)
            job.schedule(now + patience_ns)


def _rows_near(rows: np.ndarray, groups: np.ndarray, seqs: np.ndarray, group_count: int) -> np.ndarray:
    """Those of the rows that lie between the lowest and the highest of these sequence numbers of their group."""
    low, high = int(seqs.min()), int(seqs.max())
    seq = rows["seq"]
    rows = pick(rows, (seq >= low) & (seq <= high))
    lowest, highest = np.full(group_count + 1, high + 1), np.full(group_count + 1, -1)
    np.minimum.at(lowest, groups, seqs)
    np.maximum.at(highest, groups, seqs)
    seq, group = rows["seq"], np.minimum(rows["group"], group_count)
    return pick(rows, (seq >= lowest[group]) & (seq <= highest[group]))
