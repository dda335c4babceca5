"""Group rows and raw events of a ring file for tests, read with ``pread`` by the reader's rules."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from whichrank.telemetry import ring_layout as layout

Event = tuple[int, int, int, int, int, int, int, int]


class RingReader:
    """Reads a live or dead ring; accepts only what the rules of ring_layout let a reader accept."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        header = os.pread(self.descriptor, layout.HEADER_BYTES, 0)
        words = {name: struct.unpack_from("<Q", header, getattr(layout, name))[0] for name in HEADER_WORDS}
        self.slots = words["H_EVENT_SLOTS"]
        self.events_offset = words["H_EVENTS_OFFSET"]
        self.progress_offset = words["H_PROGRESS_OFFSET"]

    def close(self) -> None:
        os.close(self.descriptor)

    def word(self, offset: int) -> int:
        return int(struct.unpack("<Q", os.pread(self.descriptor, 8, offset))[0])

    @property
    def head(self) -> int:
        return self.word(layout.H_EVENT_HEAD)

    def event(self, index: int) -> Event | None:
        """Event number ``index`` if it is whole."""
        raw = os.pread(self.descriptor, layout.EVENT_BYTES, self.events_offset + index % self.slots * 64)
        event: Event = layout.EVENT_STRUCT.unpack(raw)
        return event if event[layout.E_BEGIN] == event[layout.E_END] == index + 1 else None

    def events(self) -> list[Event]:
        """Every whole event still there, one past the head included."""
        head = self.head
        found = (self.event(index) for index in range(max(0, head - self.slots + 1), head + 1))
        return [event for event in found if event is not None]

    def row(self, row: int, version_offset: int = 0) -> tuple[int, ...] | None:
        """The 16 words of a row if the version says that it is whole and unchanged while it was read."""
        offset = self.progress_offset + row * layout.ROW_BYTES
        before = self.word(offset + version_offset)
        words = struct.unpack("<16Q", os.pread(self.descriptor, layout.ROW_BYTES, offset))
        after = self.word(offset + version_offset)
        return words if before == after and before % 2 == 0 else None

    def group(self, group: int) -> dict[str, int]:
        """A group's row by field name; for writers that stand still."""
        front = self.row(layout.FIRST_GROUP_ROW + group)
        back = self.row(layout.FIRST_GROUP_ROW + group, layout.G_DONE_VERSION)
        assert front is not None
        assert back is not None
        return {name[2:].lower(): front[getattr(layout, name) >> 3] for name in GROUP_WORDS}

    def rank(self) -> dict[str, int]:
        """The rank row by field name."""
        words = self.row(layout.RANK_ROW)
        assert words is not None
        return {name[2:].lower(): words[getattr(layout, name) >> 3] for name in RANK_WORDS}


HEADER_WORDS = ("H_EVENT_SLOTS", "H_EVENTS_OFFSET", "H_PROGRESS_OFFSET")
GROUP_WORDS = [name for name in vars(layout) if name.startswith("G_")]
RANK_WORDS = [name for name in vars(layout) if name.startswith("R_") and name != "R_SPARE"]


def kind_of(event: Event) -> int:
    return event[layout.E_HEAD] & 0xFF


def flags_of(event: Event) -> int:
    return event[layout.E_HEAD] >> 24 & 0xFF


def group_of(event: Event) -> int:
    return event[layout.E_HEAD] >> 32 & 0xFFFF


def op_of(event: Event) -> int:
    return event[layout.E_HEAD] >> 8 & 0xFF


def dtype_of(event: Event) -> int:
    return event[layout.E_HEAD] >> 48
