"""The level is switched while the job runs, by the file in the ring folder: healthy, and around a fault."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

from ..plan import Blame, Ending, Pace, Scenario
from ..runner import Job
from .truths import ANYWHERE, DDP, DIED, NOT_ENTERED, NOTHING

_POLL_S = 0.05
#: The level takes effect with the ranks' next look at the file.
_TAKES_S = 1.5
_LEVELS = ("off", "status", "events")


def _ring_folder(job: Job, over: threading.Event) -> Path | None:
    """Where a person would find it: in run.json."""
    while not over.wait(_POLL_S):
        try:
            return Path(json.loads((job.out / "run.json").read_text())["ring_directory"])
        except (FileNotFoundError, ValueError):
            continue
    return None


def _switch(folder: Path, level: str) -> None:
    part = folder / "level.part"
    part.write_text(level)
    part.rename(folder / "level")


def switch_now_and_then(job: Job, over: threading.Event) -> None:
    """Any level after any other, for some seconds each."""
    folder = _ring_folder(job, over)
    drawn = random.Random(f"{job.plan.jitter_seed}/levels")
    level = "events"
    while folder is not None and not over.wait(drawn.uniform(4.0, 10.0)):
        if job.steps_done() < job.plan.steps - 5:
            level = drawn.choice([other for other in _LEVELS if other != level])
            _switch(folder, level)


def off_just_before(job: Job, over: threading.Event) -> None:
    """Off a few seconds before the fault, and on again some seconds after it."""
    _off_around(job, over, before_s=3.0)


def off_just_after(job: Job, over: threading.Event) -> None:
    """Off in the moment of the fault, before the ranks have waited for long."""
    _off_around(job, over, before_s=0.0)


def _off_around(job: Job, over: threading.Event, before_s: float) -> None:
    folder = _ring_folder(job, over)
    last = job.plan.onset_step - round((before_s + _TAKES_S) / job.plan.step_s) if before_s else job.plan.onset_step
    while folder is not None and job.steps_done() < max(last, 2) and not job.onsets():
        if over.wait(_POLL_S):
            return
    if folder is None:
        return
    _switch(folder, "off")
    while not job.onsets() and not over.wait(_POLL_S):
        continue
    began = time.monotonic()
    while time.monotonic() < began + 5.0 and not over.wait(_POLL_S):
        continue
    if folder.exists():
        _switch(folder, "events")


#: Who cannot be seen is not blamed: the fault is named if others' rows suffice, else nobody is.
_SEEN_OR_SILENT = replace(
    NOT_ENTERED, kinds=("rank_stopped",), blame=Blame.NO_INNOCENT, silence=True, pace=Pace.UNTIMED, leaves_stack=False
)

_AROUND_A_FAULT = Scenario(
    name="",
    truth=_SEEN_OR_SILENT,
    ending=Ending.HANGS,
    workloads=DDP,
    fault="sleep",
    points=ANYWHERE[:3],
    worlds=(2, 3, 4),
    step_s=(0.2, 2.0),
)

LEVELS = (
    replace(_AROUND_A_FAULT, name="off just before a rank stands still", beside=off_just_before),
    replace(_AROUND_A_FAULT, name="off just after a rank stands still", beside=off_just_after),
    replace(
        _AROUND_A_FAULT,
        name="off just before SIGKILL",
        truth=DIED,
        ending=Ending.CRASHES,
        fault="kill",
        points=ANYWHERE,
        beside=off_just_before,
    ),
    Scenario(
        name="clean: levels switched now and then",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=DDP,
        worlds=(2, 3, 4),
        clean_s=95.0,
        alone=False,
        step_s=(0.1, 1.0),
        repeats=2,
        sees_all=False,
        beside=switch_now_and_then,
    ),
)
