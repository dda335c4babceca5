"""Segment files of one topic and priority of the spool: what is read next, and what is written last."""

from __future__ import annotations

import os
from array import array
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...transport.bus import Message
from ...transport.segments import SegmentReader
from ..base.priority import Priority

_READ_AHEAD = 16


@dataclass(slots=True, kw_only=True)
class SpoolSegment:
    """numbers: of its messages, ascending; owners: whose each is. used_by: bytes by owner. oldest_ns: Unix time of the
    first message, 0 while it is empty."""

    path: Path
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    owners: array[int] = field(default_factory=lambda: array("q"))
    used_by: Counter[int] = field(default_factory=Counter)
    size: int = 0
    oldest_ns: int = 0

    def note(self, number: int, owner: int, size: int, stamp_ns: int) -> None:
        """Takes note of a message that has been written at its end."""
        self.numbers.append(number)
        self.owners.append(owner)
        self.used_by[owner] += size
        self.oldest_ns = self.oldest_ns or stamp_ns


class SpoolStream:
    """Segments of one topic and priority, the oldest first, and where reading is."""

    def __init__(self, topic: str, priority: Priority, *, is_beyond: bool = False) -> None:
        """is_beyond: of owners who had more than their share by then."""
        self.topic, self.priority, self.is_beyond = topic, priority, is_beyond
        self.segments: deque[SpoolSegment] = deque()
        self.fd = -1  # of the last segment, while it is written
        self._reader: SegmentReader | None = None
        self._reading: SpoolSegment | None = None
        self._ahead: deque[Message] = deque()

    @property
    def last_number(self) -> int:
        """Number of the stream's newest message; 0 while it is empty."""
        return next((s.numbers[-1] for s in reversed(self.segments) if s.numbers), 0)

    def peek(self, after: int, report: Callable[[str, int, str], None]) -> Message | None:
        """The first message that can be read with a number beyond ``after``, not removed; None without one.

        Damage is passed over and told to ``report``.
        """
        if self.last_number <= after:
            return None
        while True:
            while self._ahead and self._ahead[0].position <= after:
                self._ahead.popleft()
            if self._ahead:
                return self._ahead[0]
            if not self._read_more(after, report):
                return None

    def _read_more(self, after: int, report: Callable[[str, int, str], None]) -> bool:
        if self._reader is not None:
            messages = self._reader.read(_READ_AHEAD, is_last=True)
            self._ahead.extend(messages)
            if messages:
                return True
        segment = self._segment_after(after)
        if segment is None:
            return False
        self._stop_reading()
        try:
            self._reader, self._reading = SegmentReader(segment.path, report), segment
        except OSError as error:
            report(str(segment.path), 0, f"cannot be opened: {error.strerror or error}")
            segment.numbers = array("Q")  # nothing in it can be had
        return True

    def _segment_after(self, after: int) -> SpoolSegment | None:
        """The next segment that holds something beyond ``after``; never the one at hand, which has been read."""
        later = self._reading is None or self._reading not in self.segments
        for segment in self.segments:
            if later and segment.numbers and segment.numbers[-1] > after:
                return segment
            later = later or segment is self._reading
        return None

    def remove(self, segment: SpoolSegment) -> None:
        """Let go of a segment, whether it is read or written now. The file stays: that is the caller's."""
        if segment is self._reading:
            self._stop_reading()
        if segment is self.segments[-1]:
            self.stop_writing()
        self.segments.remove(segment)

    def stop_writing(self) -> None:
        """Closes the segment that is written: the next message begins a new one."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._reading = None
        self._ahead.clear()

    def close(self) -> None:
        """Closes what is read and what is written; may be called again."""
        self._stop_reading()
        self.stop_writing()


def write_whole(stream: SpoolStream, segment: SpoolSegment, data: bytes) -> None:
    """Appends all of ``data`` to the stream's open segment file, or nothing. Raises OSError."""
    view, start = memoryview(data), segment.size
    try:
        while view:
            written = os.write(stream.fd, view)
            segment.size += written
            view = view[written:]
    except OSError:
        try:
            os.ftruncate(stream.fd, start)
        except OSError:
            stream.stop_writing()  # a torn end, which readers recognise; what comes next gets a segment of its own
        else:
            segment.size = start
        raise
