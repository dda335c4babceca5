"""An emergency save that was asked for: it is whole when every rank of the job has saved the same step.

Judged once every rank that knows of it has said what became of it, its time is over, or the processes have ended.
"""

from __future__ import annotations

from ....telemetry.emergency_words import EmergencyState, MissedWhy
from ....telemetry.records import Event
from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..findings.register import clear_finding, open_finding, replace_finding
from ..intake.bounds import most_ranks
from ..state.emergency_save import EmergencySave
from ..state.job_state import JobState
from .emergency_report import missed_body

#: What ranks tell at the last moment comes in so much later.
_HOLD_NS = 3_000_000_000
_LONGEST_WORD = 400


def take_emergency(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """Takes in a CHECKPOINT_EMERGENCY; a later request takes the place of an earlier one, which is judged first."""
    values, rank = event.attributes, event.identity.rank
    number, state = values.get("request"), values.get("state")
    if not isinstance(number, int) or not 0 <= rank < most_ranks(job):
        return
    save = job.checkpoints.emergency
    if save is None or number > save.request:
        judge_emergency(job, stamp_ns, ctx, is_over=True)
        save = job.checkpoints.emergency = EmergencySave(request=number)
    elif number < save.request:
        return
    job.unsaved.facts, save.is_judged = True, False
    time_ns = job.nodes.time_of(event)
    save.last_ns = max(save.last_ns, stamp_ns)
    save.reason = save.reason or str(values.get("reason", ""))[:_LONGEST_WORD]
    save.asked_ns = min(save.asked_ns or time_ns, time_ns)
    save.asked.add(rank)
    step, seconds, left = values.get("step"), values.get("seconds"), values.get("seconds_left")
    if state == EmergencyState.ASKED and isinstance(left, int | float) and 0 <= left < 1e6:
        save.due_ns = max(save.due_ns, time_ns + int(left * 1e9))
    elif state == EmergencyState.SAVED:
        save.saved.add(rank)
        save.seconds = max(save.seconds, float(seconds) if isinstance(seconds, int | float) else 0.0)
    elif state == EmergencyState.FAILED:
        save.failed.add(rank)
        save.error = save.error or str(values.get("error", ""))[:_LONGEST_WORD]
    elif state == EmergencyState.MISSED:
        save.missed[rank] = str(values.get("why", MissedWhy.NOT_REACHED.value))[:_LONGEST_WORD]
    if isinstance(step, int) and step > 0 and state != EmergencyState.MISSED:
        save.step = max(save.step, step)
    job.schedule(_due_ns(save))


def judge_emergency(job: JobState, now: int, ctx: Context, *, is_over: bool = False) -> None:
    """Opens or revises the finding about ranks that did not save; until it is known who, sets the next look.

    is_over: no rank of it will say more.
    """
    save = job.checkpoints.emergency
    if save is None or save.is_judged:
        return
    if not is_over and now < _due_ns(save):
        job.schedule(_due_ns(save))
        return
    lacking = sorted({*range(job.world_size), *save.asked} - save.saved)
    known = next((each for each in job.findings.of_kind(Kind.EMERGENCY_SAVE_MISSED) if _is_of(each.key, save)), None)
    save.is_judged = job.unsaved.facts = True
    if not lacking:
        if known is not None:
            clear_finding(job, ctx, now, known, "all ranks have saved after all")
        return
    body = missed_body(job, save, lacking, now)
    if known is None:
        open_finding(job, ctx, now, kind=Kind.EMERGENCY_SAVE_MISSED, place=_place(save), body=body)
    else:
        replace_finding(job, ctx, now, known, kind=Kind.EMERGENCY_SAVE_MISSED, body=body)


def _due_ns(save: EmergencySave) -> int:
    """When it can be judged: a moment after the last word, or after the time that there was."""
    if save.has_news and (save.saved or save.failed or save.missed):
        return save.last_ns + _HOLD_NS
    return max(save.due_ns, save.last_ns) + _HOLD_NS


def _place(save: EmergencySave) -> str:
    return f"request {save.request}"


def _is_of(key: str, save: EmergencySave) -> bool:
    return key.endswith("/" + _place(save))
