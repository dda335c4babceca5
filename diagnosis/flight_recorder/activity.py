"""What each rank was doing when it dumped, in words and grouped: thousands of ranks do few different things. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .process_groups import UNDEFINED
from .rank_dump import DumpEntry, DumpFrame, RankDump, user_frame


@dataclass(frozen=True, slots=True)
class DumpOperation:
    """sequence: of the collective, or of the send or receive, in its group."""

    name: str
    group: str
    sequence: int
    input_sizes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """open: the first call that has not ended, open_count of them. last: the newest call, whatever became of it.

    where: the user's line of the open call, else of the last.
    """

    open: DumpOperation | None
    open_count: int
    is_started: bool
    last: DumpOperation | None
    where: DumpFrame | None


def activity_of(dump: RankDump) -> Activity:
    """What the rank was doing when it dumped: its first open call, its last call, and the user's line of code."""
    opened = [entry for entry in dump.entries if entry.is_open]
    last = dump.entries[-1] if dump.entries else None
    shown = opened[0] if opened else last
    return Activity(
        open=operation_of(opened[0]) if opened else None,
        open_count=len(opened),
        is_started=bool(opened) and opened[0].is_started,
        last=operation_of(last) if last is not None else None,
        where=user_frame(shown.frames) if shown is not None else None,
    )


def operation_of(entry: DumpEntry) -> DumpOperation:
    """The entry by what it has in common with other ranks' entries of the same call.

    That is its name, group, number and input sizes.
    """
    described = entry.description if entry.description not in ("", UNDEFINED) else f"group {entry.group}"
    return DumpOperation(
        entry.op, described, entry.p2p_sequence if entry.is_p2p else entry.sequence, entry.input_sizes[:1]
    )


def alike(activities: Mapping[int, Activity]) -> list[tuple[tuple[int, ...], Activity]]:
    """Sets of ranks that do the same, each with the activity of its first, largest sets first.

    Shapes and times do not count.
    """
    sets: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, activity in sorted(activities.items()):
        sets[
            _name(activity.open), _name(activity.last), activity.open_count > 0, activity.is_started, activity.where
        ].append(rank)
    return sorted(
        ((tuple(ranks), activities[ranks[0]]) for ranks in sets.values()), key=lambda row: (-len(row[0]), row[0])
    )


def _name(operation: DumpOperation | None) -> tuple[object, ...]:
    return () if operation is None else (operation.name, operation.group, operation.sequence)
