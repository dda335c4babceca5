"""Who waits for whom over all process groups, and where the chains begin. Pure.

A rank waits at the first call of a group that somebody has not entered. Who has not entered may itself wait elsewhere:
then it is held up, too, and the chain goes on. Where it ends is the root; where it ends nowhere is a deadlock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .group_state import GroupState
from .pair_waits import PairWait
from .rank_dump import DumpEntry

#: Waiters of one call that are asked whether they could go on.
WITNESSES = 64
#: Groups of one rank whose open calls are compared with each other.
MAX_CROSSED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpWait:
    """``waiters`` are in a call that ``targets`` have not entered; entries: each waiter's own entry of the call.

    state: of the group; None for a send or receive.
    """

    label: str
    targets: tuple[int, ...]
    entries: Mapping[int, DumpEntry]
    state: GroupState | None

    @property
    def call(self) -> DumpEntry:
        """The call that is waited in, as one of the waiters recorded it."""
        return next(iter(self.entries.values()))


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """waits: all. of: rank -> those in which it waits. for_: rank -> those that wait for it.

    open_pairs: rank -> its open sends and receives.
    """

    waits: tuple[DumpWait, ...]
    of: Mapping[int, tuple[DumpWait, ...]]
    for_: Mapping[int, tuple[DumpWait, ...]]
    open_pairs: Mapping[int, tuple[DumpEntry, ...]]


def wait_graph(states: Sequence[GroupState], pairs: Iterable[tuple[str, PairWait]]) -> WaitGraph:
    """Who waits for whom among ranks with a dump; partners without one are left to the caller.

    pairs: (group's label, wait) of sends and receives.
    """
    waits: list[DumpWait] = []
    for state in states:
        by_sequence: dict[int, dict[int, DumpEntry]] = defaultdict(dict)
        for rank, entry in state.waits.items():
            by_sequence[entry.sequence][rank] = entry
        for sequence, entries in by_sequence.items():
            targets = state.missing_at(sequence)
            waits.append(DumpWait(label=state.group.label, targets=targets, entries=entries, state=state))
    for label, pair in pairs:
        if not pair.is_silent:
            waits.append(DumpWait(label=label, targets=(pair.peer,), entries={pair.rank: pair.entry}, state=None))
    of: dict[int, list[DumpWait]] = defaultdict(list)
    for_: dict[int, list[DumpWait]] = defaultdict(list)
    for wait in waits:
        for rank in wait.entries:
            of[rank].append(wait)
        for rank in wait.targets:
            for_[rank].append(wait)
    return WaitGraph(
        tuple(waits),
        {rank: tuple(found) for rank, found in of.items()},
        {rank: tuple(found) for rank, found in for_.items()},
        _open_pairs(states),
    )


def _open_pairs(states: Iterable[GroupState]) -> dict[int, tuple[DumpEntry, ...]]:
    found: dict[int, list[DumpEntry]] = defaultdict(list)
    for state in states:
        for rank, view in state.group.views.items():
            found[rank].extend(entry for entry in view.pairs if entry.is_open)
    return {rank: tuple(entries) for rank, entries in found.items()}


def roots(graph: WaitGraph) -> tuple[int, ...]:
    """Ranks that others wait for and that wait for nobody."""
    return tuple(sorted(rank for rank in graph.for_ if rank not in graph.of))


def laggards(graph: WaitGraph) -> tuple[int, ...]:
    """Ranks that wait like others do and yet fell behind them: what they wait in did not keep the others' host.

    On a device a call returns at once, so ranks run ahead of what they wait for until something makes them stop. A rank
    that stopped earlier than its peers, who are in the same calls, was held up by something of its own.
    """
    return tuple(sorted(rank for rank in graph.for_ if rank in graph.of and _fell_behind(graph, rank)))


def _fell_behind(graph: WaitGraph, rank: int) -> bool:
    excuses = graph.of[rank]
    for later in graph.for_[rank]:
        state = later.state
        if state is None:
            continue
        behind = state.reached[rank]
        passed = asked = 0
        for witness in list(later.entries)[:WITNESSES]:
            ahead = next((one for one in state.open_calls[witness] if one.sequence > behind), None)
            shared = [entry for wait in excuses if (entry := _own_entry(graph, wait, rank, witness)) is not None]
            if ahead is None or len(shared) < len(excuses):
                continue
            asked += 1
            passed += all(entry.record_id < ahead.record_id for entry in shared)
        if asked and passed * 2 > asked:
            return True
    return False


def _own_entry(graph: WaitGraph, wait: DumpWait, rank: int, witness: int) -> DumpEntry | None:
    """The witness's entry, still open, of the call in which the rank waits.

    Of a send or receive: its own of the same number with its own partner, as members of one pipeline stage make them.
    """
    mine = wait.entries[rank]
    if wait.state is not None:
        opened = wait.state.open_calls.get(witness, ())
        return next((entry for entry in opened if entry.sequence == mine.sequence), None)
    return next(
        (
            entry
            for entry in graph.open_pairs.get(witness, ())
            if (entry.op, entry.p2p_sequence, entry.description) == (mine.op, mine.p2p_sequence, mine.description)
        ),
        None,
    )


def victims_of(graph: WaitGraph, suspects: Iterable[int]) -> set[int]:
    """Ranks that wait for one of ``suspects``, or for somebody who does; without the suspects themselves."""
    reached: set[int] = set(suspects)
    queue = deque(reached)
    seen: set[int] = set()
    while queue:
        for wait in graph.for_.get(queue.popleft(), ()):
            if id(wait) not in seen:
                seen.add(id(wait))
                fresh = [rank for rank in wait.entries if rank not in reached]
                reached.update(fresh)
                queue.extend(fresh)
    return reached - set(suspects)


def cycle(graph: WaitGraph) -> tuple[DumpWait, ...]:
    """The waits of one ring of ranks that wait for each other; empty if there is none."""
    done: set[int] = set()
    for start in graph.of:
        path: list[tuple[int, DumpWait]] = []
        places: dict[int, int] = {}
        rank = start
        while rank not in done and rank not in places and rank in graph.of:
            places[rank] = len(path)
            wait = graph.of[rank][0]
            held_up = [target for target in wait.targets if target in graph.of]
            path.append((rank, wait))
            if not held_up:
                break
            rank = held_up[0]
        else:
            if rank in places:
                return tuple(wait for _, wait in path[places[rank] :])
        done.update(places)
    return ()


def crossed_orders(states: Sequence[GroupState]) -> tuple[GroupState, GroupState] | None:
    """Two groups whose open calls two shared members made in opposite order: each device waits in the other's call.

    None: no such groups.
    """
    of: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place, state in enumerate(states):
        for rank, opened in state.open_calls.items():
            of[rank].append((opened[0].record_id, place))
    orders: set[tuple[int, int]] = set()
    for calls in of.values():
        places = [place for _, place in sorted(calls)[:MAX_CROSSED]]
        for number, earlier in enumerate(places):
            for later in places[number + 1 :]:
                if (later, earlier) in orders:
                    return states[earlier], states[later]
                orders.add((earlier, later))
    return None
