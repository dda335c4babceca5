"""The truth: which fault, where, since when; and what became of every second of every job. Never in a record.

Spans of a job follow each other without a gap: their lengths add up to its wall time exactly (integers, nanoseconds).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from .clock import START_UNIX_NS, ns


class TimeUse(str, Enum):
    QUEUED = "queued"
    STARTING = "starting"  # the first launch to its first step, and what that takes longer for being the first
    RESTORE = "checkpoint_restore"
    PRODUCTIVE = "productive"
    EVALUATION = "evaluation"
    SAVE = "checkpoint_save"
    DATA_STALL = "data_stall"  # until the last rank has its batch
    STRAGGLER = "straggler_loss"  # what steps take longer because some ranks are slower than others
    REWORK = "rework"  # steps that were made, and lost for want of a checkpoint; the one that never ended
    STALLED = "stalled"  # something stands still: until it goes on, or the first process ends
    SHUTDOWN = "shutdown"  # from the first process's end, or the last step's, to the last process's
    RESTARTING = "restarting"  # of later launches what STARTING is of the first, and the wait before them
    PLANNED = "planned"  # its nodes were taken away: from then, or its processes' ends, until the next launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a job's time that went into one bucket. Times are ns of the simulation.

    step: of PRODUCTIVE spans, counted over the whole run; -1 none.
    """

    job: str
    attempt: int
    bucket: TimeUse
    begin_ns: int
    end_ns: int
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a fault is, said by the fault itself. ranks: of ``job``, where it has some. devices: names.

    kinds: verdicts that tell it rightly, in the words of ``telemetry.vocabulary``; () none should be told.
    culprit: the job whose doing it is, where it must be named. victims: jobs that suffer from it. signs: verdicts on
    single jobs that it fails first, as far as one may say before several have shown it: right, and not yet the answer.
    told_by: collectors of its nodes that tell ``condition``, or the like, by themselves. blind: they do not watch in
    this run, so that nobody can know it.
    """

    fault: str
    number: str
    scope: str
    at_s: float
    until_s: float | None = None
    job: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    condition: str = ""
    victims: tuple[str, ...] = ()
    culprit: str = ""
    signs: tuple[str, ...] = ()
    told_by: tuple[str, ...] = ()
    blind: bool = False


@dataclass(kw_only=True)
class GroundTruth:
    """The faults of a run, and what became of every second of its jobs. start_unix_ns: the run's begin, by the bus's
    clock.
    """

    seed: int
    scenario: str
    start_unix_ns: int = START_UNIX_NS
    faults: list[Truth] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def add(self, job: str, attempt: int, bucket: TimeUse, until_s: float, step: int = -1) -> None:
        """Adds the job's next span, from where its last one ended until ``until_s``; none where that is not later.

        Raises ValueError for a job that has not been opened.
        """
        begin_ns = self.reach_ns(job)
        if begin_ns is None:
            raise ValueError(f"{job} has not been opened")
        end_ns = ns(until_s)
        if end_ns > begin_ns:
            self.spans.append(
                Span(job=job, attempt=attempt, bucket=bucket, begin_ns=begin_ns, end_ns=end_ns, step=step)
            )
            self._reach[job] = end_ns

    def open(self, job: str, at_s: float, *, gpus: int) -> None:
        """Begins the account of a job that was asked for at ``at_s``: from there on every second of it has a bucket."""
        self._gpus[job] = gpus
        self._reach[job] = self._begin[job] = ns(at_s)

    def reach_ns(self, job: str) -> int | None:
        """Up to when (ns of the simulation) it is told what became of the job; None: it was not opened."""
        return self._reach.get(job)

    def begin_ns(self, job: str) -> int:
        """When the job was asked for, in ns of the simulation. Raises KeyError for a job that was not opened."""
        return self._begin[job]

    def lose(self, job: str, attempt: int, after_step: int) -> None:
        """Turns productive spans of this attempt from ``after_step`` on into rework: the steps were not saved."""

        def is_lost(span: Span) -> bool:
            mine = span.job == job and span.attempt == attempt
            return mine and span.bucket is TimeUse.PRODUCTIVE and span.step >= after_step

        self.spans = [replace(span, bucket=TimeUse.REWORK) if is_lost(span) else span for span in self.spans]

    def sums_ns(self, job: str) -> dict[TimeUse, int]:
        """The job's time in ns by bucket, over all its attempts; buckets without time are left out."""
        sums: dict[TimeUse, int] = {}
        for span in self.spans:
            if span.job == job:
                sums[span.bucket] = sums.get(span.bucket, 0) + span.end_ns - span.begin_ns
        return sums

    def as_json(self) -> dict[str, Any]:
        """The document of truth.json, which ``scoring`` reads."""
        return {
            "schema": 1,
            "scenario": self.scenario,
            "seed": self.seed,
            "start_unix_ns": self.start_unix_ns,
            "faults": [asdict(fault) for fault in self.faults],
            "jobs": {
                job: {
                    "gpus": self._gpus[job],
                    "begin_ns": self._begin[job],
                    "end_ns": self._reach[job],
                    "sums_ns": {bucket.value: value for bucket, value in self.sums_ns(job).items()},
                }
                for job in self._begin
            },
            "spans": [{**asdict(span), "bucket": span.bucket.value} for span in self.spans],
        }

    _reach: dict[str, int] = field(default_factory=dict)
    _begin: dict[str, int] = field(default_factory=dict)
    _gpus: dict[str, int] = field(default_factory=dict)
