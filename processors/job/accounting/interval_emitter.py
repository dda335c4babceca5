"""Closed intervals of a job's seconds, on their way to whoever adds them up: numbered without gaps, kept while they may
still change. ``accounting`` decides what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....diagnosis.goodput.interval import Interval, Part, as_body
from ....telemetry.records import Finding, Identity, Record
from ....telemetry.topics import TOPIC_FINDINGS
from ...operator import Context
from ..state.accounting_state import KEPT_INTERVALS

if TYPE_CHECKING:
    from ..state.job_state import JobState

#: Length of an interval while all is well.
INTERVAL_NS = 60_000_000_000


def interval_between(job: JobState, begin_ns: int, end_ns: int, parts: tuple[Part, ...], reference_ns: int) -> Interval:
    """A new interval without steps, with the ledger's next number; emits nothing. begin_ns, end_ns: Unix.

    reference_ns: a usual step's length, 0 unknown.
    """
    return Interval(
        run=job.run,
        job=job.job,
        world=job.ledger.world,
        attempt=job.attempt,
        number=job.ledger.number,
        begin_ns=begin_ns,
        end_ns=end_ns,
        gpus=max(1, job.world_size or len(job.ranks)),
        gpus_held=job.placement.gpus_held,
        parts=parts,
        saved_step=job.checkpoints.saved_steps,
        reference_ns=reference_ns,
        problem=job.ledger.problem,
    )


def tell(job: JobState, interval: Interval, now: int, ctx: Context) -> None:
    """Emits a new interval, keeps it for revision, counts the number up and moves the ledger's front to its end.

    Older ones are dropped beyond KEPT_INTERVALS, but for those with steps since the last checkpoint.
    """
    ledger = job.ledger
    interval.check()
    ledger.number += 1
    ledger.front_ns, ledger.changed, ledger.problem = interval.end_ns, True, ""
    kept = [*ledger.kept, interval]
    newest = len(kept) - KEPT_INTERVALS
    ledger.kept = [
        each for place, each in enumerate(kept) if place >= newest or each.last_step >= job.checkpoints.saved_steps
    ]
    emit(job, interval, now, ctx)


def emit(job: JobState, interval: Interval, now: int, ctx: Context) -> None:
    """Emits an interval as a finding, new or again: its attempt, world and number say which it replaces."""
    identity = Identity(cluster=job.cluster, run=job.run, job=job.job, attempt=interval.attempt)
    key = f"{interval.attempt or '-'}/interval/{interval.world}.{interval.number}"
    body = {"interval": as_body(interval)}
    payload = Finding(identity=identity, key=key, cleared=False, time_ns=now, body=body)
    ctx.emit(Record(topic=TOPIC_FINDINGS, key=job.cluster, stamp_ns=now, payload=payload))
