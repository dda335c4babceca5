"""GPUs that a job holds and on which none of its ranks runs, by the scheduler's word. Pure.

They cost GPU time beside whatever the job does, and no wall time: its seconds are in their own buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...telemetry.vocabulary import TimeBucket
from .interval import Interval


def spare_gpu_ns(intervals: Iterable[Interval]) -> int:
    """GPU nanoseconds, in one run's intervals, that a job held without a rank on them.

    Jobs are looked at one by one; the worlds of a job use its GPUs together.
    """
    by_job: dict[str, list[Interval]] = {}
    for interval in intervals:
        by_job.setdefault(interval.job, []).append(interval)
    return sum(_of_job(each) for each in by_job.values() if any(interval.gpus_held for interval in each))


def _of_job(intervals: Sequence[Interval]) -> int:
    """What it was last told to hold counts while any of its worlds is accounted for; before that is told, nothing."""
    ordered = sorted(intervals, key=lambda interval: interval.begin_ns)
    begins = np.array([interval.begin_ns for interval in ordered], np.int64)
    ends = np.array([interval.end_ns for interval in ordered], np.int64)
    gpus = np.array([interval.gpus for interval in ordered], np.int64)
    held = np.array([0 if each.of(TimeBucket.QUEUED) else each.gpus_held for each in ordered], np.int64)
    edges = np.unique(np.concatenate([begins, ends]))
    used = np.zeros(edges.size, np.int64)
    np.add.at(used, np.searchsorted(edges, begins), gpus)
    np.add.at(used, np.searchsorted(edges, ends), -gpus)
    used = np.cumsum(used)[:-1]
    # Of the interval that began last before each stretch.
    newest = np.searchsorted(begins, edges[:-1], side="right") - 1
    spare = np.where(used > 0, np.maximum(held[newest] - used, 0), 0)
    return int((spare * np.diff(edges)).sum())
