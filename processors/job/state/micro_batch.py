"""Blocks of a large job are taken many at a time: what a thousand nodes tell within a moment is one table then.

Most of what a message costs does not depend on its rows, and a node's has those of eight ranks. When the blocks are
taken follows from the records and their stamps alone, never from where a reader's batches end: that moment after the
first one came, before each look, before an event, and before a node tells again of the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....telemetry.vocabulary import EventName
from ..columns.packing import pack, unpack
from .open_rows import Arrived

#: A job on so many nodes, or more, waits so long. On fewer it would gain little.
FEWEST_NODES = 16
HOLD_NS = 100_000_000


@dataclass(slots=True, kw_only=True, eq=False)
class Gathered:
    """A block of the current attempt. stamp_ns: its arrival. closed_ns: when its node closed it, by the node's clock.

    arrived: its rows, not changed by anybody.
    """

    name: EventName
    node: str
    stamp_ns: int
    closed_ns: int
    arrived: Arrived


def block_of_row(blocks: Sequence[Gathered]) -> np.ndarray:
    """For each row of all blocks, one block after the other: the index of its block."""
    if len(blocks) == 1:  # each of a small job's messages
        return np.zeros(blocks[0].arrived.rows.size, np.intp)
    return np.arange(len(blocks)).repeat([block.arrived.rows.size for block in blocks])


class Gathering:
    """Blocks of a job that are held, to be taken many at a time. Owned by the job's state."""

    __slots__ = ("_blocks", "_told", "due_ns", "is_put")

    def __init__(self) -> None:
        self._blocks: list[Gathered] = []
        self._told: set[tuple[EventName, str]] = set()
        #: When what is here has to be taken; 0: nothing is.
        self.due_ns = 0
        #: Whether the row of state is to be made of what is here by then: a block more changes nothing else.
        self.is_put = False

    def holds(self, name: EventName, node: str) -> bool:
        """Whether a block of this table of this node is held already."""
        return (name, node) in self._told

    def add(self, block: Gathered) -> None:
        """Holds a block; the first one sets ``due_ns``, when all are to be taken."""
        self._blocks.append(block)
        self._told.add((block.name, block.node))
        if not self.due_ns:
            self.due_ns = block.stamp_ns + HOLD_NS

    def take(self) -> list[Gathered]:
        """Removes and returns all blocks held, in order of arrival."""
        blocks, self._blocks, self.due_ns, self.is_put = self._blocks, [], 0, False
        self._told.clear()
        return blocks

    # --- as a row of state --------------------------------------------------------------------------------------------
    def pack(self) -> bytes:
        """What is held as a row of state, for ``read``; of what is added later another one has to be put."""
        self.is_put = False
        arrays: dict[str, np.ndarray] = {}
        for place, block in enumerate(self._blocks):
            arrays[f"rows/{place}"] = block.arrived.rows
            if block.arrived.groups is not None:
                arrays[f"lookup/{place}"] = block.arrived.groups
        numbers = [(block.stamp_ns, block.closed_ns, block.arrived.offset_ns) for block in self._blocks]
        arrays["numbers"] = np.array(numbers, np.int64).reshape(-1, 3)
        return pack({"blocks": [(block.name.value, block.node) for block in self._blocks]}, arrays)

    def read(self, row: bytes) -> None:
        """Holds what ``pack`` has written, besides what is held. Raises ValueError or KeyError for another row."""
        values, arrays = unpack(row)
        numbers = arrays["numbers"].tolist()
        for place, (name, node) in enumerate(values["blocks"]):
            stamp_ns, closed_ns, offset_ns = numbers[place]
            lookup = arrays.get(f"lookup/{place}")
            arrived = Arrived(rows=arrays[f"rows/{place}"], offset_ns=offset_ns, groups=lookup)
            self.add(Gathered(name=EventName(name), node=node, stamp_ns=stamp_ns, closed_ns=closed_ns, arrived=arrived))
