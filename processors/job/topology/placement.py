"""Where an attempt's ranks run: told when the attempt has begun, when that changes, and when it ends. Ranges, no lists.

Causes that jobs share (``processors/cluster/shared``) are found by what these findings say: who was where, and when.
Told at places of the record stream that do not depend on batches, and without a timer: jobs that run send every second.
"""

from __future__ import annotations

from dataclasses import replace

from ....telemetry.records import Finding, Identity, Record
from ....telemetry.ring_layout import format_ranks
from ....telemetry.topics import TOPIC_FINDINGS
from ...operator import Context
from ...placement_document import PlacementReport, write_placement
from ..findings.wording import seconds
from ..state.job_state import JobState

#: Ranks of an attempt are seen one after the other; each further change is waited for twice as long.
SETTLES_NS = 2_000_000_000
LONGEST_WAIT_NS = 60_000_000_000
#: Of one job; 65,536 ranks at 4 on a node.
MOST_NODES = 16_384


def follow_placement(job: JobState, stamp_ns: int, ctx: Context) -> None:
    """To be called after each record: emits a finding on where ranks run, some seconds after that has changed."""
    if job.placement.changed:
        job.placement.changed = False
        if not job.placement.due_ns:
            job.placement.due_ns = stamp_ns + _wait_ns(job)
            job.unsaved.facts = True
    if 0 < job.placement.due_ns <= stamp_ns:
        _report(job, stamp_ns, ctx)


def end_placement(job: JobState, ended_ns: int, stamp_ns: int, ctx: Context) -> None:
    """The attempt is over: emits its placement if that is due, and then that it ended at ``ended_ns`` (Unix).

    Emits nothing for an attempt of which nothing was emitted before.
    """
    if job.placement.due_ns:
        _report(job, stamp_ns, ctx)
    told = job.placement.told
    if told is not None and told.end is None:
        _emit(job, replace(told, end=max(seconds(ended_ns), told.begin)), stamp_ns, ctx)


def begin_placement_again(job: JobState) -> None:
    """What was taken for the job's end was none: lets its placement be emitted again. Nothing unless its end was."""
    if job.placement.told is not None and job.placement.told.end is not None:
        job.placement.changed = True


def _wait_ns(job: JobState) -> int:
    told = job.placement.told
    is_same = told is not None and told.attempt == (job.attempt or "-")
    return min(SETTLES_NS << job.placement.times_told, LONGEST_WAIT_NS) if is_same else SETTLES_NS


def _report(job: JobState, stamp_ns: int, ctx: Context) -> None:
    job.placement.due_ns = 0
    job.unsaved.facts = True
    by_node: dict[str, list[int]] = {}
    for rank, facts in job.ranks.items():
        if facts.node:
            by_node.setdefault(facts.node, []).append(rank)
    if not by_node or job.judged_by:
        return
    attempt, told = job.attempt or "-", job.placement.told
    before = told if told is not None and told.attempt == attempt else None
    begun = [facts.started_ns for facts in job.ranks.values() if facts.started_ns]
    report = PlacementReport(
        job=job.job,
        run=job.run,
        attempt=attempt,
        name=job.name,
        owner=job.placement.owner,
        world_size=job.world_size or len(job.ranks),
        begin=before.begin if before is not None else seconds(min(begun, default=stamp_ns)),
        nodes={node: format_ranks(by_node[node]) for node in sorted(by_node)[:MOST_NODES]},
        moved=job.placement.moved or (before.moved if before is not None else None),
    )
    if report != before:
        job.placement.times_told = job.placement.times_told + 1 if before is not None else 0
        _emit(job, report, stamp_ns, ctx)


def _emit(job: JobState, report: PlacementReport, stamp_ns: int, ctx: Context) -> None:
    job.placement.told = report
    job.unsaved.facts = True
    finding = Finding(
        identity=Identity(cluster=job.cluster, run=job.run, job=job.job, attempt=report.attempt),
        key=f"placement/{job.job}/{report.attempt}",
        cleared=report.end is not None,
        time_ns=stamp_ns,
        body={"placement": write_placement(report)},
    )
    ctx.emit(Record(topic=TOPIC_FINDINGS, key=job.cluster, stamp_ns=stamp_ns, payload=finding))
