"""How far one process group got: who is in its call, who has not entered, who does not get out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .divergence import DumpDivergence, calls_by_sequence, first_divergence
from .entry_matching import rule_of
from .process_groups import ProcessGroup, uses_pairs
from .rank_dump import DumpEntry


class GroupFinding(str, Enum):
    """What holds a group up."""

    DIVERGED = "diverged"
    NOT_ENTERED = "not_entered"
    NOT_FINISHED = "not_finished"
    NOT_STARTED = "not_started"
    #: Every member with a dump is in the call, some members have no dump.
    NO_DUMP = "no_dump"
    #: Every member is in the call, and it does not end.
    STALLED = "stalled"
    #: Nothing is open.
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """reached: last sequence number that each member with a dump entered (-1: it has nothing of the group left).

    waits: member -> the first open call that somebody has not entered. open_calls: member -> its open calls.
    sequence, call: where the group stands. matched: calls seen on two or more members that agree.
    """

    group: ProcessGroup
    finding: GroupFinding
    sequence: int
    call: DumpEntry | None
    reached: Mapping[int, int]
    open_calls: Mapping[int, tuple[DumpEntry, ...]]
    waits: Mapping[int, DumpEntry]
    not_started: tuple[int, ...]
    not_finished: tuple[int, ...]
    divergence: DumpDivergence | None
    matched: int

    def missing_at(self, sequence: int) -> tuple[int, ...]:
        """Members with a dump that have not entered the call of this sequence number, sorted."""
        return tuple(rank for rank in sorted(self.reached) if self.reached[rank] < sequence)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Members whose dump lacks the newest call; empty where that may be the ring's loss.

        Told only where they lack that one call, or all of them and no ring has lost any.
        """
        newest = max(self.reached.values(), default=-1)
        late = tuple(sorted(rank for rank, reached in self.reached.items() if reached < newest))
        views = self.group.views
        is_told = all(
            self.reached[rank] == newest - 1 or (self.reached[rank] < 0 and not views[rank].is_wrapped) for rank in late
        )
        return late if is_told and len(late) < len(self.reached) else ()


def group_state(group: ProcessGroup, sisters: Mapping[int, Counter[tuple[object, ...]]]) -> GroupState:
    """How far a group got, and what holds it up.

    sisters: how groups of the same description and size voted, by sequence number (``sister_votes``).
    """
    calls = calls_by_sequence(group)
    has_pairs = uses_pairs(group)
    reached = {rank: _reached(group, rank, is_counter_usable=not has_pairs) for rank in group.views}
    lowest = min(reached.values(), default=0)
    failed = _failed(group, lowest)
    open_calls = {
        rank: opened
        for rank, view in group.views.items()
        if (opened := tuple(entry for entry in view.collectives if entry.is_open or entry is failed.get(rank)))
    }
    waits = {
        rank: entry
        for rank, opened in open_calls.items()
        if (entry := next((one for one in opened if one.sequence > lowest), None)) is not None
    }
    divergence, matched = first_divergence(group, calls, sisters)
    first = min((opened[0] for opened in open_calls.values()), key=lambda entry: entry.sequence, default=None)
    not_finished = _not_finished(group, open_calls, reached)
    not_started = _not_started(open_calls)
    if divergence is not None and (divergence.is_open or not waits):
        finding, call = GroupFinding.DIVERGED, divergence.majority[-1]
    elif waits:
        finding, call = GroupFinding.NOT_ENTERED, min(waits.values(), key=lambda entry: entry.sequence)
    elif first is None:
        finding, call = GroupFinding.IDLE, None
    else:
        call = first
        if not_finished:
            finding = GroupFinding.NOT_FINISHED
        elif not_started:
            finding = GroupFinding.NOT_STARTED
        else:
            finding = GroupFinding.NO_DUMP if group.silent else GroupFinding.STALLED
    return GroupState(
        group=group,
        finding=finding,
        sequence=call.sequence if call is not None else max(reached.values(), default=0),
        call=call,
        reached=reached,
        open_calls=open_calls,
        waits=waits,
        not_started=not_started,
        not_finished=not_finished,
        divergence=divergence,
        matched=matched,
    )


def _failed(group: ProcessGroup, lowest: int) -> dict[int, DumpEntry]:
    """Last calls that ended, and cannot have: no member gets out of them before all are in, and somebody is not.

    gloo marks a call that timed out or lost its connection like one that ended well. Only one call can be ahead so; if
    a member is further ahead, the ranks were still running when they dumped, one after the other.
    """
    last = {rank: view.collectives[-1] for rank, view in group.views.items() if view.collectives}
    if any(entry.sequence > lowest + 1 for entry in last.values()):
        return {}
    return {
        rank: entry
        for rank, entry in last.items()
        if entry.sequence == lowest + 1 and not entry.is_open and entry.state != "completed"
        if rule_of(entry.op).synchronises
    }


def _reached(group: ProcessGroup, rank: int, *, is_counter_usable: bool) -> int:
    view = group.views[rank]
    seen = max((entry.sequence for entry in (*view.collectives, *view.pairs)), default=-1)
    if is_counter_usable and view.status is not None:
        return max(seen, view.status.enqueued)
    return seen


def _not_finished(
    group: ProcessGroup, open_calls: Mapping[int, tuple[DumpEntry, ...]], reached: Mapping[int, int]
) -> tuple[int, ...]:
    """Members for whom a call is open that most others have seen to end, though all are in it or none ends it alone.

    Their device, or who watches it, stopped answering. Fewer than half, else the others were merely dumped later; of
    two the one for whom it is open.
    """
    done = sorted(
        (open_calls[rank][0].sequence - 1 if rank in open_calls else reached[rank] for rank in group.views),
        reverse=True,
    )
    if len(done) < 2:
        return ()
    by_most = done[(len(done) - 1) // 2]
    lowest = min(reached.values())
    late = tuple(
        sorted(
            rank
            for rank, opened in open_calls.items()
            if opened[0].sequence <= by_most and (opened[0].sequence <= lowest or rule_of(opened[0].op).synchronises)
        )
    )
    return late if len(late) * 2 < len(done) or len(done) == 2 else ()


def _not_started(open_calls: Mapping[int, tuple[DumpEntry, ...]]) -> tuple[int, ...]:
    """Members whose device has not begun the first open call while others' have: it is busy with something before."""
    first = min((opened[0].sequence for opened in open_calls.values()), default=None)
    by_rank = {rank: opened[0] for rank, opened in open_calls.items() if opened[0].sequence == first}
    waiting = tuple(sorted(rank for rank, entry in by_rank.items() if not entry.is_started))
    return waiting if len(waiting) < len(by_rank) else ()
