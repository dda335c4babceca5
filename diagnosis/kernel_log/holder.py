"""Holds one event while the lines after it tell more of it: an oops, a hung task, a firmware report, an AMD GPU."""

from __future__ import annotations

from typing import ClassVar

from .event import KernelEvent, KernelStamp


class Holder:
    """One open event at most. It is given out when told whole, after ``LINES`` lines, or after ``SECONDS``."""

    LINES: ClassVar[int]
    SECONDS: ClassVar[float] = 10.0

    def __init__(self) -> None:
        self.lines_left = 0
        self._held: KernelEvent | None = None
        self._begun = KernelStamp()

    def takes(self, event: KernelEvent) -> bool:
        """Whether lines to come may tell more of this event."""
        raise NotImplementedError

    def add(self, held: KernelEvent, text: str) -> tuple[KernelEvent, bool]:
        """The event with what this line tells too, and whether no later line can tell more."""
        raise NotImplementedError

    def finish(self, held: KernelEvent) -> KernelEvent:
        """The event as it is given out; a holder forgets here what it kept beside it."""
        return held

    def begin(self, event: KernelEvent, stamp: KernelStamp) -> list[KernelEvent]:
        """Holds the event from now on; gives the one that was held before, if any."""
        out = self.flush()
        self._held, self._begun, self.lines_left = event, stamp, self.LINES
        return out

    def read(self, text: str, stamp: KernelStamp) -> list[KernelEvent]:
        """The held event once it is whole or its lines or seconds are over; [] while more may come."""
        held = self._held
        if held is None or stamp.host != held.host:
            return []
        self.lines_left -= 1
        if not self.lines_left or not self._begun.is_within(self.SECONDS, stamp):
            return self.flush()
        self._held, is_whole = self.add(held, text)
        return self.flush() if is_whole else []

    def flush(self) -> list[KernelEvent]:
        """Gives the held event as it is, if any, and holds nothing any more."""
        held, self._held, self.lines_left = self._held, None, 0
        return [self.finish(held)] if held is not None else []
