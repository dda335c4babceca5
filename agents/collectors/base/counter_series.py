"""A counter of the kernel as a series that can be added up: wraps are unrolled, resets begin anew. Pure.

A counter that stands still is told a few times more, so that a rate is seen to end, and then rarely; when it moves
again, its last standing value is told with it (at the time at which it was still that), so that a rate over the two
points is the true one. So nothing is lost by keeping silent.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Widths at which counters of old devices and drivers wrap.
_WRAPS = (1 << 32, 1 << 64)
#: A standing counter is told this often, so that who starts to listen later learns it.
REPEAT_NS = 60_000_000_000
#: After its last move a counter is told in so many looks more.
STILL_LOOKS = 3


@dataclass(frozen=True, slots=True)
class CounterValue:
    """``start_ns``: the counter began at 0 after this; 0 unknown (it began before the first look)."""

    value: int
    time_ns: int
    start_ns: int


class CounterSeries:
    """One counter of one device over many looks. Not for several threads."""

    __slots__ = ("_base", "_raw", "_seen_ns", "_start_ns", "_still_looks", "_told_ns")

    def __init__(self, start_ns: int = 0) -> None:
        """``start_ns``: when the counter began at 0, where its source says so."""
        self._raw = -1
        self._base = 0  # what wraps have taken away
        self._start_ns = start_ns
        self._seen_ns = 0
        self._told_ns = 0
        self._still_looks = STILL_LOOKS  # at the first look nobody knows that it moved

    def take(
        self, raw: int, time_ns: int, *, began_anew: bool = False, may_wrap: bool = True
    ) -> tuple[CounterValue, ...]:
        """Takes one look at the counter, which reads ``raw`` now, and gives the values to tell, oldest first: two at
        most.

        Empty where it stands still and was told lately. began_anew: the device was made again since the last look, so
        even a higher value is another count. may_wrap: a fall may be a wrap, not a set to zero.
        """
        moved = raw != self._raw or began_anew
        self._still_looks = 0 if moved and self._raw >= 0 else self._still_looks + 1
        if not moved and self._still_looks > STILL_LOOKS and 0 <= time_ns - self._told_ns < REPEAT_NS:
            self._seen_ns = time_ns
            return ()
        told = []
        if moved and self._raw >= 0:
            if self._seen_ns > self._told_ns and not began_anew:
                told.append(CounterValue(self._base + self._raw, self._seen_ns, self._start_ns))
            self._follow(raw, began_anew, may_wrap)
        self._raw = raw
        self._seen_ns = self._told_ns = time_ns
        told.append(CounterValue(self._base + raw, time_ns, self._start_ns))
        return tuple(told)

    def _follow(self, raw: int, began_anew: bool, may_wrap: bool) -> None:
        if raw >= self._raw and not began_anew:
            return
        wrap = wrapped_at(self._raw, raw) if may_wrap and not began_anew else 0
        if wrap:
            self._base += wrap
        else:  # set to zero by hand, by a driver or by a device that was reset: some time after the last look
            self._base = 0
            self._start_ns = self._seen_ns


def wrapped_at(before: int, after: int) -> int:
    """The width at which a counter that fell from ``before`` to ``after`` has wrapped; 0: it was set to zero.

    Only a counter in the last quarter of a width that fell into its first quarter: less can be told from a reset by
    nobody.
    """
    for wrap in _WRAPS:
        if before < wrap:
            return wrap if before >= wrap - wrap // 4 and after < wrap // 4 else 0
    return 0
