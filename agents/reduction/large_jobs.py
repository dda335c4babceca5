"""From which size on a job's agents tell less often: of so many nodes every message costs who reads them all.

What is news (a fast verdict, an event, an operation that gets slow) is told at once whatever the size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...telemetry.packed_flush import Packing, TaughtList, groups_of
from ...telemetry.records import Block
from ...telemetry.vocabulary import EventName

LARGE_RANKS = 1024
#: The agents' counters and the metrics of ranks are told so many times less often, and flushes come once a second.
SELDOM_HEALTH, SELDOM_METRICS = 8, 3


def is_large(world_size: int) -> bool:
    """Whether a job of so many ranks is told of less often."""
    return world_size >= LARGE_RANKS


#: Lists of groups are told again after so long: somebody may have missed them.
_AGAIN_NS = 60_000_000_000


class GroupLists:
    """Whether a flush of a node's blocks has to tell what their groups are: most of the time its readers know.

    lists: for the encoder, which adds to it (``write_packed``).
    """

    def __init__(self) -> None:
        self.lists: set[TaughtList] = set()
        self._told: set[str] = set()
        self._due_ns = 0

    def packing(self, blocks: Sequence[Block], now_ns: int) -> Packing:
        """How to write the blocks of a flush. now_ns: of a clock that goes on, as of all calls."""
        uids = {group.uid for group in groups_of(blocks)}
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _AGAIN_NS
            self._told.clear()
            self.lists.clear()
        # Whole calls become spans, whose group has a name.
        if uids <= self._told and not any(block.name is EventName.BLOCK_COLLECTIVES for block in blocks):
            return Packing.UIDS
        self._told |= uids
        return Packing.WHOLE
