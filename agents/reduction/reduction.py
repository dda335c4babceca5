"""What is shipped of ring events: joined calls, step rows, and which of them go out; for any number of rings at once.

Per ring slot it keeps what the columns need (rank, group numbers, whether ends are seen); everything is an array
indexed by slot, so that all rings of a node are handled in one pass. Knows neither files nor processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...telemetry.records import Block, Group, Identity
from ...telemetry.tables import DEVICE_STEPS, NO_GROUP
from ...telemetry.vocabulary import EventName, is_device_backend
from ...telemetry.whole_steps import whole_steps_every
from ..base.health import AgentHealth
from .collect_collectives import CollectedRows, CollectiveJoiner
from .collect_device import DeviceSums
from .collect_steps import CollectedSteps, StepCollector
from .group_identity import AgentGroupRegistry

#: Where not every step is shipped whole, an open call is shipped once it is open for so many times as long as any of
#: its group was before, and at the latest after this time, which is too short for anybody to be seen waiting.
OVERDUE_TIMES, OVERDUE_NS = 1.25, 2_000_000_000
#: Table, its rows, and the ring slot of each.
Table = tuple[EventName, NDArray[np.void], NDArray[np.uint16]]
_NO_SUMS = np.zeros(0, DEVICE_STEPS)
_FIRST_SLOTS = 16
_FIRST_GROUP_ROWS = 64


class Reduction:
    """Not thread-safe."""

    def __init__(
        self, health: AgentHealth, max_open_rows: int, *, single_phases: bool = False, withheld: Collection[str] = ()
    ) -> None:
        self._joiner = CollectiveJoiner(health, max_open_rows)
        self._steps = StepCollector(single_phases=single_phases, withheld=withheld)
        self._device_sums = DeviceSums()
        self._registry = AgentGroupRegistry()
        self._on_device = np.zeros(_FIRST_GROUP_ROWS, bool)  # by agent-wide group number
        self._group_of = np.full((_FIRST_SLOTS, _FIRST_GROUP_ROWS), NO_GROUP, np.uint16)
        self._rank_of = np.zeros(_FIRST_SLOTS, np.uint32)
        self._completion_seen = np.zeros(_FIRST_SLOTS, bool)
        self._ship_every = np.ones(_FIRST_SLOTS, np.int64)
        self._longest_ns = np.zeros(_FIRST_GROUP_ROWS, np.int64)

    @property
    def groups(self) -> Sequence[Group]:
        """All groups, the place being the agent-wide number."""
        return self._registry.groups

    def add_slot(self, slot: int, rank: int, world_size: int, group_rows: int) -> None:
        """Makes room for a ring whose progress page has ``group_rows`` rows; its groups are not known yet."""
        self._grow(slot + 1, group_rows)
        self._group_of[slot] = NO_GROUP
        self._rank_of[slot] = rank
        self._ship_every[slot] = whole_steps_every(world_size)

    def forget_slot(self, slot: int) -> None:
        """Drops what is open of a slot, so that nothing of it is joined with the events of the next ring there."""
        self._joiner.forget(slot)
        self._steps.forget(slot)
        self._device_sums.forget(slot)

    def see_completion(self, slot: int, seen: bool) -> None:
        """Notes whether the ends of this ring's operations are recorded."""
        self._completion_seen[slot] = seen

    def define_group(self, slot: int | NDArray[np.int64], row: int, group: Group) -> int:
        """Bind a group row of one or more slots (index, or one per slot) to the agent-wide number of its group.

        NO_GROUP: the row is blind.
        """
        number = self._registry.number(group)
        if number == NO_GROUP:
            return NO_GROUP
        self._group_of[slot, row] = number
        if number >= len(self._longest_ns):
            more = number + _FIRST_GROUP_ROWS - len(self._longest_ns)
            self._longest_ns = np.concatenate((self._longest_ns, np.zeros(more, np.int64)))
            self._on_device = np.concatenate((self._on_device, np.zeros(more, bool)))
        self._on_device[number] = is_device_backend(group.backend)
        return number

    def longest_ns(self) -> dict[int, int]:
        """Nanoseconds of the longest completed operation seen so far, by agent-wide group number."""
        return dict(enumerate(self._longest_ns.tolist()))

    def collect(self, events: NDArray[np.void], ring: NDArray[np.uint16]) -> tuple[CollectedRows, CollectedSteps]:
        """Joins events into rows of calls and steps; also updates ``longest_ns``.

        events: rows of EVENT, per ring contiguous and in their order; ring: the slot of each row.
        """
        collected = self._joiner.collect(
            events, ring, self._rank_of, self._group_of, self._completion_seen, self._ship_every
        )
        rows = collected.rows
        if len(rows):
            done_ns = rows["done_ns"]
            np.maximum.at(self._longest_ns, rows["group"], np.where(done_ns > 0, done_ns - rows["enqueued_ns"], 0))
        self._steps.add_collectives(collected)
        return collected, self._steps.collect(events, ring, self._rank_of)

    def tables(self, collected: CollectedRows, steps: CollectedSteps, now_ns: int | NDArray[np.int64]) -> list[Table]:
        """The tables to ship as (block name, rows, slot of each row), in the order that they must have on the bus.

        Of a large job whole calls of every k-th step alone, of the others sums, and calls that are open for too long.
        now_ns: monotonic, of all slots or by slot.
        """
        rows, ring = collected.rows, collected.ring
        sums, sums_ring = _NO_SUMS, steps.steps_ring[:0]
        if (self._ship_every > 1).any():
            whole = rows["step"] % self._ship_every[ring] == 0
            self._device_sums.add(collected, ~whole & self._on_device[rows["group"]])
            sums, sums_ring = self._device_sums.take(steps.steps, steps.steps_ring, self._rank_of)
            rows, ring = rows.compress(collected.ships), ring[collected.ships]
            patience_ns = np.minimum(OVERDUE_TIMES * self._longest_ns, OVERDUE_NS).astype(np.int64)
            of_slots_ns = np.zeros(len(self._rank_of), np.int64)
            of_slots_ns[: np.size(now_ns) if np.ndim(now_ns) else None] = now_ns
            overdue, overdue_ring = self._joiner.take_overdue(of_slots_ns, patience_ns)
            if len(overdue):
                rows, ring = np.concatenate((overdue, rows)), np.concatenate((overdue_ring, ring))
        return [
            (EventName.BLOCK_DEVICE_STEPS, sums, sums_ring),  # before the ends that close the step
            (EventName.BLOCK_COLLECTIVES, rows, ring),
            (EventName.BLOCK_STEP_GROUPS, steps.groups, steps.groups_ring),
            (EventName.BLOCK_STEPS, steps.steps, steps.steps_ring),
        ]

    def block(
        self, name: EventName, rows: NDArray[np.void], identity: Identity, *, clock_offset_ns: int, time_ns: int
    ) -> Block:
        """A block of rows that are the caller's to give away: their ``group`` becomes an index into the block's.

        rows: of the table that ``name`` says, one for each record; its columns carry their units.
        """
        groups: tuple[Group, ...] = ()
        if "group" in (rows.dtype.names or ()):
            groups, rows["group"] = self._registry.for_block(rows["group"])
        return Block(
            name=name, identity=identity, rows=rows, groups=groups, clock_offset_ns=clock_offset_ns, time_ns=time_ns
        )

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


def split_by_part(
    table: NDArray[np.void], ring: NDArray[np.uint16], part_of_slot: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """The rows of each part that has some, by ascending part, in their order. Rows of slots without one (-1) go."""
    if not len(table):
        return
    part = part_of_slot[ring]
    if part[0] >= 0 and (part == part[0]).all():  # the usual case: one attempt
        yield int(part[0]), table
        return
    order = np.argsort(part, kind="stable")
    order = order[np.searchsorted(part[order], 0) :]
    if not len(order):
        return
    table, part = table.take(order), part[order]
    edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
    for first, last in pairwise(edges):
        yield int(part[first]), table[first:last]
