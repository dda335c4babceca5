"""The timers of all operators and keys, by when they are due; what was changed in them can be taken back."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

_LAST_NS = (1 << 63) - 1

#: Operator, key, name.
TimerName = tuple[str, str, str]
#: When it is due and when it was set: Unix ns by the bus.
TimerTimes = tuple[int, int]


class TimerTable:
    """Working copy; what is in ``dirty`` has to be written."""

    def __init__(self) -> None:
        self._timers: dict[TimerName, TimerTimes] = {}
        self._of_key: dict[tuple[str, str], dict[str, None]] = {}  # names by operator and key
        self._heap: list[tuple[int, str, str, str]] = []  # (due, key, name, operator); stale ones are skipped
        self.dirty: set[TimerName] = set()
        self._before: dict[TimerName, TimerTimes | None] | None = None  # of those changed on trial

    def __len__(self) -> int:
        return len(self._timers)

    def get(self, timer: TimerName) -> TimerTimes | None:
        """When a timer is due, and when it was set; None where it is not set."""
        return self._timers.get(timer)

    def load(self, timers: Iterator[tuple[str, str, str, int, int]]) -> None:
        """Takes timers as the file has them: operator, key, name, due, set. Raises TypeError for other values."""
        for operator, key, name, due_ns, set_ns in timers:
            if not (isinstance(due_ns, int) and isinstance(set_ns, int)):
                raise TypeError(f"the timer {name!r} has no time")
            self._keep((operator, key, name), (due_ns, set_ns))
            self._heap.append((due_ns, key, name, operator))
        heapq.heapify(self._heap)

    def set(self, operator: str, key: str, name: str, due_ns: int, set_ns: int) -> None:
        """Moves one of the same name. due_ns: the bus's time, as is set_ns, when it was set."""
        due_ns = min(due_ns, _LAST_NS)  # "never" is a time that the file can hold
        current = self._timers.get((operator, key, name))
        if current is not None and current[0] == due_ns:
            return
        self._note((operator, key, name))
        self._keep((operator, key, name), (due_ns, set_ns))
        if len(self._heap) > 2 * len(self._timers) + 64:  # mostly stale: operators that move a timer at every message
            self._heap = [(due, k, n, o) for (o, k, n), (due, _) in self._timers.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (due_ns, key, name, operator))

    def clear(self, operator: str, key: str, name: str) -> None:
        """Clears a timer; does nothing where it is not set."""
        if (operator, key, name) in self._timers:
            self._note((operator, key, name))
            del self._timers[(operator, key, name)]
            names = self._of_key[(operator, key)]
            del names[name]
            if not names:
                del self._of_key[(operator, key)]

    def clear_key(self, operator: str, key: str) -> None:
        """Clears all timers of an operator's key."""
        for name in list(self._of_key.get((operator, key), ())):
            self.clear(operator, key, name)

    def next_due_ns(self) -> int | None:
        """When the first timer is due (Unix ns by the bus); None if none is set."""
        while self._heap:
            due_ns, key, name, operator = self._heap[0]
            current = self._timers.get((operator, key, name))
            if current is not None and current[0] == due_ns:
                return due_ns
            heapq.heappop(self._heap)
        return None

    def pop(self) -> tuple[int, str, str, str]:
        """Removes and returns the first timer: (due, key, name, operator). Call after next_due_ns() returned a time."""
        due_ns, key, name, operator = heapq.heappop(self._heap)
        self.clear(operator, key, name)
        return due_ns, key, name, operator

    def restart(self, at_ns: int) -> None:
        """Lets every timer run its full time again from ``at_ns``: nobody could be heard while time stood still."""
        for (operator, key, name), (due_ns, set_ns) in list(self._timers.items()):
            self.set(operator, key, name, at_ns + max(0, due_ns - set_ns), at_ns)

    def begin_trial(self) -> None:
        """What is changed from here on can be taken back, until ``end_trial``."""
        self._before = {}

    def end_trial(self, *, keep: bool) -> None:
        """Keeps what was changed since ``begin_trial``, or takes it back."""
        before, self._before = self._before or {}, None
        for (operator, key, name), times in () if keep else before.items():
            if times is None:
                self.clear(operator, key, name)
            else:
                self.set(operator, key, name, *times)

    def _keep(self, timer: TimerName, times: TimerTimes) -> None:
        self._timers[timer] = times
        self._of_key.setdefault(timer[:2], {})[timer[2]] = None

    def _note(self, timer: TimerName) -> None:
        self.dirty.add(timer)
        if self._before is not None:
            self._before.setdefault(timer, self._timers.get(timer))
