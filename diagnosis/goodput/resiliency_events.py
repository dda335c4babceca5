"""Event logs of Google's resiliency library (github.com/AI-Hypercomputer/resiliency): starts, checkpoints, ends.

One JSON object per line, wherever in the line it begins. Of consecutive starts (or ends), one per node, the last
counts. Published there: goodput = (newest step saved - oldest step loaded) x length of a step / (last event - first
event), with the length of a step set by hand. Ours needs no hand: the steps between a load and a save took what passed
between them, and a step counts once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ...telemetry.vocabulary import TimeBucket
from .interval import Interval, Part
from .step_time import reference_step

SCHEDULED, STARTED, LOADED, SAVED = "user_scheduled", "job_started", "checkpoint_loaded", "checkpoint_saved"
USER_TERMINATED, TERMINATED = "user_terminated", "job_terminated"
_KINDS = frozenset({SCHEDULED, STARTED, LOADED, SAVED, USER_TERMINATED, TERMINATED})
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JobEvent:
    """step: of checkpoints, -1 none."""

    kind: str
    time_ns: int
    step: int = -1
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the source's own formula says. None where it cannot: nothing loaded, nothing saved."""

    min_loaded_step: int | None
    max_saved_step: int | None
    total_s: float
    effective_s: float | None
    goodput: float | None


def parse_event(line: str) -> JobEvent | None:
    """The event of a log line, None for a line of something else."""
    start = line.find("{")
    if start < 0:
        return None
    try:
        values: Any = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get("event_type") not in _KINDS:
        return None
    try:
        when = datetime.fromisoformat(str(values["timestamp"]).replace("Z", "+00:00"))
        step = int(values.get("step", -1))
    except (KeyError, TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    since = when - datetime(1970, 1, 1, tzinfo=timezone.utc)
    time_ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    return JobEvent(str(values["event_type"]), time_ns, step, str(values.get("job_name") or ""))


def one_of_each(events: Iterable[JobEvent]) -> list[JobEvent]:
    """The events in order of time; of consecutive starts or ends (one per node) only the last.

    Without a "user_scheduled" the first event stands for it.
    """
    ordered = sorted(events, key=lambda event: event.time_ns)
    kept: list[JobEvent] = []
    for event in ordered:
        if kept and event.kind == kept[-1].kind and event.kind in (STARTED, TERMINATED):
            kept[-1] = event
        else:
            kept.append(event)
    if ordered and not any(event.kind == SCHEDULED for event in kept):
        kept.insert(0, JobEvent(SCHEDULED, ordered[0].time_ns, job=ordered[0].job))
    return kept


def published(events: Sequence[JobEvent], step_s: float) -> Published:
    """Goodput by the source's own formula, and what it rests on.

    events: of ``one_of_each``; step_s: a step's length, set by hand.
    """
    loaded = [event.step for event in events if event.kind == LOADED and event.step >= 0]
    saved = [event.step for event in events if event.kind == SAVED and event.step >= 0]
    total_s = (events[-1].time_ns - events[0].time_ns) / _NS if events else 0.0
    low, high = min(loaded, default=None), max(saved, default=None)
    effective_s = (high - low) * step_s if low is not None and high is not None else None
    return Published(
        min_loaded_step=low,
        max_saved_step=high,
        total_s=total_s,
        effective_s=effective_s,
        goodput=effective_s / total_s if effective_s is not None and total_s else None,
    )


def intervals_of(events: Sequence[JobEvent]) -> list[Interval]:
    """One interval between each two events, with its steps. events: as ``one_of_each`` gives them."""
    step_ns = _step_ns(events)
    out: list[_Stretch] = []
    running, step, stopped, asked, is_first = False, -1, False, False, True
    for event, following in itertools.pairwise(events):
        if event.kind == STARTED:
            running, stopped, asked, step = False, False, False, -1
        elif event.kind == LOADED:
            running, step = True, max(0, event.step)
            _lose(out, step)
        elif event.kind == SAVED:
            step, running = max(step, event.step), True
        elif event.kind == USER_TERMINATED:
            asked = True
        elif event.kind == TERMINATED:
            running, stopped = False, True
        stretch = _Stretch(event.time_ns, following.time_ns, TimeBucket.UNKNOWN)
        if event.kind == SCHEDULED:
            stretch.bucket = TimeBucket.QUEUED if following.kind == STARTED else TimeBucket.STARTING
        elif stopped:
            stretch.bucket = TimeBucket.PLANNED if asked else TimeBucket.RESTARTING
        elif asked:
            stretch.bucket = TimeBucket.SHUTDOWN
        elif running and following.kind == SAVED and following.step > step:
            stretch.bucket, stretch.first, stretch.last = TimeBucket.PRODUCTIVE, step, following.step
            is_first = False
        elif running and following.kind in (TERMINATED, STARTED):
            stretch.bucket = TimeBucket.REWORK  # what was done since the newest checkpoint, and the end of it
        elif running:
            stretch.bucket = TimeBucket.PRODUCTIVE if following.kind == USER_TERMINATED else TimeBucket.UNKNOWN
        else:
            stretch.bucket = TimeBucket.STARTING if is_first else TimeBucket.RESTARTING
        out.append(stretch)
    if out and out[-1].bucket is TimeBucket.REWORK:
        out[-1].bucket = TimeBucket.SHUTDOWN  # nothing was loaded after it: it was the end
    return [stretch.interval(number, step_ns, events[0].job) for number, stretch in enumerate(out)]


@dataclass(slots=True)
class _Stretch:
    """first, last: steps that a checkpoint holds before and after it."""

    begin_ns: int
    end_ns: int
    bucket: TimeBucket
    first: int = -1
    last: int = -1
    kept: int = -1  # of its steps those before this one; -1 all

    def interval(self, number: int, step_ns: int, job: str) -> Interval:
        ns, steps = self.end_ns - self.begin_ns, max(0, self.last - self.first)
        parts = [Part(self.bucket, ns)]
        if self.kept >= 0 and steps:
            kept_ns = ns * max(0, self.kept - self.first) // steps
            parts = [Part(TimeBucket.PRODUCTIVE, kept_ns), Part(TimeBucket.REWORK, ns - kept_ns)]
        return Interval(
            run=job,
            job=job,
            number=number,
            begin_ns=self.begin_ns,
            end_ns=self.end_ns,
            parts=tuple(part for part in parts if part.ns),
            steps=steps,
            first_step=self.first if steps else -1,
            last_step=self.last - 1 if steps else -1,
            saved_step=max(0, self.last),
            reference_ns=step_ns,
        )


def _lose(stretches: Iterable[_Stretch], step: int) -> None:
    """A checkpoint of this step was loaded: what was done beyond it has to be done again."""
    for stretch in stretches:
        if stretch.last > step:
            stretch.kept = step if stretch.kept < 0 else min(stretch.kept, step)


def _step_ns(events: Sequence[JobEvent]) -> int:
    """The usual length of a step, from one checkpoint to the next."""
    lengths = [
        (after.time_ns - before.time_ns) / (after.step - before.step)
        for before, after in itertools.pairwise(events)
        if before.kind in (SAVED, LOADED) and after.kind == SAVED and after.step > before.step >= 0
    ]
    return reference_step(np.array(lengths)).step_ns if lengths else 0
