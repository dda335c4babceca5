"""What happened and is to be told with the next flush: definitions before its blocks, everything else behind them.

Owned by the polling thread. ``urgent`` says that the next flush must not wait for its time.
"""

from __future__ import annotations

from typing import Any

from ...telemetry.records import Event, Identity
from ...telemetry.vocabulary import EventName
from .watched_rank import WatchedRank


class PendingEvents:
    """clock_offset_ns: from this node's monotonic clock to its wall clock."""

    def __init__(self, clock_offset_ns: int) -> None:
        self.clock_offset_ns = clock_offset_ns
        self.urgent = False
        self._before: list[Event] = []
        self._behind: list[Event] = []

    def before_blocks(self, name: EventName, identity: Identity, mono_ns: int, attributes: dict[str, Any]) -> None:
        """Adds an event for the next flush, ahead of its blocks, which refer to it or are read in its light."""
        self._before.append(self._event(name, identity, mono_ns, attributes))

    def behind_blocks(self, name: EventName, identity: Identity, mono_ns: int, attributes: dict[str, Any]) -> None:
        """Adds an event for the next flush, behind its blocks: the rows that lead to it are read first."""
        self._behind.append(self._event(name, identity, mono_ns, attributes))

    def tell(self, rank: WatchedRank, name: EventName, mono_ns: int, attributes: dict[str, Any]) -> None:
        """Adds an event behind the blocks of a flush, and asks for that flush at once (``urgent``)."""
        self.behind_blocks(name, rank.identity, mono_ns, attributes)
        self.urgent = True

    def put_exits_last(self) -> None:
        """Sorts the events behind the blocks by time, RANK_EXITs last.

        Of the end of a writer that nobody watched it is only known that it lies after its last sign of life.
        """
        self._behind.sort(key=lambda event: (event.name is EventName.RANK_EXIT, event.mono_ns))

    def take(self) -> tuple[list[Event], list[Event]]:
        """Takes away (events before the blocks, events behind them); both are empty afterwards."""
        taken = self._before, self._behind
        self._before, self._behind = [], []
        return taken

    def _event(self, name: EventName, identity: Identity, mono_ns: int, attributes: dict[str, Any]) -> Event:
        time_ns = mono_ns + self.clock_offset_ns
        return Event(name=name, identity=identity, time_ns=time_ns, mono_ns=mono_ns, attributes=attributes)
