"""The last minutes of a ring: what was drained is kept as it was read, up to an age and a size.

Polling thread. Costs one append per drain; the bytes are those that the drain has read anyway.
"""

from __future__ import annotations

from collections import deque

from ...telemetry import ring_layout as L


class RingHistory:
    """Raw 64-byte events in their order. age_s 0: nothing is kept."""

    __slots__ = ("_age_ns", "_bytes", "_chunks", "limit_bytes")

    def __init__(self, age_s: float = 0.0, limit_bytes: int = 0) -> None:
        self._age_ns = int(age_s * 1e9)
        self.limit_bytes = limit_bytes
        self._chunks: deque[tuple[int, bytes]] = deque()  # (time of the last event, events)
        self._bytes = 0

    def add(self, raw: bytes) -> None:
        """Keeps events just drained (whole slots), and drops the oldest beyond age and size.

        Nothing where age_s is 0.
        """
        if not self._age_ns or not raw:
            return
        (last_ns,) = L.EVENT_STRUCT.unpack(raw[-L.EVENT_BYTES :])[L.E_TIME_NS : L.E_TIME_NS + 1]
        self._chunks.append((last_ns, raw))
        self._bytes += len(raw)
        while len(self._chunks) > 1 and (self._bytes > self.limit_bytes or self._chunks[0][0] < last_ns - self._age_ns):
            self._bytes -= len(self._chunks.popleft()[1])

    @property
    def size(self) -> int:
        """Bytes of events that are kept now."""
        return self._bytes

    def take_copy(self) -> bytes:
        """The kept events as one piece, oldest first, in the ring's own format."""
        return b"".join(raw for _, raw in self._chunks)
