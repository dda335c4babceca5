"""The verdict on a set of dumps: what kind of hang, which ranks began it, who only looks guilty. Pure.

Evidence in falling order: members that called something else; ranks that others wait for and that wait for nobody;
ranks that fell behind peers in the same calls; a ring of waits; calls that ended for most but not for some; and last a
rank of which there is no dump. Where none of it is there, nobody is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...telemetry.ring_layout import format_ranks
from ...telemetry.vocabulary import Action, Bucket, Kind, Scope
from .activity import Activity, activity_of
from .divergence import sister_votes
from .dump_suspects import (
    EVEN,
    LIKELY,
    SURE,
    DumpAdvice,
    DumpSuspect,
    RuledOut,
    fell_behind,
    first_wait,
    how_it_differs,
    named_ranks,
    not_entered,
    not_finished,
    not_started,
    ruled_out,
)
from .dump_wait_graph import DumpWait, WaitGraph, crossed_orders, cycle, laggards, roots, wait_graph
from .group_state import GroupFinding, GroupState, group_state
from .pair_waits import pair_waits
from .process_groups import process_groups, world_size
from .rank_dump import RankDump
from .silence import SilentWaits, silent_waits

#: Confidence where nothing names anybody.
WEAK = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """kind is None where nothing hangs or nothing can be said; ``summary`` then says which.

    silent: ranks that must exist and have no dump: not seen, so not ruled out.
    state: of the group in which it began; states: of all groups with an open call or a divergence.
    """

    finding: GroupFinding
    kind: Kind | None
    bucket: Bucket | None
    scope: Scope | None
    confidence: float
    summary: str
    suspects: tuple[DumpSuspect, ...]
    victims: tuple[int, ...]
    ruled_out: tuple[RuledOut, ...]
    silent: tuple[int, ...]
    state: GroupState | None
    states: tuple[GroupState, ...]
    activities: Mapping[int, Activity]
    ranks_expected: int
    advice: DumpAdvice | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    finding: GroupFinding
    kind: Kind | None
    scope: Scope | None
    confidence: float
    summary: str
    suspects: tuple[DumpSuspect, ...]
    state: GroupState | None


def analyse(dumps: Mapping[int, RankDump]) -> Diagnosis:
    """The diagnosis of a hang from ranks' dumps: its kind, who began it, who only waits, what to do.

    dumps: by rank. Ranks of the job that left none are reasoned about as silent ones.
    """
    groups = process_groups(dumps)
    votes = sister_votes(groups)
    states = [group_state(group, votes.get((group.description, len(group.members)), {})) for group in groups.values()]
    pairs = [(group.label, pair) for group in groups.values() if any(v.pairs for v in group.views.values())
             for pair in pair_waits(group)]  # fmt: skip
    graph = wait_graph(states, pairs)
    expected = world_size(dumps, groups)
    silent = tuple(rank for rank in range(expected) if rank not in dumps)
    unseen = silent_waits(dumps, states, pairs)
    shown = [state for state in states if state.finding is not GroupFinding.IDLE or state.divergence is not None]
    verdict = _verdict(dumps, states, graph, unseen)
    opened = {rank for rank, dump in dumps.items() if any(entry.is_open for entry in dump.entries)}
    opened.update(rank for state in states for rank in state.open_calls)
    named = {suspect.rank for suspect in verdict.suspects}
    coverage = len(dumps) / expected if expected else 0.0
    return Diagnosis(
        finding=verdict.finding,
        kind=verdict.kind,
        bucket=Bucket.COMMUNICATION_HANG if verdict.kind is not None else None,
        scope=verdict.scope,
        confidence=round(verdict.confidence * (0.6 + 0.4 * coverage), 2),
        summary=verdict.summary,
        suspects=verdict.suspects,
        victims=tuple(sorted(opened - named)) if verdict.kind is not None else (),
        ruled_out=ruled_out(graph, named, states) if verdict.kind is not None else (),
        silent=silent,
        state=verdict.state,
        states=tuple(
            sorted(shown, key=lambda state: (state.finding is not GroupFinding.DIVERGED, state.group.key.name))
        ),
        activities={rank: activity_of(dumps[rank]) for rank in sorted(dumps)},
        ranks_expected=expected,
        advice=_advice(verdict),
    )


def _verdict(
    dumps: Mapping[int, RankDump], all_states: Sequence[GroupState], graph: WaitGraph, unseen: SilentWaits
) -> _Verdict:
    states = [state for state in all_states if state.finding is not GroupFinding.IDLE or state.divergence is not None]
    diverged = _first_divergence(states)
    if diverged is not None:
        return _diverged(diverged)
    held_by_unseen = set(unseen.by_waiter)
    found = [rank for rank in roots(graph) if rank not in held_by_unseen]
    behind = [rank for rank in laggards(graph) if rank not in held_by_unseen]
    unfinished = {rank: state for state in states for rank in state.not_finished}
    if found or behind:
        suspects = [not_entered(rank, graph, unfinished.get(rank)) for rank in found]
        suspects += [fell_behind(rank, graph) for rank in behind]
        named = {suspect.rank for suspect in suspects}
        suspects += [not_finished(rank, state) for rank, state in sorted(unfinished.items()) if rank not in named]
        suspects.sort(key=lambda suspect: (-suspect.probability, suspect.rank))
        return _Verdict(
            finding=GroupFinding.NOT_ENTERED,
            kind=Kind.RANK_NOT_ENTERED,
            scope=Scope.RANK,
            confidence=max(suspect.probability for suspect in suspects),
            summary=f"{named_ranks(suspects)} did not enter what the others wait in",
            suspects=tuple(suspects),
            state=_where_it_began(graph, suspects),
        )
    ring = cycle(graph) if not unseen.by_waiter else ()
    crossed = (
        crossed_orders([state for state in states if state.finding is GroupFinding.STALLED])
        if not graph.waits
        else None
    )
    if ring or crossed:
        return _deadlock(ring, crossed)
    if unfinished:
        return _stalled(tuple(not_finished(rank, state) for rank, state in sorted(unfinished.items())), states)
    late = {rank: state for state in states if state.finding is GroupFinding.NOT_STARTED for rank in state.not_started}
    if late:
        return _stalled(tuple(not_started(rank, state) for rank, state in sorted(late.items())), states)
    if unseen.by_silent:
        return _no_dump(unseen)
    if any(state.open_calls for state in states) or graph.waits:
        return _stalled((), states)
    lacking = next((state for state in all_states if state.lacking), None)
    return _nothing(dumps) if lacking is None else _lacking(lacking)


def _first_divergence(states: Sequence[GroupState]) -> GroupState | None:
    """The divergence to believe: of calls that are still open first, then the one that most members saw."""
    found = [state for state in states if state.finding is GroupFinding.DIVERGED and state.divergence is not None]

    def weight(state: GroupState) -> tuple[bool, bool, int]:
        assert state.divergence is not None
        return state.divergence.is_open, bool(state.divergence.ranks), len(state.divergence.present)

    return max(found, key=weight, default=None)


def _diverged(state: GroupState) -> _Verdict:
    divergence = state.divergence
    assert divergence is not None
    odd = divergence.ranks
    is_tie = len(odd) == len(divergence.present)
    right = divergence.majority[-1]
    suspects = tuple(
        DumpSuspect(
            rank=rank,
            probability=round(1 / len(odd), 2) if is_tie else SURE,
            finding=GroupFinding.DIVERGED,
            because=how_it_differs(divergence, mismatch.value, is_tie=is_tie),
        )
        for rank, mismatch in sorted(odd.items())
    )
    if not odd:
        summary = (
            f"what the members of {state.group.label} send in {right.op} {divergence.sequence} is not what they receive"
        )
    elif is_tie:
        summary = (
            f"{named_ranks(suspects)} called different things in {state.group.label}; which is wrong cannot be told"
        )
    else:
        summary = f"{named_ranks(suspects)} called something else than the others in {state.group.label}"
    return _Verdict(
        finding=GroupFinding.DIVERGED,
        kind=Kind.DESYNC,
        scope=Scope.APPLICATION,
        confidence=EVEN if is_tie or not odd else SURE,
        summary=summary,
        suspects=suspects,
        state=state,
    )


def _deadlock(ring: Sequence[DumpWait], crossed: tuple[GroupState, GroupState] | None) -> _Verdict:
    if crossed is not None:
        labels = [state.group.label for state in crossed]
        summary = f"members of {labels[0]} and {labels[1]} make their calls in opposite orders"
        state: GroupState | None = crossed[0]
    else:
        labels = sorted({wait.label for wait in ring})
        members = sorted({rank for wait in ring for rank in (*wait.entries, *wait.targets)})
        summary = f"ranks {format_ranks(members)} wait for each other in {', '.join(labels)}"
        state = next((wait.state for wait in ring if wait.state is not None), None)
    return _Verdict(
        finding=GroupFinding.STALLED,
        kind=Kind.DEADLOCK,
        scope=Scope.APPLICATION,
        confidence=LIKELY,
        summary=summary,
        suspects=(),
        state=state,
    )


def _stalled(suspects: tuple[DumpSuspect, ...], states: Sequence[GroupState]) -> _Verdict:
    opened = [state for state in states if state.open_calls]
    state = max(
        (one for one in opened if {suspect.rank for suspect in suspects} & set(one.open_calls) or not suspects),
        key=lambda one: len(one.open_calls),
        default=None,
    )
    where = state.group.label if state is not None else "sends and receives"
    return _Verdict(
        finding=suspects[0].finding if suspects else GroupFinding.STALLED,
        kind=Kind.COLLECTIVE_STALLED,
        scope=Scope.RANK if suspects else None,
        confidence=LIKELY if suspects else WEAK,
        summary=(
            f"{named_ranks(suspects)}: {suspects[0].because}"
            if suspects
            else f"everybody with a dump is in the call of {where}, and it does not end: nobody can be named"
        ),
        suspects=suspects,
        state=state,
    )


def _no_dump(unseen: SilentWaits) -> _Verdict:
    ranks = sorted(unseen.by_silent)
    probability = round(max(0.05, min(EVEN, 2 * EVEN / len(ranks))), 2)
    suspects = tuple(
        DumpSuspect(
            rank=rank,
            probability=probability,
            finding=GroupFinding.NO_DUMP,
            because=f"left no dump, and {len(unseen.by_silent[rank])} ranks wait in calls that it belongs to",
        )
        for rank in ranks
    )
    return _Verdict(
        finding=GroupFinding.NO_DUMP,
        kind=Kind.RANK_NOT_ENTERED,
        scope=Scope.RANK,
        confidence=probability,
        summary=f"{named_ranks(suspects)} left no dump while the others wait",
        suspects=suspects,
        state=None,
    )


def _lacking(state: GroupState) -> _Verdict:
    """Nothing is open, and some dumps lack the newest call: those ranks did not enter it, or they dumped before it."""
    newest = max(state.reached.values())
    suspects = tuple(
        DumpSuspect(
            rank=rank,
            probability=WEAK,
            finding=GroupFinding.NOT_ENTERED,
            because=f"its dump lacks call {newest} of {state.group.label}, which ended for the others",
        )
        for rank in state.lacking
    )
    return _Verdict(
        finding=GroupFinding.NOT_ENTERED,
        kind=Kind.RANK_NOT_ENTERED,
        scope=Scope.RANK,
        confidence=WEAK,
        summary=f"{named_ranks(suspects)} did not enter the newest call, or dumped before it: nothing is open now",
        suspects=suspects,
        state=state,
    )


def _nothing(dumps: Mapping[int, RankDump]) -> _Verdict:
    is_empty = not any(dump.entries for dump in dumps.values())
    return _Verdict(
        finding=GroupFinding.IDLE,
        kind=None,
        scope=None,
        confidence=0.0,
        summary=(
            "the dumps hold no calls: the recorder was off, or this backend does not write to it"
            if is_empty
            else "no call is open and all calls agree: nothing hung when these dumps were made"
        ),
        suspects=(),
        state=None,
    )


def _where_it_began(graph: WaitGraph, suspects: Sequence[DumpSuspect]) -> GroupState | None:
    """The group of the call that the surest suspect should have entered next."""
    return next((first_wait(graph, one.rank).state for one in suspects if one.rank in graph.for_), None)


def _advice(verdict: _Verdict) -> DumpAdvice | None:
    if verdict.kind is None:
        return None
    if verdict.kind in (Kind.DESYNC, Kind.DEADLOCK):
        return DumpAdvice(
            action=Action.FIX_CODE, text="the ranks' programs disagree: compare the lines that made these calls"
        )
    if verdict.finding in (GroupFinding.NOT_FINISHED, GroupFinding.NOT_STARTED):
        return DumpAdvice(
            action=Action.RESTART, text="look at the suspects' GPUs (kernel log, Xid) before they are used again"
        )
    if verdict.finding is GroupFinding.NO_DUMP:
        return DumpAdvice(action=Action.RESTART, text="look whether the suspects' processes and nodes are alive")
    if verdict.suspects:
        return DumpAdvice(action=Action.RESTART, text="take the suspects' stacks (py-spy dump) before they are ended")
    return DumpAdvice(action=Action.ASK_A_HUMAN, text="look at the network and at devices: the dumps name nobody")
