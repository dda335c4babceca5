"""Event logs of ml-goodput-measurement (github.com/AI-Hypercomputer/ml-goodput-measurement): jobs, steps, activities.

Each record says one thing: a job's start or end, a step's start, the beginning or end of an activity. Three of the
source's figures are known to be wrong and are not copied: a restart without a new job start hides in one long step;
what is loaded beside the steps is added on top of them; the last step before a restart counts as recovery whole.
The source's word for what a piece was stands in ``Part.cause``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from ...telemetry.vocabulary import TimeBucket
from .interval import Interval, Part
from .partition import Claim, partition
from .step_time import LONG_STEP, reference_step

_NS = 1_000_000_000
_START, _END = "_start_time", "_end_time"
_ELASTIC_WAITS = frozenset({"elastic_wait_start", "elastic_wait_end"})
RECOVERY, WASTED, OTHER = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", "WASTED_PROGRESS_FROM_DISRUPTION", "OTHER"
STARTUP, EXCLUDED = "PROGRAM_STARTUP", "EXCLUDED"
#: Activities: name in the records -> bucket, the source's word.
_ACTIVITIES: Mapping[str, tuple[TimeBucket, str]] = {
    "tpu_init": (TimeBucket.STARTING, "TPU_INITIALIZATION"),
    "training_prep": (TimeBucket.STARTING, "TRAINING_PREP"),
    "training_preparation": (TimeBucket.STARTING, "TRAINING_PREP"),
    "data_loading": (TimeBucket.DATA_STALL, "DATA_LOADING_SYNC"),
    "async_data_loading": (TimeBucket.DATA_STALL, "DATA_LOADING_ASYNC"),
    "checkpoint_save": (TimeBucket.CHECKPOINT_SAVE, "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"),
    "checkpoint_restore": (TimeBucket.CHECKPOINT_RESTORE, "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"),
    "elastic_reinit": (TimeBucket.RESTARTING, "ELASTIC_REINITIALIZATION"),
}
_ELASTIC: Mapping[str, tuple[TimeBucket, str]] = {
    "slice_down": (TimeBucket.RESTARTING, "ELASTIC_SLICE_DOWN"),
    "scale_up": (TimeBucket.RESTARTING, "ELASTIC_SCALE_UP"),
}
#: Of several claims to one moment. What goes on beside the steps only counts where no step is.
_EXCLUDED, _OUTER, _CUSTOM, _ACTIVITY, _STEP, _BESIDE, _REST = 6, 5, 4, 3, 2, 1, 0


@dataclass(slots=True)
class _Step:
    number: int
    begin_ns: int
    end_ns: int = 0  # 0: nobody knows
    job: int = 0
    own_ns: int = 0
    is_first: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class _Log:
    jobs_ns: list[int] = field(default_factory=list)
    end_ns: int = 0
    steps: list[_Step] = field(default_factory=list)
    activities: list[Claim] = field(default_factory=list)
    newest_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Of an elastic job, as shares of the slices that it has: on how many it stepped, how many it could have used."""

    stepping: float
    available: float


def intervals_of(
    records: Iterable[Mapping[str, Any]],
    *,
    until_s: float | None = None,
    exclude_s: Sequence[tuple[float, float]] = (),
    job: str = "",
) -> list[Interval]:
    """Pieces of the job's wall time, in order, from a log's records; empty without a job or step in them.

    until_s: when it was asked, for a job that had not ended. exclude_s: windows (begin, end) that a person left out; as
    the format has it, they take away from what was recorded only.
    """
    log = _read(records)
    if not log.jobs_ns and not log.steps:
        return []
    begin_ns = min([*log.jobs_ns, *(step.begin_ns for step in log.steps[:1])])
    end_ns = log.end_ns or (_ns(until_s) if until_s is not None else log.newest_ns)
    _close(log, end_ns)
    claims = [*_step_claims(log, end_ns), *log.activities]
    recorded = partition(begin_ns, end_ns, claims)
    for first, last in exclude_s:
        claims += [
            Claim(
                max(piece.begin_ns, _ns(first)), min(piece.end_ns, _ns(last)), TimeBucket.PLANNED, EXCLUDED, _EXCLUDED
            )
            for piece in recorded
            if piece.bucket is not TimeBucket.UNKNOWN and piece.cause != OTHER
        ]
    pieces = partition(begin_ns, end_ns, [claim for claim in claims if claim.end_ns > claim.begin_ns])
    lengths = np.array([step.own_ns for step in log.steps if step.own_ns])
    reference_ns = reference_step(lengths).step_ns
    return [
        Interval(
            run=job,
            job=job,
            number=number,
            begin_ns=piece.begin_ns,
            end_ns=piece.end_ns,
            parts=(Part(piece.bucket, piece.ns, piece.cause),),
            steps=sum(
                piece.begin_ns <= step.begin_ns < piece.end_ns
                for step in log.steps
                if piece.bucket is TimeBucket.PRODUCTIVE
            ),
            reference_ns=reference_ns,
        )
        for number, piece in enumerate(pieces)
    ]


def by_word(intervals: Iterable[Interval]) -> dict[str, int]:
    """Nanoseconds by the source's words for what is not productive; what has no word is OTHER."""
    sums: dict[str, int] = {}
    for interval in intervals:
        for part in interval.parts:
            if part.bucket is not TimeBucket.PRODUCTIVE:
                word = part.cause or OTHER
                sums[word] = sums.get(word, 0) + part.ns
    return sums


def efficiency(counts: Sequence[Mapping[str, Any]], end_s: float) -> Efficiency | None:
    """Shares of an elastic job's slices that stepped, and that were available; None where there were no slices.

    counts: records of t (seconds), active, total, available, in order of time; the last holds until ``end_s``.
    """
    total = stepping = available = 0.0
    for now, after in zip(counts, [*(float(each["t"]) for each in counts[1:]), end_s], strict=True):
        length_s = after - float(now["t"])
        total += length_s * float(now["total"])
        stepping += length_s * float(now["active"])
        available += length_s * float(now["available"])
    return Efficiency(stepping=stepping / total, available=available / total) if total else None


def is_record(values: Mapping[str, Any]) -> bool:
    """Whether these values look like a record of a log of ml-goodput-measurement, by their names alone.

    Any name that ends in ``_start_time`` or ``_end_time`` will do, and those of elastic waits; times are not checked.
    """
    return any(name.endswith((_START, _END)) or name in _ELASTIC_WAITS for name in values)


def _ns(seconds: float) -> int:
    return round(float(seconds) * _NS)


def _read(records: Iterable[Mapping[str, Any]]) -> _Log:
    log = _Log()
    opened: dict[str, int] = {}
    for record in records:
        times = [_ns(value) for name, value in record.items() if name.endswith("_time") or name == "t"]
        log.newest_ns = max([log.newest_ns, *times])
        if "job_start_time" in record:
            log.jobs_ns.append(_ns(record["job_start_time"]))
        elif "job_end_time" in record:
            log.end_ns = _ns(record["job_end_time"])
        elif "step_start_time" in record:
            step = _Step(int(record["step_count"]), _ns(record["step_start_time"]), job=len(log.jobs_ns))
            log.steps.append(step)
        elif "elastic_wait_start" in record:
            opened[str(record["elastic_wait_start"])] = _ns(record["t"])
        elif "elastic_wait_end" in record:
            name = str(record["elastic_wait_end"])
            bucket, word = _ELASTIC.get(name, (TimeBucket.RESTARTING, f"ELASTIC_{name.upper()}"))
            _close_activity(log, opened, name, _ns(record["t"]), bucket, word, _OUTER)
        else:
            _take_activity(log, opened, record)
    log.steps.sort(key=lambda step: step.begin_ns)
    return log


def _take_activity(log: _Log, opened: dict[str, int], record: Mapping[str, Any]) -> None:
    for key, value in record.items():
        if key.endswith(_START):
            opened[_activity(key.removesuffix(_START), record)] = _ns(value)
        elif key.endswith(_END):
            name = _activity(key.removesuffix(_END), record)
            bucket, word = _ACTIVITIES.get(name, (TimeBucket.PLANNED, name.upper()))
            rank = _CUSTOM if name not in _ACTIVITIES else _ACTIVITY
            if name == "elastic_reinit":
                rank = _OUTER
            elif name == "async_data_loading":
                rank = _BESIDE
            _close_activity(log, opened, name, _ns(value), bucket, word, rank)


def _activity(name: str, record: Mapping[str, Any]) -> str:
    return str(record["custom_badput_event_type"]) if name == "custom_badput_event" else name


def _close_activity(
    log: _Log, opened: dict[str, int], name: str, end_ns: int, bucket: TimeBucket, word: str, rank: int
) -> None:
    begin_ns = opened.pop(name, None)
    if begin_ns is not None and end_ns > begin_ns:
        log.activities.append(Claim(begin_ns, end_ns, bucket, word, rank))


def _close(log: _Log, end_ns: int) -> None:
    """Where each step ended, which were lost, and how long each took beside what else was recorded."""
    for step, after in zip_longest(log.steps, log.steps[1:]):
        same_job = after is not None and after.job == step.job
        if after is not None and same_job:
            step.end_ns = after.begin_ns
        elif after is None and log.end_ns:
            step.end_ns = end_ns
    lowest = None
    for step in reversed(log.steps):
        step.is_lost = lowest is not None and step.number >= lowest
        lowest = step.number if lowest is None else min(lowest, step.number)
    for place, step in enumerate(log.steps):
        step.is_first = place == 0 or log.steps[place - 1].job != step.job
        if step.end_ns:
            beside = partition(step.begin_ns, step.end_ns, [each for each in log.activities if each.rank > _STEP])
            step.own_ns = sum(piece.ns for piece in beside if not piece.cause)


def _step_claims(log: _Log, end_ns: int) -> list[Claim]:
    reference = reference_step(np.array([step.own_ns for step in log.steps if step.own_ns]))
    claims: list[Claim] = []
    first_ns = log.steps[0].begin_ns if log.steps else end_ns
    claims.append(Claim(min(log.jobs_ns, default=first_ns), first_ns, TimeBucket.STARTING, OTHER, _REST))
    for step, after in zip_longest(log.steps, log.steps[1:]):
        bucket, word = (TimeBucket.REWORK, WASTED) if step.is_lost else (TimeBucket.PRODUCTIVE, "")
        if not step.end_ns:
            claims += _unended(step, after, log, reference.step_ns, end_ns)
            continue
        too_long = max(reference.limit_ns, round(LONG_STEP * reference.step_ns))
        usual_ns = step.end_ns - step.begin_ns - (step.own_ns - reference.step_ns)
        if step.is_first and reference.step_ns and step.own_ns > reference.step_ns:
            start, cause = (TimeBucket.STARTING, STARTUP) if step.job <= 1 else (TimeBucket.RESTARTING, STARTUP)
        elif reference.step_ns and step.own_ns > too_long:
            start, cause = TimeBucket.RESTARTING, RECOVERY
        else:
            claims.append(Claim(step.begin_ns, step.end_ns, bucket, word, _STEP))
            continue
        claims.append(Claim(step.begin_ns, step.begin_ns + usual_ns, bucket, word, _STEP))
        claims.append(Claim(step.begin_ns + usual_ns, step.end_ns, start, cause, _STEP))
    return claims


def _unended(step: _Step, after: _Step | None, log: _Log, step_ns: int, end_ns: int) -> list[Claim]:
    """The last step before a restart, or before somebody asked: its work counts if a later one goes on from it."""
    if after is None:
        return [Claim(step.begin_ns, end_ns, TimeBucket.UNKNOWN, "", _STEP)]
    restarted_ns = next((time for time in log.jobs_ns if time > step.begin_ns), after.begin_ns)
    worked_ns = min(step.begin_ns + step_ns, restarted_ns)
    bucket, word = (TimeBucket.REWORK, WASTED) if step.is_lost else (TimeBucket.PRODUCTIVE, "")
    return [
        Claim(step.begin_ns, worked_ns, bucket, word, _STEP),
        Claim(worked_ns, after.begin_ns, TimeBucket.RESTARTING, RECOVERY, _STEP),
    ]
