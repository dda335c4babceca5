"""Drained events and progress pages into blocks: one per table and attempt, group columns as indexes into the block.

Owned by the polling thread: what ``reduction`` makes of events, and progress rows, under the identities of the rings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...telemetry.records import Block, Group
from ...telemetry.tables import NO_GROUP
from ...telemetry.vocabulary import EventName, is_device_backend
from ..base.health import AgentHealth
from ..ranks.drain import Drained
from ..ranks.watched_rank import WatchedRank
from .collect_collectives import CollectedRows
from .collect_progress import group_progress_rows, progress_rows
from .collect_steps import CollectedSteps
from .reduction import Reduction, split_by_part

#: Sees the rows of a flush before they become blocks: all of them, with agent-wide group numbers, and those groups.
SeeRows = Callable[[CollectedRows, CollectedSteps, Sequence[Group]], None]


class BlockBuilder:
    def __init__(
        self, health: AgentHealth, max_open_rows: int, *, single_phases: bool = False, withheld: Collection[str] = ()
    ) -> None:
        self._reduction = Reduction(health, max_open_rows, single_phases=single_phases, withheld=withheld)

    def add_ring(self, rank: WatchedRank) -> None:
        """Makes room for a rank's ring; to be called before the first events of its slot are collected."""
        header = rank.ring.header
        self._reduction.add_slot(rank.slot, header.rank, header.world_size, header.group_rows)

    def forget_ring(self, rank: WatchedRank) -> None:
        """Drops open calls and step sums of the ring's slot; what was collected before stays."""
        self._reduction.forget_slot(rank.slot)

    def define_group(self, rank: WatchedRank, row: int, group: Group) -> int:
        """Binds a group row of a ring to the agent-wide number of its group, and notes it in ``rank.groups``.

        Returns the number; NO_GROUP: there are too many, the row is blind.
        """
        number = self._reduction.define_group(rank.slot, row, group)
        if number == NO_GROUP:
            return NO_GROUP
        rank.groups.numbers[row] = number
        if is_device_backend(group.backend):
            rank.groups.on_device.add(row)
        if group.is_default:
            rank.groups.default = number
        return number

    def longest_ns(self) -> dict[int, int]:
        """Nanoseconds of the longest completed operation seen so far, by agent-wide group number."""
        return self._reduction.longest_ns()

    def build(
        self,
        ranks: Sequence[WatchedRank],
        drained: Drained,
        *,
        progress_at_ns: int,
        clock_offset_ns: int,
        time_ns: int,
        see: SeeRows | None = None,
    ) -> list[Block]:
        """Blocks of one flush in the order they must have on the bus: collectives before their steps before progress.

        progress_at_ns: monotonic time of this look, 0 = no progress rows this time. see: must not keep the arrays.
        """
        for rank in ranks:
            self._reduction.see_completion(rank.slot, rank.alive and rank.completion_seen())
        collected, steps = self._reduction.collect(drained.events, drained.ring)
        if see is not None:
            see(collected, steps, self._reduction.groups)
        tables = self._reduction.tables(collected, steps, time_ns - clock_offset_ns)
        if progress_at_ns and ranks:
            groups, group_slots = group_progress_rows(ranks, progress_at_ns)
            slots = np.array([rank.slot for rank in ranks], np.uint16)
            tables.append((EventName.BLOCK_GROUP_PROGRESS, groups, np.array(group_slots, np.uint16)))
            tables.append((EventName.BLOCK_PROGRESS, progress_rows(ranks, progress_at_ns), slots))
        identities = {rank.identity.attempt: replace(rank.identity, rank=-1) for rank in ranks}
        place_of = {attempt: place for place, attempt in enumerate(identities)}
        part_of_slot: NDArray[np.int64] = np.full(max((rank.slot for rank in ranks), default=0) + 1, -1)
        for rank in ranks:
            part_of_slot[rank.slot] = place_of[rank.identity.attempt]
        attempts = list(identities.values())
        return [
            self._reduction.block(name, rows, attempts[part], clock_offset_ns=clock_offset_ns, time_ns=time_ns)
            for name, table, ring in tables
            for part, rows in split_by_part(table, ring, part_of_slot)
        ]
