"""Intervals of a run, put in order: revisions over what they replace, gaps named, chained jobs joined. Pure.

A job's intervals come in any order and more than once. What is missing between two of them is unknown. Where a run's
next job begins after the one before, the time between was spent in the queue, and what that one had not saved is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...telemetry.vocabulary import TimeBucket
from .interval import Interval, Part, as_lost

World = tuple[str, int]
_DOWN = (
    TimeBucket.FAULT_BEFORE_DETECTION,
    TimeBucket.FAULT_AFTER_DETECTION,
    TimeBucket.SHUTDOWN,
    TimeBucket.RESTARTING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One time that a job stood still and went on, or did not. cause: key of its finding, "" none was told.

    ns: by bucket, what it took, lost work included. planned: somebody had asked for it. went_on: a step came after it.
    lost_steps: done before it, and not in the checkpoint from which it went on (or, if it did not, would have).
    """

    job: str
    begin_ns: int
    end_ns: int
    cause: str
    planned: bool
    went_on: bool
    ns: Mapping[TimeBucket, int]
    gpu_ns: int
    lost_steps: int = 0


def runs_of(intervals: Iterable[Interval]) -> dict[str, list[Interval]]:
    """By run its intervals in order of time, and whole: every nanosecond of a world is in one of them.

    Of several with one number the last given counts; gaps are filled.
    """
    newest: dict[tuple[str, str, int, int], Interval] = {}
    for interval in intervals:
        newest[interval.run or interval.job, interval.job, interval.world, interval.number] = interval
    runs: dict[str, dict[World, list[Interval]]] = {}
    for (run, job, world, _), interval in sorted(newest.items(), key=lambda item: item[0]):
        runs.setdefault(run, {}).setdefault((job, world), []).append(interval)
    return {run: _chained(run, [list(_whole(each)) for each in worlds.values()]) for run, worlds in runs.items()}


def _whole(intervals: Sequence[Interval]) -> Iterator[Interval]:
    """Of one world. What is missing in between is unknown."""
    end_ns = 0
    for interval in sorted(intervals, key=lambda interval: (interval.begin_ns, interval.number)):
        if end_ns and interval.begin_ns > end_ns:
            yield filler(interval, end_ns, interval.begin_ns, TimeBucket.UNKNOWN, gpus=interval.gpus)
        yield interval
        end_ns = max(end_ns, interval.end_ns)


def filler(beside: Interval, begin_ns: int, end_ns: int, bucket: TimeBucket, *, gpus: int, cause: str = "") -> Interval:
    """An interval without steps of the job of ``beside``, all of it in one bucket; Unix ns. Its number is -1."""
    return Interval(
        run=beside.run,
        job=beside.job,
        world=beside.world,
        attempt=beside.attempt,
        number=-1,
        begin_ns=begin_ns,
        end_ns=end_ns,
        gpus=gpus,
        parts=(Part(bucket, end_ns - begin_ns, cause),),
        saved_step=beside.saved_step,
    )


def _chained(run: str, worlds: list[list[Interval]]) -> list[Interval]:
    """Worlds of a run, one after the other where that is how they ran."""
    worlds.sort(key=lambda each: each[0].begin_ns)
    chained: list[Interval] = []
    for number, intervals in enumerate(worlds):
        begin_ns = intervals[0].begin_ns
        before = [other for other in worlds[:number] if other[0].job != intervals[0].job]
        if before:
            last = max(before, key=lambda other: other[-1].end_ns)
            if last[-1].end_ns <= begin_ns:
                has_gone_on = any(interval.steps for interval in intervals)
                if has_gone_on:
                    lost = {id(each): new for each, new in zip(last, unsaved_lost(last), strict=True)}
                    chained = [lost.get(id(each), each) for each in chained]
                    last[:] = lost.values()
                if last[-1].end_ns < begin_ns:
                    chained.append(filler(intervals[0], last[-1].end_ns, begin_ns, TimeBucket.QUEUED, gpus=0))
        chained += intervals
    return sorted(chained, key=lambda interval: (interval.begin_ns, interval.end_ns))


def unsaved_lost(intervals: Sequence[Interval]) -> list[Interval]:
    """One world's intervals, with those steps as rework that its newest checkpoint does not hold. Not for none."""
    saved = intervals[-1].saved_step
    cause = next((part.cause for each in reversed(intervals) for part in each.parts if part.cause), "")
    return [as_lost(each, cause) if each.steps and each.first_step >= saved else each for each in intervals]


def interruptions_of(intervals: Sequence[Interval]) -> list[Interruption]:
    """The interruptions in one run's intervals, by their begin.

    The end of a job that had done its work, or was only stopped, is none.
    """
    found: list[Interruption] = []
    worlds: dict[World, list[Interval]] = {}
    for interval in intervals:
        worlds.setdefault((interval.job, interval.world), []).append(interval)
    for each in worlds.values():
        found += _interruptions_of_world(each)
    return sorted(found, key=lambda interruption: interruption.begin_ns)


def _interruptions_of_world(intervals: Sequence[Interval]) -> Iterator[Interruption]:
    lost: list[Interval] = []  # since the last interval whose steps count
    down: list[Interval] = []
    done = 0  # steps of the training before the interruption
    for interval in [*intervals, None]:
        if interval is not None and not interval.steps and (down or any(interval.of(bucket) for bucket in _DOWN)):
            down.append(interval)
            continue
        if down:
            kept = down[-1].saved_step if interval is None or not interval.steps else interval.first_step
            if found := _as_interruption(down, lost, max(0, done - kept), went_on=interval is not None):
                yield found
            down, lost = [], []
        if interval is not None and interval.steps:
            done = interval.last_step + 1
        if interval is not None and interval.of(TimeBucket.REWORK):
            lost = [*lost, interval]
        elif interval is not None and interval.steps:  # an evaluation or a save after the last step ends nothing
            lost = []


def _as_interruption(
    down: Sequence[Interval], lost: Sequence[Interval], lost_steps: int, *, went_on: bool
) -> Interruption | None:
    cause = next((part.cause for each in down for part in each.parts if part.cause), "")
    if not cause and not went_on:
        return None
    ns: dict[TimeBucket, int] = {}
    gpu_ns = 0
    work = [(part, each.gpus) for each in lost for part in each.parts if part.bucket is TimeBucket.REWORK]
    for part, gpus in [*work, *((part, each.gpus) for each in down for part in each.parts)]:
        ns[part.bucket] = ns.get(part.bucket, 0) + part.ns
        gpu_ns += part.ns * gpus
    return Interruption(
        job=down[0].job,
        begin_ns=down[0].begin_ns,
        end_ns=down[-1].end_ns,
        cause=cause,
        planned=TimeBucket.PLANNED in ns or "/planned_stop/" in cause,
        went_on=went_on,
        ns=ns,
        gpu_ns=gpu_ns,
        lost_steps=lost_steps,
    )
