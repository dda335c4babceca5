"""Findings about numbers and speed, opened and ended by the steps that were closed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ....telemetry.vocabulary import Kind, Severity, StepFlag
from ...finding_document import FindingBody
from ...operator import Context
from ..detectors.numeric.bad_numbers import (
    EXPLOSION_RATIO,
    EXPLOSION_STEPS,
    EXPLOSION_WINDOW,
    BadNumber,
    Numbers,
    find_explosion,
    find_non_finite,
)
from ..detectors.slow.checkpoint_straggler import find_slow_writer, is_still_slow_writer
from ..detectors.slow.data_stalls import are_over, find_recurring_stalls
from ..detectors.slow.device_straggler.launch_bound import LateHost, find_late_host
from ..detectors.slow.device_straggler.long_window import find_late_by_little
from ..detectors.slow.device_straggler.occupancy import LateDevice, find_late_device, is_still_late
from ..detectors.slow.device_straggler.small_group import find_late_in_group
from ..detectors.slow.device_straggler.step_window import find_late_in_steps
from ..detectors.slow.drift import find_drift, has_come_back, makes_steps_longer
from ..detectors.slow.lag_coupling import do_hosts_wait_for, is_waited_for, was_always_waited_for
from ..detectors.slow.pipeline_stage_time import HeavyStage, are_enough, find_heavy_stage
from ..detectors.slow.rotating_straggler import find_sudden_wandering, find_wandering
from ..detectors.slow.step_time_changepoint import (
    PaceChange,
    find_fresh_change,
    find_pace_change,
    find_sudden_change,
    is_back_to_pace,
    is_of_all,
    with_parts,
)
from ..detectors.slow.straggler import (
    Found,
    StepTimes,
    Straggler,
    find_straggler,
    is_still_slow,
    lead_over,
)
from ..findings.register import clear_finding, open_finding, raise_severity, replace_finding
from ..intake.device_groups import has_become_slow, has_device_groups, shows_in_steps
from ..numeric.number_findings import open_number_finding
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from ..topology.culprit import have_something_in_common
from ..topology.pipeline_stages import ends_last_by_schedule, of_one_stage, order_of_stages, stages_of
from . import slow_device_report, slow_rank_report, throughput_report

PACE_CHECK_STEPS = 4
GOOD_STEPS_TO_CLEAR = 3
_HAS_NUMBERS = int(StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM)
#: A rank that is slow as long as its steps are known is noticed at once, and a ticket when that has lasted so long.
ALWAYS_SLOW_TICKET_NS = 60_000_000_000
#: So many others of a device's company may have nothing in common with it.
MOST_BY_CHANCE = 3


def judge_numbers(job: JobState, rows: np.ndarray, now: int, ctx: Context) -> None:
    """rows: STEPS of closed steps. Opens, or counts good steps towards the end of, a numeric finding."""
    bad = find_non_finite(rows)
    if bad is None and len(job.steps.norms):
        bad = _find_explosion(job, int(rows["step"].min()) if rows.size else 0)
    reported = job.findings.of_kind(Kind.NUMERIC_ALL) + job.findings.of_kind(Kind.NUMERIC_FIRST_RANK)
    if bad is None:
        for finding in reported:
            if not _is_still_exploded(job, finding):
                _count_good_steps(job, finding, rows, now, ctx)
        return
    job.steps.number_due_ns = 0
    for finding in reported:
        finding.detail["good"] = 0
    if not reported:
        open_number_finding(job, ctx, now, bad, place=f"step {bad.step}")


def _find_explosion(job: JobState, first: int) -> BadNumber | None:
    """Steps of short jobs are closed by the hundred: each is judged against those before it, as if they came singly.

    first: the first step that was closed just now.
    """
    count = len(job.steps.norms)
    known = int((job.steps.norm_steps[:, 0] < first).sum())
    for end in sorted({count, *range(known + EXPLOSION_STEPS, count, EXPLOSION_STEPS)}):
        part = slice(max(0, end - EXPLOSION_WINDOW), end)
        numbers = Numbers(
            ranks=job.steps.times.ranks,
            steps=job.steps.norm_steps[part, 0],
            ends_ns=job.steps.norm_steps[part, 1],
            norms=job.steps.norms[part],
            losses=job.steps.losses[part],
        )
        bad = find_explosion(numbers)
        if bad is not None:
            return bad
    return None


def _is_still_exploded(job: JobState, finding: OpenFinding) -> bool:
    """Large norms become the usual ones in the window; the finding remembers what was usual before."""
    usual = finding.detail.get("usual")
    return usual is not None and len(job.steps.norms) > 0 and float(job.steps.norms[-1].max()) > EXPLOSION_RATIO * usual


def _count_good_steps(job: JobState, finding: OpenFinding, rows: np.ndarray, now: int, ctx: Context) -> None:
    told = (rows["flags"] & _HAS_NUMBERS) != 0  # of a step without numbers nobody knows that they are good
    finding.detail["good"] = finding.detail.get("good", 0) + int(np.unique(rows["step"][told]).size)
    job.unsaved.facts = True
    if finding.detail["good"] >= GOOD_STEPS_TO_CLEAR:
        clear_finding(job, ctx, now, finding, f"the numbers are good again since {finding.detail['good']} steps")


def judge_speed(job: JobState, now: int, ctx: Context) -> None:
    """A rank that became slow, in its steps or its saves, or is as fast as usual again; then the pace of all."""
    slow = job.findings.of_kind(Kind.RANK_SLOW)
    for finding in slow:
        _end_if_fast(job, finding, now, ctx)
        _ask_if_it_lasts(job, finding, now, ctx)
    if job.findings.stopping() is None:
        if slow:
            _look_for_another(job, slow, now, ctx)
        else:
            _look_for_slow_ranks(job, now, ctx)
    _judge_pace(job, now, ctx)


def _look_for_another(job: JobState, slow: list[OpenFinding], now: int, ctx: Context) -> None:
    """A standing finding masks no other: who became slow is left out of the comparison, who always was stays in it, as
    it is part of what is usual here, and may have become slower still."""
    on_device = has_device_groups(job)
    if on_device and not all(_was_always(finding) for finding in slow):
        return
    became = {rank for finding in slow if not _was_always(finding) for rank in _slow_ranks(finding)}
    times = _comparable_times(job)
    found = find_straggler(times.without(became) if became else times, on_device=on_device)
    if found is None or not found.based or not _is_waited_for(job, found):
        return
    known = {rank for finding in slow for rank in _slow_ranks(finding)}
    lead_ns = lead_over(times, found, known)
    before = next((finding for finding in slow if finding.detail["rank"] == found.rank), None)
    # Who became slow before the first one was told became so with it.
    together = next((each for each in slow if not _was_always(each) and found.onset_ns <= each.found_ns), None)
    if together is not None and lead_ns > -found.excess_ns / 2.0 and "company" in together.detail:
        company = {*_slow_ranks(together), *found.company} - {found.rank}
        body = slow_rank_report.straggler_body(job, replace(found, company=tuple(sorted(company))), now)
        others = {*company, found.rank} - {together.detail["rank"]}
        detail = {**together.detail, "company": tuple(sorted(others))}
        replace_finding(job, ctx, now, together, kind=Kind.RANK_SLOW, body=body, detail=detail)
    elif together is None and lead_ns > 0.0:
        body, detail = slow_rank_report.straggler_body(job, found, now), _straggler_detail(found)
        if before is not None:
            replace_finding(job, ctx, now, before, kind=Kind.RANK_SLOW, body=body, detail=detail)
        elif found.rank not in known:
            place = f"rank {found.rank} step {found.onset_step}"
            open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)


def _slow_ranks(finding: OpenFinding) -> set[int]:
    """Nobody is suspected where they play one part: the finding remembers them."""
    return {int(finding.detail["rank"]), *finding.detail.get("company", ()), *finding.suspects}


def _was_always(finding: OpenFinding) -> bool:
    """Slow as long as its steps are known, so perhaps by design."""
    return finding.detail.get("based") is False


def _straggler_detail(found: Straggler) -> dict[str, Any]:
    return asdict(
        Found(
            rank=found.rank,
            step=found.onset_step,
            excess=found.excess,
            usual=found.usual,
            noise=found.noise,
            based=found.based,
            company=found.company,
        )
    )


def _ask_if_it_lasts(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
    is_noticed = finding.key in job.findings.by_key and finding.body.severity is Severity.INFO
    if is_noticed and now - finding.found_ns >= ALWAYS_SLOW_TICKET_NS:
        raise_severity(job, ctx, now, finding, Severity.TICKET)


def _end_if_fast(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
    detail = finding.detail
    rank = int(detail["rank"])
    if "before_ns" in detail:
        if not is_still_slow_writer(job.steps.saves, rank, detail["before_ns"], detail["now_ns"]):
            clear_finding(job, ctx, now, finding, f"rank {rank} saves as fast as usual again")
    elif "rise" in detail:
        if has_come_back(job.steps.drift, job.steps.times.ranks, rank, detail["usual"], detail["rise"]):
            clear_finding(job, ctx, now, finding, f"rank {rank} is as fast as at its best again")
    elif "late_step_ns" in detail:
        if not is_still_late(job.steps.window.looks, detail["usual_step_ns"], detail["late_step_ns"]):
            job.steps.drop(finding.step, job.steps.closed_step)
            clear_finding(job, ctx, now, finding, f"the steps are as long as before rank {rank} was late")
    elif not _is_hidden(job, finding) and not is_still_slow(job.steps.times, Found(**detail)):
        job.steps.drop(finding.step, job.steps.closed_step)
        clear_finding(job, ctx, now, finding, f"rank {rank} is as fast as usual again")


def _is_hidden(job: JobState, finding: OpenFinding) -> bool:
    """Whether another rank has become slow since: while that one keeps calls open, what others work beside them counts
    as waiting."""
    later = (other for other in job.findings.of_kind(Kind.RANK_SLOW) if other.step > finding.step)
    return any(not _was_always(other) for other in later)


def _look_for_slow_ranks(job: JobState, now: int, ctx: Context) -> None:
    if has_device_groups(job) and _look_for_a_late_host(job, now, ctx):
        return
    found = find_straggler(_comparable_times(job), on_device=has_device_groups(job))
    if found is not None and has_device_groups(job):
        found = of_one_stage(job.steps.times, stages_of(job, job.steps.times.ranks), found)
        if found is not None and ends_last_by_schedule(
            job.steps.times, order_of_stages(job, job.steps.times.ranks), found
        ):
            found = None
    if found is not None and not _is_waited_for(job, found):
        found = None
    if found is not None:
        body = slow_rank_report.straggler_body(job, found, now)
        place = f"rank {found.rank} step {found.onset_step}"
        open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=_straggler_detail(found))
        return
    if has_device_groups(job) and _look_for_a_late_device(job, now, ctx):
        return
    writer = find_slow_writer(job.steps.saves)
    if writer is not None:
        body = slow_rank_report.slow_writer_body(job, writer, now)
        place = f"rank {writer.rank} save {writer.onset_step}"
        detail: dict[str, Any] = {"rank": writer.rank, "before_ns": writer.before_ns, "now_ns": writer.now_ns}
        open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)
        return
    drift = find_drift(job.steps.drift, job.steps.times.ranks)
    if drift is not None and (
        not has_device_groups(job) or makes_steps_longer(job.steps.drift, job.steps.times.ranks, drift)
    ):
        body = slow_rank_report.drift_body(job, drift, now)
        place = f"rank {drift.rank} drift {drift.onset_step}"
        detail = {"rank": drift.rank, "rise": drift.rise, "usual": drift.usual}
        open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)


def _look_for_a_late_host(job: JobState, now: int, ctx: Context) -> bool:
    """Where all were said to be slower together, that stands: one fault, one incident."""
    if job.findings.has_kind(Kind.SLOW_TOGETHER):
        return False
    times = job.steps.times
    late = find_late_host(job.steps.window.launches, times.ranks, times.steps, times.begin_ns, times.duration_ns)
    if late is None:
        return False
    _open_late(job, late, slow_device_report.late_host_body(job, late, now), now, ctx)
    return True


def _comparable_times(job: JobState) -> StepTimes:
    """Where work has become uneven, the steps since: what varied less before would make anybody stand out."""
    uneven = [finding.step for finding in job.findings.of_kind(Kind.SLOW_TOGETHER) if finding.detail.get("wanders")]
    return job.steps.times.since(max(uneven)) if uneven else job.steps.times


def _is_waited_for(job: JobState, found: Straggler) -> bool:
    ranks = job.steps.times.ranks
    if not has_device_groups(job):
        return found.based or do_hosts_wait_for(job.steps.window.starts, ranks, found)
    if not shows_in_steps(job.steps.times, found):
        return False
    if len(found.company) > MOST_BY_CHANCE and not have_something_in_common(job, (found.rank, *found.company)):
        return False
    if has_become_slow(job.steps.times, found):
        return is_waited_for(job.steps.window.starts, ranks, found.rank, found.onset_step, found.step_ns)
    return was_always_waited_for(job.steps.window.starts, ranks, found)


def _look_for_a_late_device(job: JobState, now: int, ctx: Context) -> bool:
    """Where all were said to be slower together, that stands: one fault, one incident."""
    if job.findings.has_kind(Kind.SLOW_TOGETHER):
        return False
    times = job.steps.times
    groups = job.groups.inner_groups(times.ranks)
    late = find_late_in_group(times, job.steps.window.inner, groups) or find_late_in_steps(times)
    if late is None or not _is_late(job, late):
        late = find_late_device(job.steps.window.looks, times.ranks, times.steps, times.begin_ns, times.duration_ns)
        if late is None or not _is_late(job, late):
            late = find_late_by_little(times, job.steps.window.inner, groups)
            if late is None or not _is_late(job, late):
                return False
    _open_late(job, late, slow_device_report.late_device_body(job, late, now), now, ctx)
    return True


def _open_late(job: JobState, late: LateDevice | LateHost, body: FindingBody, now: int, ctx: Context) -> None:
    detail = _late_detail(late.rank, late.before_ns, late.now_ns)
    place = f"rank {late.rank} step {late.onset_step}"
    open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)


def _late_detail(rank: int, before_ns: int, now_ns: int) -> dict[str, Any]:
    """By which steps the finding ends. before_ns, now_ns: how long one takes."""
    return {"rank": rank, "usual_step_ns": before_ns, "late_step_ns": now_ns}


def _is_late(job: JobState, late: LateDevice) -> bool:
    return is_waited_for(job.steps.window.starts, job.steps.times.ranks, late.rank, late.onset_step, late.before_ns)


def _judge_pace(job: JobState, now: int, ctx: Context) -> None:
    if not len(job.steps.pace):
        return
    is_due = job.steps.closed_step >= job.steps.pace_checked_step + PACE_CHECK_STEPS
    if is_due:
        job.steps.pace_checked_step = job.steps.closed_step
    steps, begins, pace, length_ns = (
        job.steps.pace[:, 0],
        job.steps.pace[:, 1],
        job.steps.pace[:, 2],
        job.steps.pace[:, 6],
    )
    # How long one device of many stood is only looked at: what is left of a step without it varies far more than steps.
    judged = length_ns if has_device_groups(job) else pace
    reported = job.findings.of_kind(Kind.SLOW_TOGETHER)
    for finding in reported:
        if "pause_steps" in finding.detail:
            if are_over(pace, job.steps.pace[:, 4], finding.detail["pause_steps"]):
                clear_finding(job, ctx, now, finding, "no step has waited for its data any more")
        elif is_back_to_pace(
            (length_ns if finding.detail.get("wanders") else judged)[steps >= finding.step],
            finding.detail["before_ns"],
            finding.detail["after_ns"],
        ):
            clear_finding(job, ctx, now, finding, "the step time is as before again")
        else:
            _name_the_stage(job, finding, now, ctx)
    became_slow = any(not _was_always(finding) for finding in job.findings.of_kind(Kind.RANK_SLOW))
    if reported or became_slow or job.findings.stopping() is not None:
        return
    uneven = find_sudden_wandering(job.steps.times, steps, begins, length_ns)
    if uneven is None and is_due:
        uneven = find_wandering(job.steps.times, steps, begins, pace, length_ns)
    if uneven is not None:
        body = throughput_report.wandering_body(job, uneven, now)
        detail = {"before_ns": uneven.before_ns, "after_ns": uneven.after_ns, "wanders": True}
        open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {uneven.step}", body=body, detail=detail)
        return
    if not is_due:
        _tell_change(job, _just_changed(steps, begins, judged), now, ctx)
        return
    change = find_pace_change(steps, begins, judged) or _just_changed(steps, begins, judged)
    if _tell_change(job, change, now, ctx):
        return
    stalls = find_recurring_stalls(steps, begins, pace, job.steps.pace[:, 4])
    if stalls is not None:
        body, detail = throughput_report.stalls_body(job, stalls, now), {"pause_steps": stalls.pause_steps}
        open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {stalls.step}", body=body, detail=detail)


def _just_changed(steps: np.ndarray, begin_ns: np.ndarray, pace_ns: np.ndarray) -> PaceChange | None:
    return find_sudden_change(steps, begin_ns, pace_ns) or find_fresh_change(steps, begin_ns, pace_ns)


def _tell_change(job: JobState, change: PaceChange | None, now: int, ctx: Context) -> bool:
    """Whether it is of all ranks, and so was told."""
    steps, pace = job.steps.pace[:, 0], job.steps.pace[:, 2]
    if change is None or (has_device_groups(job) and not is_of_all(change, steps, pace)):
        return False
    change = with_parts(change, steps, job.steps.pace[:, 3:6])
    is_pipeline = has_device_groups(job) and bool((order_of_stages(job, job.steps.times.ranks) >= 0).any())
    body = throughput_report.slow_together_body(job, change, now, has_unseen_waits=is_pipeline)
    heavy = _heavy_stage(job, change.step, body.grew) if is_pipeline else None
    if heavy is not None:
        body = slow_device_report.heavy_stage_body(job, heavy, change, now)
        place = f"rank {heavy.ranks[0]} step {change.step}"
        detail = _late_detail(heavy.ranks[0], change.before_ns, change.after_ns)
        open_finding(job, ctx, now, kind=Kind.RANK_SLOW, place=place, body=body, detail=detail)
        return True
    detail = {"before_ns": change.before_ns, "after_ns": change.after_ns}
    open_finding(job, ctx, now, kind=Kind.SLOW_TOGETHER, place=f"step {change.step}", body=body, detail=detail)
    return True


def _name_the_stage(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
    """What was said of all ranks is that of one stage, once its passes are seen to take longer."""
    if finding.detail.get("wanders") or not has_device_groups(job):
        return
    heavy = _heavy_stage(job, finding.step, finding.body.grew)
    if heavy is not None:
        change = PaceChange(
            step=finding.step,
            onset_ns=finding.onset_ns,
            before_ns=finding.detail["before_ns"],
            after_ns=finding.detail["after_ns"],
        )
        finding.detail = _late_detail(heavy.ranks[0], change.before_ns, change.after_ns)
        body = slow_device_report.heavy_stage_body(job, heavy, change, now)
        replace_finding(job, ctx, now, finding, kind=Kind.RANK_SLOW, body=body)


def _heavy_stage(job: JobState, onset_step: int, grew: str | None) -> HeavyStage | None:
    """grew: what makes the steps longer, as far as it is known: a slower network or data are no stage's work."""
    passes, ranks = job.steps.window.passes, job.steps.times.ranks
    # Asked of every step while all are slower, for hours perhaps.
    if grew in ("exchange", "data") or not are_enough(passes, onset_step):
        return None
    return find_heavy_stage(passes, ranks, stages_of(job, ranks), onset_step)
