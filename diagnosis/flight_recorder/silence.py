"""Ranks without a dump: who may be waiting for them. Pure.

A rank that cannot dump is often the one that hangs (the dump needs its interpreter), and as often its node's disk was
merely full. So its silence is evidence only where nothing better is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .entry_matching import rule_of
from .group_state import GroupState
from .pair_waits import PairWait
from .rank_dump import RankDump


@dataclass(frozen=True, slots=True)
class SilentWaits:
    """by_waiter: rank -> ranks without a dump that it may wait for; by_silent: the other way round."""

    by_waiter: Mapping[int, frozenset[int]]
    by_silent: Mapping[int, frozenset[int]]


def silent_waits(
    dumps: Mapping[int, RankDump], states: Sequence[GroupState], pairs: Sequence[tuple[str, PairWait]]
) -> SilentWaits:
    """Which ranks may wait for ranks without a dump.

    They are in calls that everybody with a dump has entered, and that somebody without one belongs to.
    """
    past = _past_records(states)
    waiters: dict[int, set[int]] = defaultdict(set)
    for state in states:
        silent = state.group.silent
        if not silent:
            continue
        lowest = min(state.reached.values(), default=0)
        for rank, opened in state.open_calls.items():
            if any(one.sequence <= lowest and one.record_id > past.get(rank, -1) for one in opened):
                waiters[rank].update(silent)
    for _, pair in pairs:
        if pair.is_silent and pair.entry.record_id > past.get(pair.rank, -1):
            waiters[pair.rank].add(pair.peer)
    by_silent: dict[int, set[int]] = defaultdict(set)
    for rank, silent_ranks in waiters.items():
        for one in silent_ranks:
            if one not in dumps:
                by_silent[one].add(rank)
    return SilentWaits(
        {rank: frozenset(found) for rank, found in waiters.items()},
        {rank: frozenset(found) for rank, found in by_silent.items()},
    )


def _past_records(states: Sequence[GroupState]) -> dict[int, int]:
    """rank -> record id of its newest call that must have ended, whatever its own dump says: it ended for others."""
    past: dict[int, int] = {}
    for state in states:
        done = {
            rank: state.open_calls[rank][0].sequence - 1 if rank in state.open_calls else reached
            for rank, reached in state.reached.items()
        }
        furthest = max(done.values(), default=-1)
        for rank, opened in state.open_calls.items():
            for entry in opened:
                if entry.sequence <= furthest and rule_of(entry.op).synchronises:
                    past[rank] = max(past.get(rank, -1), entry.record_id)
    return past
