"""The embedded bus: an append-only log of segment files in one directory, for ``whichrank run``, tests and replay.

Runs in the process of its writer, safe to call from several threads; one writer per directory (a lock file), any number
of readers. What is appended is kept in memory too, up to a bound, so that a reader in the same process never waits for
the disk. Each opening for writing starts a new segment: nothing old is ever overwritten, whatever its state. Appends go
to the page cache, which survives kill -9; they are not fsynced. When the disk refuses, one OSError is raised; from then
on messages stay in memory only, counted in ``dropped``, and the disk is tried again every 10 s. With a bound the oldest
segments are deleted; what a reader has not read by then is counted in ``missed``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..telemetry.regular_files import open_regular
from .bus import Message, Output
from .segment_cursor import SegmentCursor
from .segments import (
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    OpenFile,
    SegmentReader,
    encode_frame,
    list_segments,
    message_bytes,
    read_bus_id,
    segment_name,
)

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
MEMORY_BYTES = 16 << 20
#: A bounded capture is made of at least so many segments.
SEGMENTS_WITHIN_BOUND = 8
#: A disk that was full is tried again this often.
RETRY_NS = 10_000_000_000
LOCK_NAME = "lock"


class EmbeddedBus:
    """``Bus`` on a directory. Stamps are the wall time at opening plus the monotonic clock, strictly increasing."""

    reads_outputs = True

    def __init__(
        self,
        directory: Path,
        *,
        start_wall_ns: int | None = None,
        read_only: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        retain_bytes: int | None = None,
        report: Callable[[str], None] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        open_file: OpenFile = open_regular,
    ) -> None:
        """Open for appending (the directory is created), or read-only for replay.

        read_only: files are never written; appended messages live in memory only, after those of the files, and the
            clock stands at the last stamp until ``advance_clock``.
        retain_bytes: the segments together take no more than this, but for one message; the oldest go. None keeps all.
        report: takes one line per damaged place; default is a warning in the log.
        open_file: opens a segment that is there, to read.
        Raises OSError (no such directory, no right to write, another writer at work).
        """
        self.directory = Path(directory)
        self.read_only = read_only
        #: Messages that are not in the files because the disk refused them.
        self.dropped = 0
        #: Messages that left memory and are in no file.
        self.evicted = 0
        #: Messages that a reader asked for and that were nowhere any more: evicted, trimmed or damaged.
        self.missed = 0
        self._missed_until = 0
        #: Messages in segments that were deleted to keep the bound, as far as this process wrote them.
        self.trimmed = 0
        self._messages_by_segment: dict[int, int] = {}
        if retain_bytes is not None:  # whole segments go: a few must fit, else all of it would go at once
            segment_bytes = min(segment_bytes, retain_bytes // SEGMENTS_WITHIN_BOUND)
        self._segment_bytes = segment_bytes
        self._memory_limit = memory_bytes
        self._retain_bytes = retain_bytes
        self._report_line = report if report is not None else _log.warning
        self._monotonic_ns = monotonic_ns
        self._open_file = open_file
        self._lock = threading.RLock()
        self._said: set[tuple[str, int]] = set()
        self._memory: dict[int, Message] = {}  # position -> message, ascending
        self._memory_bytes = 0
        self._unsaved: set[int] = set()  # positions in memory that are not in a file
        self._segment_fd = -1
        self._segment_size = 0
        self._retry_at_ns: int | None = None  # None: the disk is fine
        self._cursor: SegmentCursor | None = None
        self._lock_fd = -1
        if not read_only:
            self._take_directory()
        segments = list_segments(self.directory)
        self._next_ordinal = segments[-1][0] + 1 if segments else 1
        known_ids = (read_bus_id(path, open_file) for _, path in segments)
        self._bus_id = next((known for known in known_ids if known is not None), os.urandom(16))
        self._last_position, self._last_stamp_ns = self._find_end(segments)
        self._start_clock(start_wall_ns)

    def _start_clock(self, start_wall_ns: int | None) -> None:
        self._clock_base_ns = self._last_stamp_ns
        self._clock_start_ns = self._monotonic_ns()
        if not self.read_only:
            wall = time.time_ns() if start_wall_ns is None else start_wall_ns
            self._clock_base_ns = max(wall, self._last_stamp_ns + 1)

    @property
    def identity(self) -> str:
        """Tells this log from any other; kept beside a reader's position."""
        return self._bus_id.hex()

    @property
    def last_position(self) -> int:
        """Position of the newest message, also of one that another process has written; 0 or less: none."""
        return self._last_position

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> int:
        """Appends a message and returns its position (the first is 1).

        Raises OSError once when the disk begins to refuse (the message is kept in memory all the same), ValueError for
        a message that no frame can hold.
        """
        with self._lock:
            message = Message(
                topic=topic,
                key=key,
                value=value,
                position=self._last_position + 1,
                stamp_ns=self.now_ns(),
                headers=dict(headers) if headers else {},
            )
            frame = b"" if self.read_only else encode_frame(message)
            self._last_position = message.position
            self._last_stamp_ns = message.stamp_ns
            self._remember(message)
            if not self.read_only:
                self._save(message.position, frame)
            return message.position

    def publish(self, outputs: Sequence[Output], until: int) -> None:
        """Appends the outputs; a disk that refuses is reported, and they are on the bus all the same."""
        for output in outputs:
            try:
                self.append(output.topic, output.key, output.value, output.headers)
            except OSError as error:
                self._report_line(str(error))

    def has_given(self, position: int) -> bool:
        """Always False: each position of this bus holds a message, so ``read`` itself gets a reader to ``position``."""
        return False

    def caught_up(self) -> bool:
        """Always True: who reads is who appends."""
        return True

    def read(self, after: int, limit: int) -> Sequence[Message]:
        """Messages with position > ``after``, at most ``limit``.

        Damage in files is skipped and reported, never raised.
        """
        with self._lock:
            if limit <= 0:
                return []
            first = next(iter(self._memory), self._last_position + 1)
            if after + 1 >= first:
                return self._read_memory(after + 1, limit)
            messages = self._read_files(after, limit)
            if not messages:  # what lay between is lost (damaged or never saved), or files end where memory begins
                messages = self._read_memory(first, limit)
            self._count_missed(after, messages)
            return messages

    def first_kept(self) -> tuple[int, int] | None:
        """Position and stamp of the oldest message in the files; None if there is none. Position 1: nothing is gone.

        Raises OSError.
        """
        with self._lock:
            for _, path in list_segments(self.directory):
                try:
                    reader = SegmentReader(path, self._report, self._open_file)
                except OSError as error:
                    self._report(str(path), 0, f"cannot be opened: {error.strerror}")
                    continue
                messages = reader.read(1, is_last=True)
                reader.close()
                if messages:
                    return messages[0].position, messages[0].stamp_ns
            return None

    def now_ns(self) -> int:
        """The stamp (Unix ns) that the next append would get."""
        now = self._clock_base_ns
        if not self.read_only:
            now += self._monotonic_ns() - self._clock_start_ns
        return max(now, self._last_stamp_ns + 1)

    def advance_clock(self, to_ns: int) -> None:
        """Move the clock of a read-only bus forward to a stamp: time passes in a replay only when it is told to."""
        with self._lock:
            self._clock_base_ns = max(self._clock_base_ns, to_ns)

    def close(self) -> None:
        """Ends the segment that is written and gives the folder's lock back; may be called again."""
        with self._lock:
            self._close_segment()
            if self._cursor is not None:
                self._cursor.close()
                self._cursor = None
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    # --- opening ---
    def _take_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / LOCK_NAME
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            self._lock_fd = -1
            raise OSError(error.errno, "another process is writing to this capture", str(self.directory)) from None

    def _find_end(self, segments: list[tuple[int, Path]]) -> tuple[int, int]:
        """Position and stamp of the last readable message; (0, 0) if there is none."""
        for index in range(len(segments) - 1, -1, -1):
            position = stamp_ns = 0
            try:
                reader = SegmentReader(segments[index][1], self._report, self._open_file)
            except OSError as error:
                self._report(str(segments[index][1]), 0, f"cannot be opened: {error.strerror}")
                continue
            while messages := reader.read(1024, is_last=True):
                position = max(position, messages[-1].position)
                stamp_ns = max(stamp_ns, messages[-1].stamp_ns)
            reader.close()
            if position:
                return position, stamp_ns
        return 0, 0

    # --- writing ---
    def _remember(self, message: Message) -> None:
        self._memory[message.position] = message
        self._memory_bytes += message_bytes(message.topic, message.key, message.value, message.headers)
        while self._memory_bytes > self._memory_limit and len(self._memory) > 1 and not self.read_only:
            position = next(iter(self._memory))
            oldest = self._memory.pop(position)
            self._memory_bytes -= message_bytes(oldest.topic, oldest.key, oldest.value, oldest.headers)
            if position in self._unsaved:
                self._unsaved.discard(position)
                self.evicted += 1

    def _save(self, position: int, frame: bytes) -> None:
        now = self._monotonic_ns()
        if self._retry_at_ns is not None and now < self._retry_at_ns:
            self._unsaved.add(position)
            self.dropped += 1
            return
        try:
            self._write(frame)
        except OSError as error:
            was_fine = self._retry_at_ns is None
            self._retry_at_ns = now + RETRY_NS
            self._unsaved.add(position)
            self.dropped += 1
            if was_fine:
                raise OSError(
                    error.errno,
                    f"{error.strerror}; telemetry is judged from memory now; a replay will not have it",
                    str(self.directory),
                ) from error
            return
        if self._retry_at_ns is not None:
            self._retry_at_ns = None
            self._report_line(f"{self.directory}: the disk takes data again; {self.dropped} messages are not captured")

    def _write(self, frame: bytes) -> None:
        if self._segment_fd < 0 or self._segment_size + len(frame) > self._segment_bytes:
            self._open_segment()
        start = self._segment_size
        ordinal = self._next_ordinal - 1
        try:
            self._write_all(frame)
            self._messages_by_segment[ordinal] = self._messages_by_segment.get(ordinal, 0) + 1
        except OSError:
            try:
                os.ftruncate(self._segment_fd, start)  # our own unfinished frame, nothing older
            except OSError:
                self._close_segment()
            else:
                self._segment_size = start
            raise

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._segment_fd, view)
            self._segment_size += written
            view = view[written:]

    def _open_segment(self) -> None:
        self._close_segment()
        path = self.directory / segment_name(self._next_ordinal)
        self._segment_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._next_ordinal += 1
        self._segment_size = 0
        try:
            self._write_all(HEADER.pack(MAGIC, FORMAT_VERSION, 0, self._bus_id))
        except OSError:
            self._close_segment()
            raise
        if self._retain_bytes is not None:
            self._trim(self._retain_bytes - self._segment_bytes)

    def _close_segment(self) -> None:
        if self._segment_fd >= 0:
            os.close(self._segment_fd)
            self._segment_fd = -1
            self._segment_size = 0

    def _trim(self, limit_bytes: int) -> None:
        """Delete the oldest segments until the rest takes at most ``limit_bytes``; the newest always stays."""
        try:
            segments = list_segments(self.directory)
            sizes = [path.stat().st_size for _, path in segments]
            while len(segments) > 1 and sum(sizes) > limit_bytes:
                ordinal, path = segments[0]
                path.unlink()
                del segments[0], sizes[0]
                self._say_trimmed(self._messages_by_segment.pop(ordinal, 0))
        except OSError as error:  # the next segment tries again
            self._report(str(self.directory), -1, f"the oldest segments cannot be deleted: {error.strerror}")

    def _say_trimmed(self, messages: int) -> None:
        was_whole = not self.trimmed
        self.trimmed += messages
        if was_whole:
            self._report_line(
                f"{self.directory}: the capture has reached its limit of {self._retain_bytes} bytes; from now on its "
                "oldest part goes. Verdicts go on unchanged, a replay will begin later"
            )

    # --- reading ---
    def _read_memory(self, position: int, limit: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < limit:
            message = self._memory.get(position)
            if message is None:
                break
            messages.append(message)
            position += 1
        return messages

    def _count_missed(self, after: int, messages: Sequence[Message]) -> None:
        if messages and messages[-1].position > self._missed_until:
            counted = max(after, self._missed_until)
            self.missed += messages[-1].position - counted - sum(m.position > counted for m in messages)
            self._missed_until = messages[-1].position

    def _read_files(self, after: int, limit: int) -> list[Message]:
        if self._cursor is None or self._cursor.position > after:
            if self._cursor is not None:
                self._cursor.close()
            self._cursor = SegmentCursor(self.directory, self._report, after, self._open_file)
        return self._cursor.read(after, limit)

    def _report(self, path: str, offset: int, line: str) -> None:
        if (path, offset) not in self._said:
            self._said.add((path, offset))
            self._report_line(f"{path}: at byte {offset}: {line}" if offset >= 0 else f"{path}: {line}")
