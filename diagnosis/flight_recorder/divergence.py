"""Members of a group that called different things: who is odd, by vote. Pure.

Collectives of a group are the same call where their sequence numbers are equal, so rings that have wrapped at different
places are joined by number, never by position or time. Nobody is the reference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .entry_matching import MatchState, Numel, comparable_key, keeps_numel, mismatch_of, numel, rule_of
from .process_groups import UNDEFINED, GroupKey, ProcessGroup
from .rank_dump import DumpEntry

#: A rank's entries of one sequence number: one, or a coalesced set.
Call = tuple[DumpEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpDivergence:
    """ranks: who differs from the majority, and how; empty where nobody can say who is wrong.

    is_shifted: the odd call is what the others called before or after: a call was left out or added.
    """

    sequence: int
    majority: Call
    ranks: Mapping[int, MatchState]
    is_open: bool
    is_shifted: bool
    present: tuple[int, ...]


def first_divergence(
    group: ProcessGroup,
    calls: Mapping[int, Mapping[int, Call]],
    sisters: Mapping[int, Counter[tuple[object, ...]]],
) -> tuple[DumpDivergence | None, int]:
    """(the first call in which members differ, None for none; how many calls before it agree).

    calls: sequence -> member -> its entries. sisters: votes of like groups by sequence (``sister_votes``).
    """
    matched = 0
    size = len(group.members)
    for sequence, by_rank in calls.items():
        if len(by_rank) < 2 and not (size == 1 and by_rank):
            continue
        keys = {rank: _key(call) for rank, call in by_rank.items()}
        odd: dict[int, MatchState] = {}
        is_shifted = False
        best = next(iter(by_rank))
        if len(set(keys.values())) > 1:
            best, is_clear = _majority(by_rank, keys, sisters.get(sequence, Counter()), size)
            odd = {rank: _mismatch(by_rank[best], by_rank[rank], size) for rank in by_rank if keys[rank] != keys[best]}
            is_shifted = _is_shifted(calls, sequence, keys[best], {keys[rank] for rank in odd})
            if not is_clear:
                odd = dict.fromkeys(by_rank, next(iter(odd.values())))
        elif not _adds_up(by_rank, size):
            odd = {}
        else:
            broken = [rank for rank, call in by_rank.items() if not all(keeps_numel(entry, size) for entry in call)]
            # If all of them break the rule, it is the rule that does not fit how their backend writes sizes.
            if not broken or len(broken) == len(by_rank):
                matched += 1
                continue
            odd = dict.fromkeys(broken, MatchState.SIZE_OR_SYNTAX_MISMATCH)
        return (
            DumpDivergence(
                sequence=sequence,
                majority=by_rank[best],
                ranks=odd,
                is_open=_holds_up(by_rank, is_newest=sequence >= max(calls) - 1),
                is_shifted=is_shifted,
                present=tuple(sorted(by_rank)),
            ),
            matched,
        )
    return None, matched


def calls_by_sequence(group: ProcessGroup) -> dict[int, dict[int, Call]]:
    """sequence -> member -> its entries, ascending; without what a wrapped ring may have cut in the middle."""
    calls: dict[int, dict[int, list[DumpEntry]]] = defaultdict(dict)
    for rank, view in group.views.items():
        cut = view.collectives[0].sequence if view.is_wrapped and _is_set(view.collectives) else None
        for entry in view.collectives:
            if entry.sequence != cut:
                calls[entry.sequence].setdefault(rank, []).append(entry)
    return {sequence: {rank: tuple(entries) for rank, entries in calls[sequence].items()} for sequence in sorted(calls)}


def sister_votes(
    groups: Mapping[GroupKey, ProcessGroup],
) -> dict[tuple[str, int], dict[int, Counter[tuple[object, ...]]]]:
    """(description, size) -> sequence -> votes, over pairs of ranks' groups: in twos, only their sisters can tell.

    Data-parallel pairs of one mesh make the same calls in the same order, so where two members differ, the other pairs
    say which of them is odd.
    """
    votes: dict[tuple[str, int], dict[int, Counter[tuple[object, ...]]]] = defaultdict(lambda: defaultdict(Counter))
    for group in groups.values():
        if len(group.members) <= 4 and group.description not in ("", UNDEFINED):
            for sequence, by_rank in calls_by_sequence(group).items():
                for call in by_rank.values():
                    votes[group.description, len(group.members)][sequence][_key(call)] += 1
    return votes


def _is_set(entries: list[DumpEntry]) -> bool:
    """Whether the oldest entry is of a coalesced set, which may have had entries before it."""
    return bool(entries) and (
        rule_of(entries[0].op).numel is Numel.MARKER
        or (len(entries) > 1 and entries[0].sequence == entries[1].sequence)
    )


def _key(call: Call) -> tuple[object, ...]:
    return tuple(comparable_key(entry) for entry in call)


def _holds_up(by_rank: Mapping[int, Call], *, is_newest: bool) -> bool:
    """Whether the call is open for somebody, or ended for all like a call that failed: with nothing much after it."""
    entries = [entry for call in by_rank.values() for entry in call]
    return any(entry.is_open for entry in entries) or (
        is_newest and any(entry.state != "completed" for entry in entries)
    )


def _majority(
    by_rank: Mapping[int, Call],
    keys: Mapping[int, tuple[object, ...]],
    sisters: Counter[tuple[object, ...]],
    size: int,
) -> tuple[int, bool]:
    """A rank of those who are right, and whether that is clear: by votes, then by sisters, then by sound sizes."""
    votes = Counter(keys.values())
    holders = {key: rank for rank, key in keys.items()}

    def weight(key: tuple[object, ...]) -> tuple[int, int, bool]:
        return votes[key], sisters[key], all(keeps_numel(entry, size) for entry in by_rank[holders[key]])

    first, second = sorted(votes, key=weight, reverse=True)[:2]
    return holders[first], weight(first) > weight(second)


def _mismatch(majority: Call, call: Call, size: int) -> MatchState:
    for one, other in zip(majority, call, strict=False):
        state = mismatch_of(one, other, size)
        if state is not None:
            return state
    return MatchState.SIZE_OR_SYNTAX_MISMATCH


def _is_shifted(
    calls: Mapping[int, Mapping[int, Call]],
    sequence: int,
    right: tuple[object, ...],
    odd: set[tuple[object, ...]],
) -> bool:
    after = {_key(call) for call in calls.get(sequence + 1, {}).values()}
    return right in after or bool(odd & after)


def _adds_up(by_rank: Mapping[int, Call], size: int) -> bool:
    """Whether what all members send in an uneven operation is what all receive."""
    if len(by_rank) < size:
        return True
    for entries in zip(*by_rank.values(), strict=True):
        if rule_of(entries[0].op).numel is Numel.UNEVEN and sum(numel(one.input_sizes) for one in entries) != sum(
            numel(one.output_sizes) for one in entries
        ):
            return False
    return True
