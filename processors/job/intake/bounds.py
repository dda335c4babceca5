"""What of a record may count: a number in it must never decide how much memory or time the judge takes.

What is kept by rank is as long as the highest rank, so a rank counts as far as ranks that were heard stand for it: any
below ``ALWAYS_RANKS``, beyond that so many times as many as were heard. What does not count is dropped and counted.
"""

from __future__ import annotations

import numpy as np

from ....telemetry.records import Event, Record
from ....telemetry.topics import TOPIC_FINDINGS
from ...doubts import NO_SUCH_RANK, Doubt, doubt_findings
from ...operator import Context
from ..columns.rows import pick
from ..state.job_state import JobState
from ..state.micro_batch import Arrivals
from ..state.rank_state import MOST_RANKS

#: Half of the cluster that everything is measured at, whose nodes are heard in any order.
ALWAYS_RANKS = 16_384
RANKS_FOR_EACH_HEARD = 64


def most_ranks(job: JobState) -> int:
    """How many ranks this job may have: rows of a rank with this number or a higher one are dropped."""
    return min(MOST_RANKS, max(ALWAYS_RANKS, RANKS_FOR_EACH_HEARD * len(job.ranks)))


def keep_within_bounds(job: JobState, came: Arrivals) -> None:
    """Takes out rows of ranks that do not count."""
    ranks = came.rows["rank"]
    if not ranks.size or np.maximum.reduce(ranks) < ALWAYS_RANKS:  # asked of every turn
        return
    kept = ranks < most_ranks(job)
    if kept.all():
        return
    job.dropped_rows += ranks.size - int(np.count_nonzero(kept))
    came.rows, came.of_flush = pick(came.rows, kept), came.of_flush[kept]


def is_within_bounds(job: JobState, event: Event) -> bool:
    """Whether the event is of a rank that counts, or of none."""
    if event.identity.rank < ALWAYS_RANKS or event.identity.rank < most_ranks(job):
        return True
    job.dropped_rows += 1
    return False


def tell_dropped(job: JobState, now: int, ctx: Context) -> None:
    """Tells once, as a telemetry incident, that something of the job did not count; to be called when it was so."""
    if job.told_dropped:
        return
    job.told_dropped = job.dropped_rows
    words = f"job {job.job} tells of ranks from {most_ranks(job)} on, with {len(job.ranks)} heard; they do not count"
    doubt = Doubt(what=NO_SUCH_RANK, entity=job.job, words=words)
    for finding in doubt_findings([doubt], job.cluster, now):
        ctx.emit(Record(topic=TOPIC_FINDINGS, key=job.cluster, stamp_ns=now, payload=finding))


def told_world_size(event: Event) -> int:
    """How many ranks the job has, as the event tells; 0 where it does not, or names more than any job has."""
    told = event.attributes.get("world_size", 0)
    return told if isinstance(told, int) and 0 < told <= MOST_RANKS else 0
