"""What a node's ranks tell of their saves: from there on the newest durable checkpoint is the one that all are in."""

from __future__ import annotations

import math
from typing import Any

from ....telemetry.checkpoint_states import SaveState, SaveWay, word
from ....telemetry.records import Event
from ....telemetry.told_ranks import read_ranks
from ...operator import Context
from ..accounting.resumed_checkpoint import note_place
from ..intake.bounds import most_ranks
from ..state.checkpoint_saves import MOST_PLACES, CheckpointSave, bits_of
from ..state.job_state import JobState
from .save_findings import judge_failed, settle_findings, watch_open

BEGUN, STAGED, DURABLE = word(SaveState.BEGUN), word(SaveState.STAGED), word(SaveState.DURABLE)
FAILED, PART, LEFT_OUT = word(SaveState.FAILED), word(SaveState.PART), word(SaveState.LEFT_OUT)
NEAR = word(SaveWay.WHICHRANK)
#: Complete saves whose lengths say what is usual.
_KEPT_LENGTHS = 8
_LONGEST_ERROR = 400


def take_save_state(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """Takes in a CHECKPOINT_STATE. Saves before any step (a cache, a vocabulary) and unknown states do not count."""
    values, checkpoints = event.attributes, job.checkpoints
    state, step = values.get("state"), values.get("step")
    ranks = _ranks(job, values.get("ranks"))
    if not isinstance(step, int) or step <= 0 or not ranks:
        return
    checkpoints.saves.are_told = True
    training_step, way = checkpoints.steps_before + step, str(values.get("way", ""))
    time_ns = job.nodes.time_of(event)
    if state == BEGUN:
        save = checkpoints.saves.at(training_step, way)
        save.tier = save.tier or str(values.get("tier", ""))
        save.begin(bits_of(ranks), time_ns, _count(values.get("bytes")))
    else:
        known = checkpoints.saves.known_at(training_step, way)
        if known is None:
            return  # begun before anybody looked
        save = known
    _note_places(job, save, values.get("checkpoints"))
    save.changed_ns = max(save.changed_ns, time_ns)
    if state == STAGED:
        save.staged |= bits_of(ranks) & save.begun
    elif state == DURABLE:
        save.end(bits_of(ranks), _seconds(values.get("seconds")))
    elif state == FAILED:
        save.fail(bits_of(ranks), str(values.get("error", ""))[:_LONGEST_ERROR])
    elif state == LEFT_OUT:
        save.leave_out(bits_of(ranks))
    if save.is_complete and state == DURABLE:
        if save.way != NEAR:  # of those there are many, and they tell nothing of how long storage takes
            checkpoints.saves.usual_s = [*checkpoints.saves.usual_s, save.seconds][-_KEPT_LENGTHS:]
        for place in save.places:
            note_place(job, place, save.step)
    checkpoints.settle_saves()
    if state == FAILED:
        judge_failed(job, save, stamp_ns, ctx)
    settle_findings(job, stamp_ns, ctx)
    watch_open(job, stamp_ns)


def _ranks(job: JobState, told: Any) -> list[int]:
    most = most_ranks(job)
    return [rank for rank in read_ranks(told) if rank < most]


def _note_places(job: JobState, save: CheckpointSave, told: Any) -> None:
    """A place that is new holds this save as soon as it is whole; one that was written before holds the older one."""
    if not isinstance(told, tuple | list):
        return
    for place in map(str, told):
        if place not in save.places and len(save.places) < MOST_PLACES:
            save.places.append(place)
            if place not in job.checkpoints.by_place:
                note_place(job, place, save.step)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else 0.0
