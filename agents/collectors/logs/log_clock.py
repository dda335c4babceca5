"""How far the clock of the kernel's log lies behind the monotonic clock.

Records are stamped by a clock that nobody disciplines: on a machine that has been up for a month it may be a minute
off, which would put a cause behind its consequence. A record that came between two looks was written between them, so
each bounds the gap from both sides.
"""

from __future__ import annotations

from collections import deque

#: The gap changes by some parts per million: so many bounds are of about the same gap.
_BOUNDS = 64
#: A record may be written after the moment that a look calls now, and still be read by it.
_SLACK_NS = 250_000_000


class LogClock:
    def __init__(self) -> None:
        self._bounds: deque[tuple[int, int]] = deque(maxlen=_BOUNDS)
        self._gap_ns = 0

    def see(self, record_ns: int, earliest_mono_ns: int, latest_mono_ns: int) -> None:
        """Takes one record's time as a bound of the gap: it was written between the two monotonic times.

        Bounds that contradict later ones are forgotten. Without need the gap stays 0.
        """
        self._bounds.append((earliest_mono_ns - record_ns, latest_mono_ns + _SLACK_NS - record_ns))
        while True:
            low = max(bound[0] for bound in self._bounds)
            high = min(bound[1] for bound in self._bounds)
            if low <= high:
                break
            self._bounds.popleft()  # of another gap by now
        # Without need nothing is corrected: most machines have no gap to speak of.
        self._gap_ns = 0 if low <= 0 <= high else (low + high) // 2

    def mono_ns(self, record_ns: int) -> int:
        """A record's time (nanoseconds of the kernel's log) on the node's monotonic clock."""
        return record_ns + self._gap_ns
