"""An interval of a job: a stretch of wall time whose nanoseconds are divided over buckets without rest.

Immutable; ``as_body`` and ``of_body`` are its form in findings and files (docs/accounting.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...telemetry.records import Finding
from ...telemetry.vocabulary import TimeBucket

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Part:
    """ns of one bucket. cause: key of the finding that they are charged to, "" none."""

    bucket: TimeBucket
    ns: int
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """begin_ns, end_ns: Unix time. parts: sum to end_ns - begin_ns exactly.

    number: counts the intervals of a job's world from 0, without gaps; one that comes again replaces what it was.
    gpus: how many stood behind each of its seconds. gpus_held: what the job was given for all its worlds, 0 unknown.
    first_step, last_step: of the training, counted over attempts; -1 none. saved_step: steps that the newest checkpoint
    holds at its end. reference_ns: a step's usual length, 0 unknown. evaluations: how many there were in its steps.
    problem: what went wrong in accounting for the time before its end, "" nothing.
    """

    run: str = ""
    job: str = ""
    world: int = 0
    attempt: str = ""
    number: int = 0
    begin_ns: int
    end_ns: int
    gpus: int = 1
    gpus_held: int = 0
    parts: tuple[Part, ...]
    steps: int = 0
    first_step: int = -1
    last_step: int = -1
    saved_step: int = 0
    reference_ns: int = 0
    evaluations: int = 0
    problem: str = ""

    @property
    def ns(self) -> int:
        """The interval's length in nanoseconds."""
        return self.end_ns - self.begin_ns

    @property
    def bucket(self) -> TimeBucket:
        """The bucket that took most of the interval; of equal ones the first. UNKNOWN without parts."""
        return max(self.parts, key=lambda part: part.ns).bucket if self.parts else TimeBucket.UNKNOWN

    def of(self, bucket: TimeBucket) -> int:
        """Nanoseconds of the interval in this bucket."""
        return sum(part.ns for part in self.parts if part.bucket is bucket)

    def relabelled(self, change: Callable[[Part], Iterable[Part]]) -> Interval:
        """The interval with each part replaced by what ``change`` makes of it. Raises ValueError if the sum changes."""
        changed = replace(self, parts=merge(part for old in self.parts for part in change(old)))
        changed.check()
        return changed

    def check(self) -> None:
        """Raises ValueError where the interval ends before it begins, or its parts do not sum to its length."""
        if self.end_ns < self.begin_ns:
            raise ValueError(f"interval {self.number} of {self.job} ends before it begins")
        if sum(part.ns for part in self.parts) != self.ns or any(part.ns < 0 for part in self.parts):
            raise ValueError(f"interval {self.number} of {self.job}: its parts do not sum to its length")


def merge(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of one bucket and cause as one, in the order of the buckets; empty ones left out."""
    sums: dict[tuple[TimeBucket, str], int] = {}
    for part in parts:
        sums[part.bucket, part.cause] = sums.get((part.bucket, part.cause), 0) + part.ns
    order = list(TimeBucket)
    places = sorted(sums, key=lambda place: (order.index(place[0]), place[1]))
    return tuple(Part(bucket, sums[bucket, cause], cause) for bucket, cause in places if sums[bucket, cause])


def as_lost(interval: Interval, cause: str) -> Interval:
    """The interval with its productive time as rework, charged to ``cause``: its steps have to be done again.

    What was lost to something else already keeps that bucket and cause.
    """

    def lose(part: Part) -> Iterable[Part]:
        return (Part(TimeBucket.REWORK, part.ns, cause),) if part.bucket is TimeBucket.PRODUCTIVE else (part,)

    return interval.relabelled(lose)


def slow_excess_ns(interval: Interval, reference_ns: int) -> int:
    """By how many ns all steps of the interval took longer than ``reference_ns`` each; negative: shorter."""
    return interval.of(TimeBucket.PRODUCTIVE) - interval.steps * reference_ns


def as_slow(
    interval: Interval, reference_ns: int, cause: str, credit_ns: int = 0, *, evaluation_ns: int = 0
) -> Interval:
    """The interval with what its steps took over ``reference_ns`` each as straggler loss, charged to ``cause``.

    credit_ns: what those before were short. evaluation_ns: the usual length of an evaluation, whose excess goes the
    same way; 0 unknown.
    """
    left = {TimeBucket.PRODUCTIVE: slow_excess_ns(interval, reference_ns) - credit_ns if reference_ns else 0}
    if evaluation_ns and interval.evaluations:
        left[TimeBucket.PLANNED] = interval.of(TimeBucket.PLANNED) - interval.evaluations * evaluation_ns

    def slow(part: Part) -> Iterable[Part]:
        taken = min(max(0, left.get(part.bucket, 0)), part.ns)
        if not taken:
            return (part,)
        left[part.bucket] -= taken
        return Part(part.bucket, part.ns - taken, part.cause), Part(TimeBucket.STRAGGLER_LOSS, taken, cause)

    return interval.relabelled(slow)


_NUMBERS = ("number", "world", "begin_ns", "end_ns", "gpus", "steps", "first_step", "last_step", "saved_step")
#: Left out where they are 0; earlier releases do not have them.
_LATER = ("gpus_held", "evaluations")


def as_body(interval: Interval) -> dict[str, Any]:
    """The interval as it stands in a finding's ``body["interval"]``; who it is of stands in the finding's identity."""
    return {
        "schema": SCHEMA,
        **{name: getattr(interval, name) for name in _NUMBERS},
        "reference_ns": interval.reference_ns,
        "bucket": interval.bucket.value,
        "parts": [
            {"bucket": part.bucket.value, "ns": part.ns, **({"cause": part.cause} if part.cause else {})}
            for part in interval.parts
        ],
        **{name: value for name in _LATER if (value := getattr(interval, name))},
        **({"problem": interval.problem} if interval.problem else {}),
    }


def of_body(body: Mapping[str, Any], *, run: str, job: str, attempt: str) -> Interval:
    """The interval from what ``as_body`` gave. Raises ValueError with one line for what is none.

    A bucket of a later release is unknown.
    """
    try:
        parts = merge(
            Part(_bucket(str(part["bucket"])), int(part["ns"]), str(part.get("cause") or "")) for part in body["parts"]
        )
        numbers = {name: int(body[name]) for name in _NUMBERS}
        interval = Interval(
            run=run, job=job, attempt=attempt, parts=parts, reference_ns=int(body.get("reference_ns", 0)),
            problem=str(body.get("problem") or ""), **numbers, **{name: int(body.get(name, 0)) for name in _LATER},
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no interval: {type(error).__name__} {error}") from None
    interval.check()
    return interval


def interval_of(finding: Finding) -> Interval | None:
    """The interval that a finding tells; None for a finding of another sort, or of a release with other words."""
    body = finding.body.get("interval")
    if body is None:
        return None
    who = finding.identity
    try:
        return of_body(body, run=who.run, job=who.job, attempt=who.attempt)
    except ValueError:
        return None


def _bucket(word: str) -> TimeBucket:
    try:
        return TimeBucket(word)
    except ValueError:
        return TimeBucket.UNKNOWN
