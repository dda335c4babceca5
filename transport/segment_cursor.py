"""Reads the segment files of a capture one after the other, from a position on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..telemetry.regular_files import open_regular
from .bus import Message
from .segments import (
    OpenFile,
    SegmentReader,
    list_segments,
)


class SegmentCursor:
    """The segments of a directory in order, from the one that holds what follows a position."""

    def __init__(
        self,
        directory: Path,
        report: Callable[[str, int, str], None],
        after: int,
        open_file: OpenFile = open_regular,
    ) -> None:
        self._directory = directory
        self._report = report
        self._open_file = open_file
        self._ordinal = self._segment_before(after)
        self._reader: SegmentReader | None = None
        self._ahead: list[Message] = []  # read from the file, not yet asked for
        #: Position of the last message handed out.
        self.position = 0

    def read(self, after: int, limit: int) -> list[Message]:
        """Messages with position > ``after``, at most ``limit``. Damage is reported and skipped, never raised."""
        messages: list[Message] = []
        while len(messages) < limit:
            batch = self._ahead or self._read_more(limit)
            self._ahead = []
            if not batch:
                break
            wanted = [message for message in batch if message.position > max(after, self.position)]
            self._ahead = wanted[limit - len(messages) :]
            messages += wanted[: limit - len(messages)]
            if messages:
                self.position = messages[-1].position
        return messages

    def close(self) -> None:
        """Closes the segment that is read; a later ``read`` goes on at the next one after it."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _segment_before(self, after: int) -> int:
        """Ordinal below that of the last segment that begins at or before ``after + 1``; from 0 on all are read."""
        if after <= 0:
            return -1
        for ordinal, path in reversed(list_segments(self._directory)):
            try:
                reader = SegmentReader(path, self._report, self._open_file)
            except OSError:
                continue
            first = reader.read(1, is_last=True)
            reader.close()
            if first and first[0].position <= after + 1:
                return ordinal - 1
        return -1

    def _read_more(self, limit: int) -> list[Message]:
        while True:
            later = [(o, p) for o, p in list_segments(self._directory) if o > self._ordinal]
            if self._reader is not None:
                batch = self._reader.read(limit, is_last=not later)
                if batch or not later:
                    return batch
                self.close()
            if not later:
                return []
            self._ordinal, path = later[0]
            try:
                self._reader = SegmentReader(path, self._report, self._open_file)
            except OSError as error:
                self._report(str(path), 0, f"cannot be opened: {error.strerror}")
