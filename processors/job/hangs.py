"""Findings about ranks that stand still: stopped, not entered, deadlocked. Only ages in rows count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...telemetry.vocabulary import Kind, Phase, ProcessState
from ..operator import Context
from . import hang_story
from .device import (
    BLURRED_NS,
    BLURRED_STEPS,
    all_begun,
    any_ended,
    device_threshold_ns,
    launched_age_ns,
    patience_ns,
)
from .exchanges import are_held_up_by_exchanges, find_stalled_exchanges
from .facts import OpenFinding
from .findings import clear_finding, open_finding
from .open_waits import find_waits
from .partners import without_held_up
from .progress import oldest_open_ns
from .standstill import judge_standstill
from .state import JobState
from .steps import judge_signatures
from .story import STALE_NS, Body
from .thresholds import DEFAULT_TIMEOUT_S, FLOOR_NS, SHARE_OF_TIMEOUT, as_lived, waited_ns, waiting_threshold_ns
from .waiting import Blockage, Wait, find_blockage, longest_wait_for

#: All ranks of a job that is suspended stop within this time of each other.
STOP_HOLD_NS = 250_000_000
#: A rank that lives this long after a peer stopped was not stopped with it.
WENT_ON_NS = 150_000_000
#: So long it is waited for such a sign; after that a process that does not look stopped is taken to run.
SIGN_OF_LIFE_NS = 1_500_000_000
#: All ranks of a job that is continued are seen to go on within this time of each other.
RESUME_NS = 1_500_000_000
_LOOK_AGAIN_NS = 100_000_000
#: After the last row of a process, its exit comes within this time; an interpreter that ends takes up to so long.
EXIT_HOLD_NS = 2_000_000_000
LEAVING_HOLD_NS = 10_000_000_000
#: Hosts may send more than ever before: a collective of theirs that all have entered is left so much time.
STALL_ON_HOSTS_NS = 10_000_000_000
#: A device in a collective that others have left gets its data late, as through a congested switch: so long it may.
BEHIND_NS = 10_000_000_000
#: A blind rank may be innocent: wait longer before it is even named as a candidate.
UNSEEN_FACTOR = 2
#: The last row of a rank may be so old when it ends.
LAST_ROW_NS = 1_500_000_000
_ENDED_BY_SEQ = frozenset({Kind.RANK_NOT_ENTERED.value, Kind.DEADLOCK.value, Kind.COLLECTIVE_STALLED.value})


def judge_stops(job: JobState, now: int, ctx: Context) -> None:
    """A stopped process while peers run: told when they have shown it, since the others might stop as well."""
    if not job.may_be_stopped:
        return  # nearly always, and this is asked of every message
    if not any(facts.stopped_ns for facts in job.ranks.values()):
        job.may_be_stopped = False
        return
    stopped = [rank for rank in job.alive() if job.ranks[rank].stopped_ns]
    if not stopped or job.stopping_finding() is not None:
        return
    others = [rank for rank in job.alive() if rank not in stopped]
    if not others:
        return  # the whole job is suspended, which someone wanted
    for rank in stopped:
        ready = job.ranks[rank].stopped_stamp_ns + STOP_HOLD_NS
        if now < ready:
            job.schedule(ready)
            continue
        running = [other for other in others if _went_on(job, other, rank, now)]
        if not running:
            job.schedule(now + _LOOK_AGAIN_NS)
            continue
        body = hang_story.stopped_body(job, rank, running, now)
        open_finding(job, ctx, now, kind=Kind.RANK_STOPPED, place=f"rank {rank}", body=body)
        return


def _went_on(job: JobState, rank: int, stopped: int, now: int) -> bool:
    """Whether ``rank`` runs on after ``stopped`` was: a process is looked at seldom, so its heartbeat has to say so.

    On one node both are on one clock; another node's clock is no measure, so there it counts from the arrival.
    """
    row, facts, own = job.progress_row(rank), job.ranks[stopped], job.ranks[rank]
    if row is None or int(row["process_state"]) == ProcessState.STOPPED or _beats_since_its_stop(job, stopped):
        return False
    if own.continued_ns > facts.stopped_ns and int(row["read_ns"]) - own.continued_ns < RESUME_NS:
        return False  # they were stopped together, and now go on one after the other
    if now >= facts.stopped_stamp_ns + SIGN_OF_LIFE_NS:
        return True
    age_ns = int(row["heartbeat_age_ns"])
    if not age_ns:
        return False  # it has no heartbeat
    if job.node_of(rank) == job.node_of(stopped):
        return int(row["read_ns"]) - age_ns > facts.stopped_ns + WENT_ON_NS
    return int(job.progress_stamps[rank]) - age_ns > facts.stopped_stamp_ns + WENT_ON_NS


def _beats_since_its_stop(job: JobState, rank: int) -> bool:
    """A stopped process has no heartbeat: it goes on, and only the word of that is still to come."""
    row = job.progress_row(rank)
    if row is None or not int(row["heartbeat_age_ns"]):
        return False
    return int(row["read_ns"]) - int(row["heartbeat_age_ns"]) > job.ranks[rank].stopped_ns + WENT_ON_NS


def judge_waits(job: JobState, now: int, ctx: Context) -> None:
    """Looks at who waits for whom, or, with something told already, whether it is over."""
    finding = job.stopping_finding()
    if finding is not None:
        _end_if_moved_on(job, finding, now, ctx)
        return
    if job.has_kind(Kind.PLANNED_STOP):
        return
    oldest_ns = oldest_open_ns(job)
    if oldest_ns < FLOOR_NS:
        if not oldest_ns:
            judge_standstill(job, now, ctx)
        return
    judge_signatures(job, now, ctx)
    if job.stopping_finding() is not None:
        return
    waits = [as_lived(job, wait) for wait in find_waits(job)]
    blockage = find_blockage(waits, FLOOR_NS)
    if (blockage is None or blockage.sort == "missing") and (stalled := find_stalled_exchanges(job, waits)) is not None:
        _open_stalled_exchanges(job, stalled, now, ctx)
        return
    if blockage is None:
        return
    blockage = without_held_up(job, blockage, waits)
    if blockage.sort == "deadlock":
        age_ns = min(waited_ns(job, blockage.wait.age_ns, rank) for rank in blockage.cycle)
        if age_ns >= max(FLOOR_NS, 2 * job.median_step_ns()):
            body = hang_story.deadlock_body(job, blockage, waits, now)
            _open_blockage(job, ctx, now, Kind.DEADLOCK, blockage.wait, body)
        return
    _judge_blockage(job, blockage, waits, now, ctx)


def _judge_blockage(job: JobState, blockage: Blockage, waits: Sequence[Wait], now: int, ctx: Context) -> None:
    """Tells of those suspects that are waited for beyond what their phase has taken before."""
    suspects = list(blockage.suspects)
    if blockage.sort == "inside":
        groups = {blockage.wait.group, *(wait.group for wait in waits if wait.within)}
        members = sorted({int(rank) for group in groups for rank in job.members[group]})
        suspects = [rank for rank in members if _is_lifeless(job, rank)]
    if blockage.sort == "unknown" and _judge_unseen(job, blockage, waits, now, ctx):
        return
    behind = {wait.rank for wait in waits if wait.behind}
    late = []
    threshold = 0
    for rank in suspects:
        wait = longest_wait_for(waits, rank) or blockage.wait
        limit, waited = waiting_threshold_ns(job, rank, wait.group), waited_ns(job, wait.age_ns, rank)
        if rank in wait.launched:  # wherever its host is by now
            limit = max(device_threshold_ns(job, wait.group), BEHIND_NS if rank in behind else 0)
            waited = min(wait.age_ns, launched_age_ns(job, rank, wait.group, now))
        elif job.on_device[wait.group]:
            limit = max(limit, patience_ns(job, wait.group))
        if blockage.sort == "unknown":
            limit *= UNSEEN_FACTOR
        if _is_ending(job, rank, now) and _lived_on_ns(job, rank, wait) < limit:
            continue  # its own end says more than its absence
        if waited >= limit:
            late.append(rank)
            threshold = max(threshold, limit)
    if not late:
        if blockage.sort == "inside":
            _judge_stall(job, blockage, now, ctx)
        return
    gone = [rank for rank in late if job.has_left(rank)]
    late = gone or late
    kind = Kind.RANK_NOT_ENTERED
    if gone:
        normal = any(ending.normal and ending.rank in gone for ending in job.endings)
        kind = Kind.DESYNC if normal else Kind.RANK_DIED
    elif all(_is_leaving(job, rank) for rank in late):
        kind = Kind.DESYNC  # it had less to do than the others
    elif len(late) == 1 and _is_stopped(job, late[0]):
        kind = Kind.RANK_STOPPED
    elif are_held_up_by_exchanges(job, blockage, waits):
        _open_stalled_exchanges(job, blockage, now, ctx)
        return
    body = hang_story.blockage_body(job, kind, blockage, late, threshold, now)
    _open_blockage(job, ctx, now, kind, blockage.wait, body)


def _judge_unseen(job: JobState, blockage: Blockage, waits: Sequence[Wait], now: int, ctx: Context) -> bool:
    """Waits for ranks of nodes from which nothing comes: told in time, but nobody is named whom nobody sees."""
    hidden = job.hidden_ranks()
    absent = hidden | {rank for rank in blockage.suspects if job.is_partial() and rank not in job.ranks}
    if not absent.issuperset(blockage.suspects):
        return False
    wait = blockage.wait
    limit = UNSEEN_FACTOR * max(waiting_threshold_ns(job, rank, wait.group) for rank in (*blockage.waiting, wait.rank))
    if wait.age_ns >= limit:
        body = hang_story.unseen_body(job, blockage, sorted(absent & set(blockage.suspects)), now)
        _open_blockage(job, ctx, now, Kind.RANK_NOT_ENTERED, wait, body)
    return True


def judge_timed_out(job: JobState, now: int, ctx: Context) -> bool:
    """Ranks that aborted, or broke off, in a collective: tells what they had waited for until their time-out, if their
    last rows show it. A watchdog ends innocents as well as whom they wait for. True: told.
    """
    waits = find_waits(job, before_ends=True)
    oldest = max(waits, key=lambda wait: wait.age_ns, default=None)
    if oldest is None:
        return False
    timeout_ns = int((job.groups[oldest.group].timeout_s or DEFAULT_TIMEOUT_S) * 1e9)
    # Rows come once a second. On a device the time-out counts from the launch, which may be steps before the wait.
    least_ns = LAST_ROW_NS if job.on_device[oldest.group] else int(SHARE_OF_TIMEOUT * timeout_ns) - LAST_ROW_NS
    blockage = find_blockage(waits, max(LAST_ROW_NS, least_ns))
    if blockage is None:
        return False
    blockage = without_held_up(job, blockage, waits)
    if blockage.sort == "missing":
        body = hang_story.blockage_body(
            job, Kind.RANK_NOT_ENTERED, blockage, blockage.suspects, blockage.wait.age_ns, now
        )
        _open_blockage(job, ctx, now, Kind.RANK_NOT_ENTERED, blockage.wait, body)
        return True
    if blockage.sort == "inside" and job.on_device[blockage.wait.group]:
        begun = all_begun(job, blockage.wait.group, blockage.wait.seq)
        body = hang_story.stall_body(job, blockage, begun, now)
        _open_blockage(job, ctx, now, Kind.COLLECTIVE_STALLED, blockage.wait, body)
        return True
    return False


def judge_taken_down(job: JobState, since_ns: int, now: int, ctx: Context) -> bool:
    """All were told to end, from ``since_ns`` on: whether somebody had waited too long by then for one that was there.

    Who watches tells it before; the rings of a job whose whichrank was killed tell it afterwards. True: told.
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
    late, threshold = [], 0
    ended_ns = {ending.rank: ending.time_ns for ending in reversed(job.endings)}
    for rank in blockage.suspects:
        wait = longest_wait_for(waits, rank) or blockage.wait
        limit = waiting_threshold_ns(job, rank, wait.group)
        waited = waited_ns(job, wait.age_ns, rank, before_ends=True)
        if waited >= limit and ended_ns.get(rank, since_ns) >= since_ns:
            late.append(rank)
            threshold = max(threshold, limit)
    if not late:
        return False
    body = hang_story.blockage_body(job, Kind.RANK_NOT_ENTERED, blockage, late, threshold, now)
    _open_blockage(job, ctx, now, Kind.RANK_NOT_ENTERED, blockage.wait, body)
    return True


def _judge_stall(job: JobState, blockage: Blockage, now: int, ctx: Context) -> None:
    """All have entered the same collective and it does not end: nobody can be named."""
    wait = blockage.wait
    if wait.p2p:
        return  # whether the two ends are those of one message is not known
    begun = all_begun(job, wait.group, wait.seq)
    limit = device_threshold_ns(job, wait.group)
    if not job.on_device[wait.group]:
        members = job.members[wait.group].tolist()
        limit = max(limit, STALL_ON_HOSTS_NS, *(waiting_threshold_ns(job, rank, wait.group) for rank in members))
    elif not begun:
        limit = max(limit, BLURRED_NS, BLURRED_STEPS * job.median_step_ns())
    if wait.age_ns >= limit and not any_ended(job, wait.group, wait.seq):
        body = hang_story.stall_body(job, blockage, begun, now)
        _open_blockage(job, ctx, now, Kind.COLLECTIVE_STALLED, wait, body)


def _open_stalled_exchanges(job: JobState, blockage: Blockage, now: int, ctx: Context) -> None:
    body = hang_story.exchanges_body(job, blockage, now)
    _open_blockage(job, ctx, now, Kind.COLLECTIVE_STALLED, blockage.wait, body)


def _open_blockage(job: JobState, ctx: Context, now: int, kind: Kind, wait: Wait, body: Body) -> None:
    place = f"{job.groups[wait.group].uid}:{'p2p ' if wait.p2p else ''}{wait.seq}"
    seq = -1 if wait.p2p else wait.seq
    by_device = bool(wait.launched) and {item["rank"] for item in body["suspects"]} <= set(wait.launched)
    detail = {"by_device": True} if by_device else None
    open_finding(job, ctx, now, kind=kind, place=place, body=body, group=wait.group, seq=seq, detail=detail)


def _is_ending(job: JobState, rank: int, now: int) -> bool:
    """Its process is gone and the word of how is on its way, or the interpreter is being taken down."""
    row = job.progress_row(rank)
    if row is None or job.has_left(rank):
        return False
    if row["process_state"] in (ProcessState.DEAD, ProcessState.ZOMBIE):
        return now - int(job.progress_stamps[rank]) < EXIT_HOLD_NS
    return row["phase"] == Phase.EXIT and int(row["phase_age_ns"]) < LEAVING_HOLD_NS


def _lived_on_ns(job: JobState, rank: int, wait: Wait) -> int:
    """How long a process that is gone had let a peer wait when its heart last beat: of rings that were read too late
    to see it live. 0 where it is another clock's."""
    row = job.progress_row(rank)
    if row is None or row["process_state"] != ProcessState.DEAD or job.node_of(rank) != job.node_of(wait.rank):
        return 0
    return int(row["read_ns"]) - int(row["heartbeat_age_ns"]) - wait.since_ns


def _is_leaving(job: JobState, rank: int) -> bool:
    row = job.progress_row(rank)
    return row is not None and bool(row["phase"] == Phase.EXIT)


def _is_lifeless(job: JobState, rank: int) -> bool:
    row = job.progress_row(rank)
    silent = row is not None and int(row["heartbeat_age_ns"]) > STALE_NS
    return silent or _is_stopped(job, rank) or job.has_left(rank)


def _is_stopped(job: JobState, rank: int) -> bool:
    facts = job.ranks.get(rank)
    return facts is not None and bool(facts.stopped_ns)


def _end_if_moved_on(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> None:
    """A hang that was none, or is over: the operation that was waited in has completed."""
    if finding.kind not in _ENDED_BY_SEQ or finding.seq < 0:
        return
    rows, stamps = job.rows_of_group(finding.group)
    seen = stamps > 0
    if seen.any() and bool((rows["completed"][seen] >= finding.seq).all()):
        clear_finding(job, ctx, now, finding, f"sequence {finding.seq} has completed on all members")
