"""Findings about ranks that stand still: stopped, not entered, deadlocked. Only ages in rows count.

A wait is noticed first, as information; with time, and with what the suspect does meanwhile, it becomes a ticket or a
page (``urgency``): the same finding, revised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....telemetry.vocabulary import Kind, Phase, ProcessState, Severity
from ...finding_document import FindingBody
from ...operator import Context
from ..detectors.hang.wait_graph import Blockage, Wait, find_blockage, longest_wait_for
from ..findings.finding_body import STALE_NS
from ..findings.register import clear_finding, open_finding, replace_finding
from ..findings.wording import ranks_words
from ..intake.device_groups import (
    BLURRED_NS,
    BLURRED_STEPS,
    all_begun,
    any_ended,
    launched_age_ns,
    longest_on_device_ns,
    patience_ns,
)
from ..intake.progress import last_moves_ns, oldest_open_ns
from ..intake.wait_thresholds import FLOOR_NS, LivedTimes, longest_here_ns, waited_ns, waiting_threshold_ns
from ..state.finding_memory import AskedCall, FindingDetail
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from ..steps.closed_steps import judge_signatures
from ..topology.p2p_peers import without_held_up
from . import hang_report
from .hang_outside_c10d import judge_standstill
from .pending_collectives import find_waits
from .stalled_p2p import are_held_up_by_exchanges, find_stalled_exchanges
from .urgency import Ladder, Motion, gravest, is_graver, ladder, motion_of

#: After the last row of a process, its exit comes within this time; an interpreter that ends takes up to so long.
EXIT_HOLD_NS = 2_000_000_000
LEAVING_HOLD_NS = 10_000_000_000
#: Hosts may send more than ever before: a collective of theirs that all have entered is left so much time.
STALL_ON_HOSTS_NS = 10_000_000_000
#: A device in a collective that others have left gets its data late, as through a congested switch: so long it may.
BEHIND_NS = 10_000_000_000
#: A blind rank may be innocent: wait longer before it is even named as a candidate.
UNSEEN_FACTOR = 2
#: Waiting ranks whose lines of code are asked for.
MOST_WAITING = 2
#: A wait for a rank that has left is one only if it is seen so long after that.
SEEN_AFTER_NS = 1_500_000_000
#: While a wait is noticed and no more, what is called may still differ: so often that is asked.
SIGNATURES_AGAIN_NS = 2_000_000_000
_ENDED_BY_SEQ = frozenset({Kind.RANK_NOT_ENTERED.value, Kind.DEADLOCK.value, Kind.COLLECTIVE_STALLED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hang:
    """What the waits come to: a kind of hang, on the oldest wait for its suspects."""

    kind: Kind
    wait: Wait
    body: FindingBody
    calls: Sequence[AskedCall] = ()  # whose lines are wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """A rank that is waited for beyond what is usual. limit_ns: from which wait on that is said with this severity."""

    rank: int
    severity: Severity
    motion: Motion
    limit_ns: int


def judge_waits(job: JobState, now: int, ctx: Context) -> None:
    """Looks at who waits for whom: opens a finding on a hang, makes an open one graver, or clears it
    where it is over.
    """
    finding = job.findings.stopping()
    if finding is not None:
        if _end_if_moved_on(job, finding, now, ctx) or finding is not job.findings.noticed_wait():
            return
    elif job.findings.has_kind(Kind.PLANNED_STOP):
        return
    oldest_ns = oldest_open_ns(job)
    if oldest_ns < FLOOR_NS:
        if not oldest_ns:
            judge_standstill(job, now, ctx)
        return
    if finding is None or now - finding.shown_ns >= SIGNATURES_AGAIN_NS:
        judge_signatures(job, now, ctx)
        if job.findings.stopping() is not finding or finding is not job.findings.noticed_wait():
            return
    hang = _find_hang(job, now)
    if hang is not None:
        _open_or_revise(job, ctx, now, finding, hang)


def _find_hang(job: JobState, now: int) -> _Hang | None:
    waits = find_waits(job, lived=LivedTimes(job))
    blockage = find_blockage(waits, FLOOR_NS)
    if (blockage is None or blockage.sort == "missing") and (stalled := find_stalled_exchanges(job, waits)) is not None:
        return _stalled_exchanges(job, stalled, now)
    if blockage is None:
        return None
    blockage = without_held_up(job, blockage, waits)
    if blockage.sort == "deadlock":
        age_ns = min(waited_ns(job, blockage.wait.age_ns, rank) for rank in blockage.cycle)
        severity = ladder(job, 0, _timeout_s(job, blockage.wait)).severity(age_ns, Motion.STILL)
        if severity is None:
            return None
        body = hang_report.deadlock_body(job, blockage, waits, severity, now)
        calls = [
            AskedCall(each.rank, each.group, each.p2p, each.seq) for each in hang_report.cycle_waits(blockage, waits)
        ]
        return _Hang(kind=Kind.DEADLOCK, wait=blockage.wait, body=body, calls=calls)
    return _judge_blockage(job, blockage, waits, now)


def _judge_blockage(job: JobState, blockage: Blockage, waits: Sequence[Wait], now: int) -> _Hang | None:
    """Tells of those suspects that are waited for beyond what their phase has taken before."""
    suspects = list(blockage.suspects)
    if blockage.sort == "inside":
        groups = {blockage.wait.group, *(wait.group for wait in waits if wait.within)}
        members = sorted({int(rank) for group in groups for rank in job.groups.members[group]})
        suspects = [rank for rank in members if _is_lifeless(job, rank)]
    if blockage.sort == "unknown" and _are_unseen(job, blockage):
        return _judge_unseen(job, blockage, now)
    found = [_judge_suspect(job, blockage, waits, rank, now) for rank in suspects]
    late = [each for each in found if each is not None]
    if not late:
        return _judge_stall(job, blockage, now) if blockage.sort == "inside" else None
    gone = [each for each in late if job.has_left(each.rank)]
    late = gone or late
    ranks = [each.rank for each in late]
    kind = Kind.RANK_NOT_ENTERED
    if gone:
        normal = any(ending.normal and ending.rank in ranks for ending in job.ends.endings)
        kind = Kind.DESYNC if normal else Kind.RANK_DIED
    elif all(_is_leaving(job, rank) for rank in ranks):
        kind = Kind.DESYNC  # it had less to do than the others
    elif len(late) == 1 and _is_stopped(job, ranks[0]):
        kind = Kind.RANK_STOPPED
    elif are_held_up_by_exchanges(job, blockage, waits):
        return _stalled_exchanges(job, blockage, now)
    severity = gravest([each.severity for each in late])
    limit_ns = max(each.limit_ns for each in late if each.severity is severity)
    motions = {each.rank: each.motion for each in late}
    body = hang_report.blockage_body(job, kind, blockage, ranks, limit_ns, severity, motions, now)
    waiting_ranks = frozenset(blockage.waiting)
    waiting = [each for each in waits if each.rank in waiting_ranks and each.group == blockage.wait.group]
    calls = [AskedCall(each.rank, each.group, each.p2p, each.seq) for each in waiting[:MOST_WAITING]]
    return _Hang(kind=kind, wait=blockage.wait, body=body, calls=calls)


def _judge_suspect(job: JobState, blockage: Blockage, waits: Sequence[Wait], rank: int, now: int) -> _Late | None:
    """Whether it is waited for beyond what is usual, and how urgent that is."""
    wait = longest_wait_for(waits, rank) or blockage.wait
    waited = waited_ns(job, wait.age_ns, rank)
    is_away = job.has_left(rank) or _is_leaving(job, rank)
    motion = Motion.STILL if is_away or _is_stopped(job, rank) else motion_of(job, rank)
    if rank in wait.launched:  # wherever its host is by now
        motion = Motion.STILL  # its device, which began and ended nothing all the while
        steps = ladder(job, longest_on_device_ns(job, wait.group), _timeout_s(job, wait))
        is_behind = any(each.rank == rank and each.behind for each in waits)
        limit = max(steps.notice_ns, BEHIND_NS if is_behind else 0)
        waited = min(wait.age_ns, launched_age_ns(job, rank, wait.group, now))
    else:
        steps = ladder(job, longest_here_ns(job, rank, wait), _timeout_s(job, wait))
        limit = max(steps.notice_ns, patience_ns(job, wait.group) if job.groups.on_device[wait.group] else 0)
    if blockage.sort == "unknown":
        limit *= UNSEEN_FACTOR
    steps = replace(steps, notice_ns=limit)
    if _is_ending(job, rank, now) and _lived_on_ns(job, rank, wait) < limit:
        return None  # its own end says more than its absence
    if is_away and not _stands_since_it_left(job, rank, wait):
        return None
    # Who has left, or was stopped, does not come: that is no wait any more.
    certain = is_away or _is_stopped(job, rank)
    severity = Severity.PAGE if certain and waited >= limit else steps.severity(waited, motion)
    if severity is None:
        return None
    return _Late(rank=rank, severity=severity, motion=motion, limit_ns=_limit_ns(steps, severity, motion, certain))


def _limit_ns(steps: Ladder, severity: Severity, motion: Motion, certain: bool) -> int:
    return steps.notice_ns if certain else steps.limit_ns(severity, motion)


def _stands_since_it_left(job: JobState, rank: int, wait: Wait) -> bool:
    """Whether the row that shows this wait is newer than the suspect's leaving, by enough: what it left behind may have
    ended the wait, and the row is from before that."""
    row = job.progress.row_of(wait.rank)
    if row is None or row["phase"] == Phase.EXIT or row["process_state"] in (ProcessState.DEAD, ProcessState.ZOMBIE):
        return False  # it is past the call itself: that it ended may never have been written down
    left_ns = job.ranks[rank].exited_ns if rank in job.ranks else 0
    own = job.progress.row_of(rank)
    if own is not None and own["phase"] == Phase.EXIT:
        since_ns = int(own["read_ns"]) - int(own["phase_age_ns"])
        left_ns = min(left_ns, since_ns) if left_ns else since_ns
    return int(row["read_ns"]) - left_ns >= SEEN_AFTER_NS


def _timeout_s(job: JobState, wait: Wait) -> float:
    return job.groups.known[wait.group].timeout_s


def _open_or_revise(job: JobState, ctx: Context, now: int, finding: OpenFinding | None, hang: _Hang) -> None:
    """Opens a finding, or makes the one that is open graver; what it names follows as long as it is no page."""
    if finding is None:
        _open(job, ctx, now, hang)
        return
    suspects = [item.rank for item in hang.body.suspects if item.rank is not None]
    other = hang.kind.value != finding.kind or suspects != finding.suspects
    severity = hang.body.severity
    if not other and not is_graver(severity, finding.body.severity):
        return
    body = hang.body
    if is_graver(finding.body.severity, severity):
        body = replace(body, severity=finding.body.severity)  # what was said is not taken back by half
    finding.group, finding.seq, detail = _sequence_of(hang)
    replace_finding(job, ctx, now, finding, kind=hang.kind, body=body, detail=detail)


def _absent(job: JobState, blockage: Blockage) -> set[int]:
    return job.hidden_ranks() | {
        rank for rank in blockage.suspects if job.nodes.are_missing() and rank not in job.ranks
    }


def _are_unseen(job: JobState, blockage: Blockage) -> bool:
    return _absent(job, blockage).issuperset(blockage.suspects)


def _judge_unseen(job: JobState, blockage: Blockage, now: int) -> _Hang | None:
    """Waits for ranks of nodes from which nothing comes: told in time, but nobody is named whom nobody sees."""
    wait = blockage.wait
    limit = UNSEEN_FACTOR * max(waiting_threshold_ns(job, rank, wait.group) for rank in (*blockage.waiting, wait.rank))
    if wait.age_ns < limit:
        return None
    body = hang_report.unseen_body(job, blockage, sorted(_absent(job, blockage) & set(blockage.suspects)), now)
    return _Hang(kind=Kind.RANK_NOT_ENTERED, wait=wait, body=body)


def _judge_stall(job: JobState, blockage: Blockage, now: int) -> _Hang | None:
    """All have entered the same collective and it does not end: nobody can be named."""
    wait = blockage.wait
    if wait.p2p:
        return None  # whether the two ends are those of one message is not known
    begun, on_device = all_begun(job, wait.group, wait.seq), job.groups.on_device[wait.group]
    members = job.groups.members[wait.group].tolist()
    still = on_device or all(motion_of(job, rank) is not Motion.MOVES for rank in members)
    motion = Motion.STILL if still else Motion.MOVES
    longest = [longest_on_device_ns(job, wait.group)]
    if not on_device:
        longest += [longest_here_ns(job, rank) for rank in members]
    known = [each for each in longest if each is not None]
    steps = ladder(job, max(known) if len(known) == len(longest) else None, _timeout_s(job, wait))
    if not on_device:
        steps = replace(steps, notice_ns=max(steps.notice_ns, STALL_ON_HOSTS_NS))
    elif not begun:
        steps = replace(steps, notice_ns=max(steps.notice_ns, BLURRED_NS, BLURRED_STEPS * job.steps.median_length_ns()))
    # It stands since the last one has come: until then they waited for that one.
    rows, stamps = job.groups.rows_of(wait.group)
    inside = rows["open_age_ns"][(stamps > 0) & (rows["open"] != 0)]
    severity = steps.severity(min(wait.age_ns, int(inside.min(initial=wait.age_ns))), motion)
    if severity is None or any_ended(job, wait.group, wait.seq):
        return None
    body = hang_report.stall_body(job, blockage, begun, severity, now)
    return _Hang(kind=Kind.COLLECTIVE_STALLED, wait=wait, body=body)


def _stalled_exchanges(job: JobState, blockage: Blockage, now: int) -> _Hang:
    wait = blockage.wait
    steps = ladder(job, longest_on_device_ns(job, wait.group), _timeout_s(job, wait))
    body = hang_report.exchanges_body(job, blockage, steps.severity(wait.age_ns, Motion.STILL) or Severity.INFO, now)
    return _Hang(kind=Kind.COLLECTIVE_STALLED, wait=blockage.wait, body=body)


def open_blockage(job: JobState, ctx: Context, now: int, kind: Kind, wait: Wait, body: FindingBody) -> None:
    """Opens the finding that a wait amounts to, or revises it where it is open already."""
    _open(job, ctx, now, _Hang(kind=kind, wait=wait, body=body))


def _open(job: JobState, ctx: Context, now: int, hang: _Hang) -> None:
    wait = hang.wait
    place = f"{job.groups.known[wait.group].uid}:{'p2p ' if wait.p2p else ''}{wait.seq}"
    group, seq, detail = _sequence_of(hang)
    open_finding(job, ctx, now, kind=hang.kind, place=place, body=hang.body, group=group, seq=seq, detail=detail)


def _sequence_of(hang: _Hang) -> tuple[int, int, FindingDetail]:
    """(group, sequence that ends it, -1 of none; what else is to be known of the finding)."""
    wait = hang.wait
    by_device = bool(wait.launched) and {item.rank for item in hang.body.suspects} <= set(wait.launched)
    return wait.group, -1 if wait.p2p else wait.seq, FindingDetail(calls=tuple(hang.calls), by_device=by_device)


def _is_ending(job: JobState, rank: int, now: int) -> bool:
    """Its process is gone and the word of how is on its way, or the interpreter is being taken down."""
    row = job.progress.row_of(rank)
    if row is None or job.has_left(rank):
        return False
    if row["process_state"] in (ProcessState.DEAD, ProcessState.ZOMBIE):
        return now - int(job.progress.stamps[rank]) < EXIT_HOLD_NS
    return row["phase"] == Phase.EXIT and int(row["phase_age_ns"]) < LEAVING_HOLD_NS


def _lived_on_ns(job: JobState, rank: int, wait: Wait) -> int:
    """How long a process that is gone had let a peer wait when its heart last beat: of rings that were read too late
    to see it live. 0 where it is another clock's."""
    row = job.progress.row_of(rank)
    if row is None or row["process_state"] != ProcessState.DEAD or job.node_of(rank) != job.node_of(wait.rank):
        return 0
    return int(row["read_ns"]) - int(row["heartbeat_age_ns"]) - wait.since_ns


def _is_leaving(job: JobState, rank: int) -> bool:
    row = job.progress.row_of(rank)
    return row is not None and bool(row["phase"] == Phase.EXIT)


def _is_lifeless(job: JobState, rank: int) -> bool:
    row = job.progress.row_of(rank)
    silent = row is not None and int(row["heartbeat_age_ns"]) > STALE_NS
    return silent or _is_stopped(job, rank) or job.has_left(rank)


def _is_stopped(job: JobState, rank: int) -> bool:
    facts = job.ranks.get(rank)
    return facts is not None and bool(facts.stopped_ns)


def _end_if_moved_on(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> bool:
    """A hang that was none, or is over: the operation that was waited in has completed, or, where none is known, those
    who stood have gone on. True: it is over."""
    if finding.kind not in _ENDED_BY_SEQ:
        return False
    if finding.seq < 0:
        return _end_if_gone_on(job, finding, now, ctx)
    rows, stamps = job.groups.rows_of(finding.group)
    seen = stamps > 0
    if seen.any() and bool((rows["completed"][seen] >= finding.seq).all()):
        clear_finding(job, ctx, now, finding, f"sequence {finding.seq} has completed on all members")
        return True
    return False


def _end_if_gone_on(job: JobState, finding: OpenFinding, now: int, ctx: Context) -> bool:
    ranks = finding.suspects or job.alive()
    moved_ns = last_moves_ns(job)
    if not ranks or any(rank >= moved_ns.size or moved_ns[rank] <= finding.found_ns for rank in ranks):
        return False
    waiting = {rank for wait in find_waits(job) if wait.age_ns >= FLOOR_NS for rank in wait.missing}
    if not waiting.isdisjoint(ranks):
        return False
    clear_finding(job, ctx, now, finding, f"{ranks_words(ranks)} {'has' if len(ranks) == 1 else 'have'} gone on")
    return True
