"""Drained events and progress pages into blocks: one per table and attempt, group columns as indexes into the block.

Owned by the polling thread. Per ring it keeps what the columns need (rank, group numbers, whether ends are seen);
everything is an array indexed by ring slot, so that all rings of the node are handled in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..telemetry.records import Block, Group
from ..telemetry.tables import NO_GROUP
from ..telemetry.vocabulary import EventName, is_device_backend
from .collect_collectives import CollectedRows, CollectiveJoiner
from .collect_progress import group_progress_rows, progress_rows
from .collect_steps import CollectedSteps, StepCollector
from .drain import Drained
from .group_identity import GroupRegistry
from .health import AgentHealth
from .watched_rank import WatchedRank

#: Up to this many ranks every step's collectives are shipped whole; beyond, every k-th step.
WHOLE_UP_TO_RANKS = 64
#: Sees the rows of a flush before they become blocks: all of them, with agent-wide group numbers, and those groups.
SeeRows = Callable[[CollectedRows, CollectedSteps, Sequence[Group]], None]
_FIRST_SLOTS = 16
_FIRST_GROUP_ROWS = 64


def whole_steps_every(world_size: int) -> int:
    """Of which steps everything is shipped: every one of a small job, every k-th of a large one."""
    return -(-max(world_size, 1) // WHOLE_UP_TO_RANKS)


class BlockBuilder:
    def __init__(
        self, health: AgentHealth, max_open_rows: int, *, single_phases: bool = False, withheld: Collection[str] = ()
    ) -> None:
        self._joiner = CollectiveJoiner(health, max_open_rows)
        self._steps = StepCollector(single_phases=single_phases, withheld=withheld)
        self._registry = GroupRegistry()
        self._group_of = np.full((_FIRST_SLOTS, _FIRST_GROUP_ROWS), NO_GROUP, np.uint16)
        self._rank_of = np.zeros(_FIRST_SLOTS, np.uint32)
        self._completion_seen = np.zeros(_FIRST_SLOTS, bool)
        self._ship_every = np.ones(_FIRST_SLOTS, np.int64)
        self._longest_ns = np.zeros(_FIRST_GROUP_ROWS, np.int64)

    def add_ring(self, rank: WatchedRank) -> None:
        header = rank.ring.header
        self._grow(rank.slot + 1, header.group_rows)
        self._group_of[rank.slot] = NO_GROUP
        self._rank_of[rank.slot] = header.rank
        self._ship_every[rank.slot] = whole_steps_every(header.world_size)

    def forget_ring(self, rank: WatchedRank) -> None:
        self._joiner.forget(rank.slot)
        self._steps.forget(rank.slot)

    def define_group(self, rank: WatchedRank, row: int, group: Group) -> int:
        """Bind a group row of a ring to the agent-wide number of its group. Returns it; NO_GROUP: the row is blind."""
        number = self._registry.number(group)
        if number == NO_GROUP:
            return NO_GROUP
        self._group_of[rank.slot, row] = number
        rank.group_numbers[row] = number
        if is_device_backend(group.backend):
            rank.device_groups.add(row)
        if group.is_default:
            rank.default_group = number
        if number >= len(self._longest_ns):
            more = number + _FIRST_GROUP_ROWS - len(self._longest_ns)
            self._longest_ns = np.concatenate((self._longest_ns, np.zeros(more, np.int64)))
        return number

    def longest_ns(self) -> dict[int, int]:
        """By agent-wide group number: the longest completed operation seen so far."""
        return dict(enumerate(self._longest_ns.tolist()))

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
            self._completion_seen[rank.slot] = rank.alive and rank.completion_seen()
        collected = self._joiner.collect(
            drained.events, drained.ring, self._rank_of, self._group_of, self._completion_seen
        )
        self._note_longest(collected.rows)
        self._steps.add_collectives(collected)
        steps = self._steps.collect(drained.events, drained.ring, self._rank_of)
        if see is not None:
            see(collected, steps, self._registry.groups)
        rows, ring = collected.rows, collected.ring
        if len(rows):
            every = self._ship_every[ring]
            if (every > 1).any():
                # The same steps on every rank, and whatever is unfinished.
                whole = (rows["step"] % every == 0) | (rows["done_ns"] == 0)
                rows, ring = rows[whole], ring[whole]
        tables = [
            (EventName.BLOCK_COLLECTIVES, rows, ring),
            (EventName.BLOCK_STEP_GROUPS, steps.groups, steps.groups_ring),
            (EventName.BLOCK_STEPS, steps.steps, steps.steps_ring),
        ]
        if progress_at_ns and ranks:
            groups, group_slots = group_progress_rows(ranks, progress_at_ns)
            slots = np.array([rank.slot for rank in ranks], np.uint16)
            tables.append((EventName.BLOCK_GROUP_PROGRESS, groups, np.array(group_slots, np.uint16)))
            tables.append((EventName.BLOCK_PROGRESS, progress_rows(ranks, progress_at_ns), slots))
        slots_of: dict[str, list[int]] = {}
        for rank in ranks:
            slots_of.setdefault(rank.identity.attempt, []).append(rank.slot)
        identity_of = {rank.identity.attempt: replace(rank.identity, rank=-1) for rank in ranks}
        blocks: list[Block] = []
        for name, table, table_ring in tables:
            for attempt, attempt_slots in slots_of.items() if len(table) else ():
                part = table if len(slots_of) == 1 else table[np.isin(table_ring, attempt_slots)]
                if not len(part):
                    continue
                groups_of: tuple[Group, ...] = ()
                if "group" in (part.dtype.names or ()):
                    groups_of, part["group"] = self._registry.for_block(part["group"])  # rows are ours alone
                blocks.append(
                    Block(
                        name=name,
                        identity=identity_of[attempt],
                        rows=part,
                        groups=groups_of,
                        clock_offset_ns=clock_offset_ns,
                        time_ns=time_ns,
                    )
                )
        return blocks

    def _note_longest(self, rows: NDArray[np.void]) -> None:
        if len(rows):
            done_ns = rows["done_ns"]
            np.maximum.at(self._longest_ns, rows["group"], np.where(done_ns > 0, done_ns - rows["enqueued_ns"], 0))

    def _grow(self, slots: int, group_rows: int) -> None:
        have_slots, have_rows = self._group_of.shape
        if slots <= have_slots and group_rows < have_rows:
            return
        # One row more than any ring has: the last column stays NO_GROUP and catches what is out of range.
        grown = np.full(
            (max(slots, 2 * have_slots if slots > have_slots else have_slots), max(group_rows + 1, have_rows)),
            NO_GROUP,
            np.uint16,
        )
        grown[:have_slots, :have_rows] = self._group_of
        self._group_of = grown
        more = len(grown) - have_slots
        self._rank_of = np.concatenate((self._rank_of, np.zeros(more, np.uint32)))
        self._completion_seen = np.concatenate((self._completion_seen, np.zeros(more, bool)))
        self._ship_every = np.concatenate((self._ship_every, np.ones(more, np.int64)))
