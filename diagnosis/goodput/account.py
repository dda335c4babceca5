"""A run's account: its seconds by bucket, and the field's figures from them. Pure; nothing is rounded before the end.

goodput  = productive time / wall time (runtime goodput as Google has it, preserved steps only)
ETTR     = productive time / (wall time - queued): effective training time ratio (Meta, Llama 3; ByteRobust); planned
           time is left out of the divisor where that is asked for; cumulative, and over a sliding hour
downtime = checkpoint overhead + sum over errors of (detection + lost work + shutdown + restart) (NVIDIA's cost model of
           large runs); per run, over its chained jobs. What passes between a fault's detection and the first process's
           end counts as shutdown: the formula has no other place for it
hardware downtime: the same, of faults of hardware alone; as a share of wall time and of downtime
MTTF     : see mean_time_to_failure.py; how often to save: checkpoint_interval.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from ...telemetry.vocabulary import TimeBucket
from .checkpoint_interval import CheckpointInterval, checkpoint_interval
from .interval import Interval
from .mean_time_to_failure import TimeToFailure, time_to_failure
from .run_intervals import Interruption, interruptions_of
from .spare import spare_gpu_ns

_NS = 1_000_000_000
HOUR_NS = 3600 * _NS
#: Points of the sliding figure that are told.
MOST_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptionCause:
    """What is known of the finding behind an interruption: incident, kind and class, where, and whose job it was."""

    kind: str = "unknown"
    incident: str = ""
    node: str = ""
    tenant: str = ""
    is_hardware: bool = False


UNKNOWN_CAUSE = InterruptionCause()


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """Nanoseconds of the formula's five parts; ``total`` is their sum."""

    checkpoint_overhead_ns: int = 0
    detection_ns: int = 0
    lost_work_ns: int = 0
    shutdown_ns: int = 0
    restart_ns: int = 0

    @property
    def total_ns(self) -> int:
        """The sum of all five parts."""
        return self.checkpoint_overhead_ns + self.detection_ns + self.lost_work_ns + self.shutdown_ns + self.restart_ns

    def plus(self, other: Downtime) -> Downtime:
        """The sum of both, part by part."""
        return Downtime(**{name: getattr(self, name) + getattr(other, name) for name in Downtime.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """What one class of causes, a node, or a tenant's jobs have cost. failures: interruptions; a slow rank has none."""

    failures: int
    gpu_seconds: float
    mttf: TimeToFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """ns: wall time by bucket, sums to wall_ns exactly; gpu_ns the same times its ranks' GPUs (none while queued); its
    ``spare`` beside them: GPUs that the job held without a rank.

    reference_ns: usual step as last told; ettr_hour: (Unix ns, ETTR of the hour before). Shares are None where there is
    nothing to divide by.
    """

    run: str
    jobs: tuple[str, ...]
    begin_ns: int
    end_ns: int
    wall_ns: int
    gpus: int
    steps: int
    reference_ns: int
    ns: Mapping[TimeBucket, int]
    gpu_ns: Mapping[TimeBucket, int]
    goodput: float | None
    ettr: float | None
    ettr_without_planned: float | None
    ettr_hour: tuple[tuple[int, float], ...]
    unknown_share: float | None
    downtime: Downtime
    hardware_downtime: Downtime
    interruptions: tuple[Interruption, ...]
    mttf: TimeToFailure
    mttf_hardware: TimeToFailure
    checkpoints: CheckpointInterval | None = None
    by_kind: Mapping[str, Charged] = field(default_factory=dict)
    by_node: Mapping[str, Charged] = field(default_factory=dict)
    by_tenant: Mapping[str, Charged] = field(default_factory=dict)


def account_of(
    run: str, intervals: Sequence[Interval], causes: Mapping[str, InterruptionCause] | None = None
) -> RunAccount:
    """The account of one run: nanoseconds by bucket, goodput, ETTR, interruptions and what each cause has cost.

    intervals: of one run, as ``run_intervals.runs_of`` gives them. causes: by key of the finding, whom its
    interruptions are charged to (kind, node, tenant, hardware or not); one that is missing counts as unknown.
    """
    known = causes or {}
    ns, gpu_ns = _sums(intervals)
    gpu_ns[TimeBucket.SPARE] += spare_gpu_ns(intervals)
    wall_ns = sum(ns.values())
    productive_ns, queued_ns = ns[TimeBucket.PRODUCTIVE], ns[TimeBucket.QUEUED]
    interruptions = interruptions_of(intervals)
    errors = [each for each in interruptions if not each.planned]
    hardware = [each for each in errors if known.get(each.cause, UNKNOWN_CAUSE).is_hardware]
    running_s = (wall_ns - queued_ns) / _NS
    mttf = time_to_failure(len(errors), running_s)
    return RunAccount(
        run=run,
        jobs=tuple(dict.fromkeys(interval.job for interval in intervals)),
        begin_ns=min((interval.begin_ns for interval in intervals), default=0),
        end_ns=max((interval.end_ns for interval in intervals), default=0),
        wall_ns=wall_ns,
        gpus=max((interval.gpus for interval in intervals), default=0),
        steps=sum(interval.steps for interval in intervals),
        reference_ns=next((each.reference_ns for each in reversed(intervals) if each.reference_ns), 0),
        ns=ns,
        gpu_ns=gpu_ns,
        goodput=_ratio(productive_ns, wall_ns),
        ettr=_ratio(productive_ns, wall_ns - queued_ns),
        ettr_without_planned=_ratio(productive_ns, wall_ns - queued_ns - ns[TimeBucket.PLANNED]),
        ettr_hour=tuple(sliding_ettr(intervals)),
        unknown_share=_ratio(ns[TimeBucket.UNKNOWN], wall_ns),
        downtime=_sum([Downtime(checkpoint_overhead_ns=ns[TimeBucket.CHECKPOINT_SAVE]), *map(downtime_of, errors)]),
        hardware_downtime=_sum(map(downtime_of, hardware)),
        interruptions=tuple(interruptions),
        mttf=mttf,
        mttf_hardware=time_to_failure(len(hardware), running_s),
        checkpoints=checkpoint_interval(intervals, mttf),
        by_kind=_charged(intervals, errors, known, running_s, lambda cause: cause.kind),
        by_node=_charged(intervals, errors, known, running_s, lambda cause: cause.node),
        by_tenant=_charged(intervals, errors, known, running_s, lambda cause: cause.tenant),
    )


def downtime_of(interruption: Interruption) -> Downtime:
    """An interruption's nanoseconds by the parts of the downtime formula."""
    ns = interruption.ns
    return Downtime(
        detection_ns=ns.get(TimeBucket.FAULT_BEFORE_DETECTION, 0),
        lost_work_ns=ns.get(TimeBucket.REWORK, 0),
        shutdown_ns=ns.get(TimeBucket.FAULT_AFTER_DETECTION, 0) + ns.get(TimeBucket.SHUTDOWN, 0),
        restart_ns=ns.get(TimeBucket.RESTARTING, 0) + ns.get(TimeBucket.CHECKPOINT_RESTORE, 0),
    )


def sliding_ettr(intervals: Sequence[Interval], window_ns: int = HOUR_NS) -> list[tuple[int, float]]:
    """(Unix ns of an interval's end, ETTR of the window before it), at most ``MOST_POINTS`` of them.

    Within an interval its parts are spread evenly. Windows in which all was queued are left out.
    """
    if not intervals:
        return []
    begins = np.array([each.begin_ns for each in intervals], np.int64)
    ends = np.array([each.end_ns for each in intervals], np.int64)
    productive = np.array([each.of(TimeBucket.PRODUCTIVE) for each in intervals], np.float64)
    counted = np.array([each.ns - each.of(TimeBucket.QUEUED) for each in intervals], np.float64)
    length = np.maximum(ends - begins, 1)
    places = np.unique(np.linspace(0, ends.size - 1, min(MOST_POINTS, ends.size)).astype(int))
    points = []
    for at in np.unique(ends[places]).tolist():
        inside = np.clip(np.minimum(ends, at) - np.maximum(begins, at - window_ns), 0, None) / length
        divisor = float((counted * inside).sum())
        if divisor:
            points.append((at, float((productive * inside).sum()) / divisor))
    return points


def expected_ettr(
    *, nodes: int, failures_per_node_day: float, restart_s: float, save_s: float, every_s: float
) -> float:
    """The ETTR that a run of this size can hope for, with a checkpoint every ``every_s`` that takes ``save_s``.

    (1 - N r (u + D/2)) / (1 + w/D), with failure rate r per node and day, restart time u, checkpoint time w and
    distance D (Meta, "Revisiting Reliability in Large-Scale ML Clusters").
    """
    rate = nodes * failures_per_node_day / 86_400.0
    return float((1.0 - rate * (restart_s + every_s / 2.0)) / (1.0 + save_s / every_s))


def best_checkpoint_distance_s(*, nodes: int, failures_per_node_day: float, save_s: float) -> float:
    """The best seconds between checkpoints, by Young's formula: sqrt(2 w / (N r)). save_s: what one takes."""
    return math.sqrt(2.0 * save_s * 86_400.0 / (nodes * failures_per_node_day))


def _sums(intervals: Iterable[Interval]) -> tuple[dict[TimeBucket, int], dict[TimeBucket, int]]:
    ns, gpu_ns = dict.fromkeys(TimeBucket, 0), dict.fromkeys(TimeBucket, 0)
    for interval in intervals:
        for part in interval.parts:
            ns[part.bucket] += part.ns
            gpu_ns[part.bucket] += part.ns * interval.gpus
    return ns, gpu_ns


def _charged(
    intervals: Sequence[Interval],
    errors: Sequence[Interruption],
    known: Mapping[str, InterruptionCause],
    running_s: float,
    name_of: Callable[[InterruptionCause], str],
) -> dict[str, Charged]:
    failures: dict[str, int] = {}
    gpu_ns: dict[str, int] = {}
    for error in errors:
        if name := name_of(known.get(error.cause, UNKNOWN_CAUSE)):
            failures[name] = failures.get(name, 0) + 1
    for interval in intervals:
        for part in interval.parts:
            if part.cause and (name := name_of(known.get(part.cause, UNKNOWN_CAUSE))):
                gpu_ns[name] = gpu_ns.get(name, 0) + part.ns * interval.gpus
    return {
        name: Charged(
            failures=failures.get(name, 0),
            gpu_seconds=gpu_ns.get(name, 0) / _NS,
            mttf=time_to_failure(failures.get(name, 0), running_s),
        )
        for name in sorted({*failures, *gpu_ns}, key=lambda name: (-gpu_ns.get(name, 0), name))
    }


def _sum(parts: Iterable[Downtime]) -> Downtime:
    total = Downtime()
    for part in parts:
        total = total.plus(part)
    return total


def _ratio(part: int, whole: int) -> float | None:
    return float(Fraction(part, whole)) if whole > 0 else None
