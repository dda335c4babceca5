"""Time as the brokers have it: a node's own wall clock, as far as the brokers' answers do not refute it.

Nodes' clocks may be seconds apart, and who failed first across nodes is told by them. A broker stamps each message when
it appends it, which is after we have handed it over and before the answer is here: each answer says within which bounds
its clock lies. A wall clock within them is believed, since NTP is finer than they are; another is put to the nearest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Stamps are whole milliseconds.
_STAMP_NS = 1_000_000
#: Quartz drifts by some 50 ppm: bounds that are older than two of these would be false by more than 10 ms.
_WINDOW_NS = 120_000_000_000


@dataclass(slots=True)
class _Bounds:
    """Of what must be added to the monotonic clock; low > high: brokers that do not agree."""

    since_ns: int
    low_ns: int
    high_ns: int


class BrokerClock:
    """Thread-safe."""

    def __init__(
        self, monotonic_ns: Callable[[], int] = time.monotonic_ns, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self._lock = threading.Lock()
        self._newest: _Bounds | None = None
        self._former: _Bounds | None = None

    def hear(self, *, handed_ns: int, answered_ns: int, stamp_ns: int) -> None:
        """Takes a broker's answer as a bound: by its own clock it appended a message at ``stamp_ns`` (Unix).

        handed_ns, answered_ns: between these times of our monotonic clock it did so.
        """
        low_ns, high_ns = stamp_ns - answered_ns, stamp_ns + _STAMP_NS - handed_ns
        with self._lock:
            newest = self._newest
            if newest is None or answered_ns - newest.since_ns > _WINDOW_NS:
                self._former, self._newest = newest, _Bounds(since_ns=answered_ns, low_ns=low_ns, high_ns=high_ns)
                return
            if low_ns > newest.high_ns or high_ns < newest.low_ns:  # another broker leads now, or its clock was set
                self._former, self._newest = None, _Bounds(since_ns=answered_ns, low_ns=low_ns, high_ns=high_ns)
                return
            newest.low_ns, newest.high_ns = max(newest.low_ns, low_ns), min(newest.high_ns, high_ns)

    def now_ns(self) -> int:
        """Unix time by the brokers: this node's wall clock, moved as little as their answers demand."""
        monotonic_ns = self._monotonic_ns()
        offset_ns = self._wall_ns() - monotonic_ns
        bounds = self._bounds()
        if bounds is None:
            return monotonic_ns + offset_ns
        return monotonic_ns + min(max(offset_ns, bounds[0]), bounds[1])

    @property
    def wrong_by_ns(self) -> int:
        """How far, at least, this node's wall clock is ahead of the brokers' (negative: behind); 0 if unknown."""
        return self._wall_ns() - self.now_ns() if self._bounds() is not None else 0

    def _bounds(self) -> tuple[int, int] | None:
        with self._lock:
            newest, former = self._newest, self._former
            if newest is None:
                return None
            low_ns, high_ns = newest.low_ns, newest.high_ns
            if former is not None and former.low_ns <= high_ns and former.high_ns >= low_ns:
                low_ns, high_ns = max(low_ns, former.low_ns), min(high_ns, former.high_ns)
            return low_ns, high_ns
