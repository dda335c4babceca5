"""Hangs that somebody or something has ended: what stood before is the incident, not how it was ended.

A watchdog ends innocents as well as whom they wait for, and a person ends all. Their last rows show who waited for
whom.
"""

from __future__ import annotations

from dataclasses import replace

from ....telemetry.vocabulary import Kind, Severity
from ...operator import Context
from ..detectors.hang.wait_graph import find_blockage, longest_wait_for
from ..intake.device_groups import all_begun
from ..intake.wait_thresholds import DEFAULT_TIMEOUT_S, FLOOR_NS, SHARE_OF_TIMEOUT, longest_here_ns, waited_ns
from ..state.job_state import JobState
from ..topology.p2p_peers import without_held_up
from . import hang_report
from .hangs import open_blockage
from .pending_collectives import find_waits
from .urgency import STILL_BEFORE_END_NS, Motion, ladder, motion_of

#: The last row of a rank may be so old when it ends.
LAST_ROW_NS = 1_500_000_000


def judge_timed_out(job: JobState, now: int, ctx: Context) -> bool:
    """After ranks aborted in a collective: opens a finding on what they had waited for until their time-out. True:
    opened.

    A watchdog ends innocents as well as whom they wait for, so their last rows must show it.
    """
    waits = find_waits(job, before_ends=True)
    oldest = max(waits, key=lambda wait: wait.age_ns, default=None)
    if oldest is None:
        return False
    timeout_ns = int((job.groups.known[oldest.group].timeout_s or DEFAULT_TIMEOUT_S) * 1e9)
    # Rows come once a second. On a device the time-out counts from the launch, which may be steps before the wait.
    least_ns = LAST_ROW_NS if job.groups.on_device[oldest.group] else int(SHARE_OF_TIMEOUT * timeout_ns) - LAST_ROW_NS
    blockage = find_blockage(waits, max(LAST_ROW_NS, least_ns))
    if blockage is None:
        return False
    blockage = without_held_up(job, blockage, waits)
    if blockage.sort == "missing":
        body = hang_report.blockage_body(
            job,
            Kind.RANK_NOT_ENTERED,
            blockage,
            blockage.suspects,
            blockage.wait.age_ns,
            Severity.PAGE,
            {rank: motion_of(job, rank, still_ns=STILL_BEFORE_END_NS) for rank in blockage.suspects},
            now,
        )
        open_blockage(job, ctx, now, Kind.RANK_NOT_ENTERED, blockage.wait, body)
        return True
    if blockage.sort == "inside" and job.groups.on_device[blockage.wait.group]:
        begun = all_begun(job, blockage.wait.group, blockage.wait.seq)
        body = hang_report.stall_body(job, blockage, begun, Severity.PAGE, now)
        open_blockage(job, ctx, now, Kind.COLLECTIVE_STALLED, blockage.wait, body)
        return True
    return False


def judge_taken_down(job: JobState, since_ns: int, now: int, ctx: Context, *, only_still: bool) -> bool:
    """After all were told to end, from ``since_ns`` (Unix) on: opens a finding if ranks had waited too long for one.
    True: so.

    Who watches tells it before; the rings of a job whose whichrank was killed tell it afterwards. only_still: a process
    may have been killed for what it did (out of memory), unless it did nothing.
    """
    if any(facts.stopped_ns for facts in job.ranks.values()):
        return False
    waits = [
        replace(wait, age_ns=max(0, since_ns - wait.since_ns))
        for wait in find_waits(job, before_ends=True)
        if 0 < wait.since_ns < since_ns
    ]
    blockage = find_blockage(waits, FLOOR_NS)
    if blockage is None or blockage.sort != "missing":
        return False
    blockage = without_held_up(job, blockage, waits)
    late, limit_ns = [], 0
    motions = {rank: motion_of(job, rank, still_ns=STILL_BEFORE_END_NS) for rank in blockage.suspects}
    ended_ns = {ending.rank: ending.time_ns for ending in reversed(job.ends.endings)}
    for rank in blockage.suspects:
        wait = longest_wait_for(waits, rank) or blockage.wait
        steps = ladder(job, longest_here_ns(job, rank, wait), job.groups.known[wait.group].timeout_s)
        waited = waited_ns(job, wait.age_ns, rank, before_ends=True)
        if only_still and motions[rank] is Motion.MOVES:
            continue
        if waited >= steps.notice_ns and ended_ns.get(rank, since_ns) >= since_ns:
            late.append(rank)
            limit_ns = max(limit_ns, steps.notice_ns)
    if not late:
        return False
    # Somebody has ended it: nothing more will show whether it would have gone on.
    severity = Severity.PAGE if any(motions[rank] is not Motion.MOVES for rank in late) else Severity.TICKET
    body = hang_report.blockage_body(job, Kind.RANK_NOT_ENTERED, blockage, late, limit_ns, severity, motions, now)
    open_blockage(job, ctx, now, Kind.RANK_NOT_ENTERED, blockage.wait, body)
    return True
