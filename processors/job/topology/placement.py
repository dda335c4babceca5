"""Where an attempt's ranks run: told when the attempt has begun, when that changes, and when it ends. Ranges, no lists.

Causes that jobs share (``processors/cluster/shared``) are found by what these findings say: who was where, and when.
Told at places of the record stream that do not depend on batches, and without a timer: jobs that run send every second.
"""

from __future__ import annotations

from typing import Any

from ....telemetry.records import Finding, Identity, Record
from ....telemetry.ring_layout import format_ranks
from ....telemetry.topics import TOPIC_FINDINGS
from ...operator import Context
from ..findings.wording import seconds
from ..state.job_state import JobState

#: Ranks of an attempt are seen one after the other; each further change is waited for twice as long.
SETTLES_NS = 2_000_000_000
LONGEST_WAIT_NS = 60_000_000_000
#: Of one job; 65,536 ranks at 4 on a node.
MOST_NODES = 16_384


def follow_placement(job: JobState, stamp_ns: int, ctx: Context) -> None:
    """To be called after each record."""
    if job.placement.changed:
        job.placement.changed = False
        if not job.placement.due_ns:
            job.placement.due_ns = stamp_ns + _wait_ns(job)
            job.unsaved.facts = True
    if 0 < job.placement.due_ns <= stamp_ns:
        _tell(job, stamp_ns, ctx)


def end_placement(job: JobState, ended_ns: int, stamp_ns: int, ctx: Context) -> None:
    """The attempt is over. What was not told of it yet is told now; of none that was never seen anything is."""
    if job.placement.due_ns:
        _tell(job, stamp_ns, ctx)
    told = job.placement.told
    if told and told["end"] is None:
        _emit(job, {**told, "end": max(seconds(ended_ns), told["begin"])}, stamp_ns, ctx)


def begin_placement_again(job: JobState) -> None:
    """What was taken for the job's end was none."""
    if job.placement.told and job.placement.told["end"] is not None:
        job.placement.changed = True


def _wait_ns(job: JobState) -> int:
    is_same = bool(job.placement.told) and job.placement.told["attempt"] == (job.attempt or "-")
    return min(SETTLES_NS << job.placement.told["told"], LONGEST_WAIT_NS) if is_same else SETTLES_NS


def _tell(job: JobState, stamp_ns: int, ctx: Context) -> None:
    job.placement.due_ns = 0
    job.unsaved.facts = True
    by_node: dict[str, list[int]] = {}
    for rank, facts in job.ranks.items():
        if facts.node:
            by_node.setdefault(facts.node, []).append(rank)
    if not by_node or job.judged_by:
        return
    attempt, before = job.attempt or "-", job.placement.told
    is_same = bool(before) and before["attempt"] == attempt
    begun = [facts.started_ns for facts in job.ranks.values() if facts.started_ns]
    placement = {
        "job": job.job,
        "run": job.run,
        "attempt": attempt,
        "name": job.name,
        "owner": job.placement.owner,
        "world_size": job.world_size or len(job.ranks),
        "begin": before["begin"] if is_same else seconds(min(begun, default=stamp_ns)),
        "end": None,
        "nodes": {node: format_ranks(by_node[node]) for node in sorted(by_node)[:MOST_NODES]},
        "told": before["told"] + 1 if is_same else 0,
    }
    if moved := job.placement.moved or (before.get("moved") if is_same else None):
        placement["moved"] = moved
    if not is_same or {**before, "told": 0} != {**placement, "told": 0}:
        _emit(job, placement, stamp_ns, ctx)


def _emit(job: JobState, placement: dict[str, Any], stamp_ns: int, ctx: Context) -> None:
    job.placement.told = placement
    job.unsaved.facts = True
    body = {"placement": {name: value for name, value in placement.items() if name != "told"}}
    finding = Finding(
        identity=Identity(cluster=job.cluster, run=job.run, job=job.job, attempt=placement["attempt"]),
        key=f"placement/{job.job}/{placement['attempt']}",
        cleared=placement["end"] is not None,
        time_ns=stamp_ns,
        body=body,
    )
    ctx.emit(Record(topic=TOPIC_FINDINGS, key=job.cluster, stamp_ns=stamp_ns, payload=finding))
