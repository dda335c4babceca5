"""How far one ring was read, and the newest of what was read from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...telemetry import ring_layout as L
from ..rings.ring_history import RingHistory


@dataclass(slots=True, kw_only=True)
class RingReading:
    """tail: index of the next event to read. Owned by the polling thread."""

    tail: int = 0
    stuck_index: int = -1  # an event whose writer has not finished it, and how often we saw that
    stuck_looks: int = 0
    head_damaged: bool = False
    definitions_read: int = 0
    save_errors: dict[int, str] = field(default_factory=dict)  # why saves failed, by their numbers in definitions
    last_event: bytes = b""  # raw slot of the newest event
    history: RingHistory = field(default_factory=RingHistory)

    def remember_last(self, raw: bytes) -> None:
        """Notes the newest of these raw events (the last word of a writer that dies) and adds all to ``history``."""
        if raw:
            self.last_event = raw[-L.EVENT_BYTES :]
            self.history.add(raw)
