"""A text file that somebody else writes, followed line by line over rotation, truncation and half-written lines.

Never blocks on a FIFO or a device (it follows regular files only), but does on a dead mount. Memory is bounded whatever
the file holds: a read takes at most so many bytes, a line is cut at ``MAX_LINE_BYTES``, and a reader that is too far
behind skips to the newest part. All that is skipped is counted.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import Protocol

from ....telemetry.ring_layout import cut_text
from ...user_files.system_calls import FileState
from ...user_files.user_files import OwnPath

#: The rest of a longer line is left out.
MAX_LINE_BYTES = 64 << 10
#: A reader that is further behind than this skips what lies before.
MAX_BEHIND_BYTES = 64 << 20
_READ_BYTES = 256 << 10
#: What stood just before the place where we go on: other bytes there mean that the file was truncated and refilled.
_MARK_BYTES = 64


class FileSource(Protocol):
    """Where a followed file comes from. Every method may raise OSError."""

    def state(self) -> FileState | None:
        """Of what has the file's name now; None: it is not looked for by any name."""

    def open(self) -> int:
        """A descriptor of what has the name now; never waits for a FIFO's writer."""

    def close(self) -> None:
        """Lets go of what is held to find it."""


@dataclass(slots=True)
class FollowCounts:
    """Running totals. Bytes that were skipped, times that the file was replaced or truncated, lines that were cut."""

    lost_bytes: int = 0
    rotated: int = 0
    truncated: int = 0
    cut_lines: int = 0


class FollowedFile:
    """look_back_bytes: how much of what is there already is read at first; -1: all of it.

    Raises OSError (absent, no right) and ValueError (not a regular file) when made. source: how the file is opened, and
    closed with it; None: by its path, which is the caller's own.
    """

    def __init__(self, path: str, *, look_back_bytes: int, source: FileSource | None = None) -> None:
        self.path = path
        self.counts = FollowCounts()
        self._source: FileSource = source or OwnPath(path)
        self._fd, state = self._open()
        self.device_inode = (state.st_dev, state.st_ino)
        self._offset = 0 if look_back_bytes < 0 else max(0, state.st_size - look_back_bytes)
        self._mark = b""
        self._half = bytearray()
        #: The rest of the line at hand is left out: it was cut, or we began in its middle.
        self._skipping = self._offset > 0 and os.pread(self._fd, 1, self._offset - 1) != b"\n"
        self._idle_reads = 0
        #: Last lines of a file that is no more, which had no end.
        self._ended: list[bytes] = []
        self._successor_seen = False

    def read_lines(self, most_lines: int, most_bytes: int) -> list[bytes]:
        """The next whole lines without their ends. Empty: nothing new, or only half a line. Raises OSError.

        Half a line that has had no end for two looks is given as a line. Rotation and truncation are followed.
        """
        lines: list[bytes] = []
        left_bytes = most_bytes
        while left_bytes > 0 and len(lines) < most_lines:
            chunk = self._read_chunk(min(_READ_BYTES, left_bytes))
            lines += self._ended
            self._ended.clear()
            if not chunk:
                break
            left_bytes -= len(chunk)
            self._take_lines(chunk, lines, most_lines)
        # What has had no end for two looks is a line by itself: its writer is dead, or waits.
        self._idle_reads = 0 if lines or left_bytes < most_bytes else self._idle_reads + 1
        if self._half and self._idle_reads >= 2:
            lines.append(self._line(self._half))
            self._half.clear()
        return lines

    @property
    def offset(self) -> int:
        """Bytes up to which the present file was read."""
        return self._offset

    @property
    def size_bytes(self) -> int:
        """Of the present file, as it is now; where it was read to if that is not told."""
        try:
            return os.fstat(self._fd).st_size
        except OSError:
            return self._offset

    def close(self) -> None:
        """Lets go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._source.close()

    def _open(self) -> tuple[int, os.stat_result]:
        """An open file and its state. Raises OSError, and ValueError if it is no regular file."""
        fd = self._source.open()
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            os.close(fd)
            raise ValueError(f"{self.path} is not a regular file")
        return fd, state

    def _read_chunk(self, size: int) -> bytes:
        if self._was_rewritten():
            self.counts.truncated += 1
            self._begin_anew()
        chunk = self._read_here(size)
        if not chunk and self._reopen():
            chunk = self._read_here(size)
        return chunk

    def _read_here(self, size: int) -> bytes:
        end = os.fstat(self._fd).st_size
        if end > self._offset:
            # After "copytruncate" a writer goes on at its old place, and the file begins with a hole.
            try:
                self._offset = max(self._offset, os.lseek(self._fd, self._offset, os.SEEK_DATA))
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return b""
                # Some file systems do not know of holes.
        if end - self._offset > MAX_BEHIND_BYTES:
            self.counts.lost_bytes += end - MAX_BEHIND_BYTES - self._offset
            self._offset = end - MAX_BEHIND_BYTES
            self._half.clear()
            self._skipping = True
        chunk = os.pread(self._fd, size, self._offset)
        self._offset += len(chunk)
        if chunk:
            self._mark = (self._mark + chunk[-_MARK_BYTES:])[-_MARK_BYTES:]
        return chunk

    def _was_rewritten(self) -> bool:
        if os.fstat(self._fd).st_size < self._offset:
            return True
        begin = self._offset - len(self._mark)
        return bool(self._mark) and os.pread(self._fd, len(self._mark), begin) != self._mark

    def _begin_anew(self) -> None:
        if self._half:
            self._ended.append(self._line(self._half))
        self._offset = 0
        self._mark = b""
        self._half.clear()
        self._skipping = False

    def _reopen(self) -> bool:
        """Whether another file stands at the path now; it is read from its beginning."""
        try:
            named = self._source.state()
            if named is None or named.device_inode == self.device_inode:
                self._successor_seen = False
                return False
            if not self._successor_seen:
                # Its writer may still write to the old one for a moment.
                self._successor_seen = True
                return False
            fd, state = self._open()
        except (OSError, ValueError):
            return False  # renamed, and the new one is not there yet, or is no log
        self._successor_seen = False
        os.close(self._fd)
        self._fd = fd
        self.device_inode = (state.st_dev, state.st_ino)
        self.counts.rotated += 1
        self._begin_anew()
        return True

    def _take_lines(self, chunk: bytes, lines: list[bytes], most_lines: int) -> None:
        """Whole lines of the chunk, after the half that was there. What is too much is read again next time."""
        begin = 0
        while len(lines) < most_lines:
            end = chunk.find(b"\n", begin)
            if end < 0:
                break
            if self._skipping:
                self._skipping = False
            else:
                self._half += chunk[begin:end]
                lines.append(self._line(self._half))
            self._half.clear()
            begin = end + 1
        else:
            if begin < len(chunk):
                self._offset -= len(chunk) - begin
                self._mark = chunk[max(0, begin - _MARK_BYTES) : begin]
            return
        if not self._skipping:
            self._half += chunk[begin:]
            if len(self._half) > MAX_LINE_BYTES:
                # A progress bar returns to the beginning of its line again and again.
                kept = self._half.rpartition(b"\r")[2]
                if len(kept) > MAX_LINE_BYTES:
                    lines.append(self._line(kept))
                    self._skipping = True
                    kept = bytearray()
                self._half = kept

    def _line(self, raw: bytearray) -> bytes:
        """What a terminal would show of the line in the end, without the zeros of a hole before it."""
        line = bytes(raw.rstrip(b"\r").rpartition(b"\r")[2]).lstrip(b"\0")
        self.counts.cut_lines += len(line) > MAX_LINE_BYTES
        if len(line) <= MAX_LINE_BYTES:
            return line
        return cut_text(line[: MAX_LINE_BYTES + 1].decode("latin-1"), MAX_LINE_BYTES).encode("latin-1")
