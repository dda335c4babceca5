"""One rank's ring file, opened for reading: header checks, hot words, progress page, definitions, crash area.

Runs in the agent's polling thread. Reads with ``pread`` only (a mapped file that is truncated kills its reader),
believes no number in the file before it was checked against the file's size, never writes, never blocks.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...telemetry import ring_layout as L
from ..user_files.user_files import open_own

#: More than any real ring needs (of a world of 100,000 ranks it has 6 MB); a larger claim is damage, not a ring.
MAX_FILE_BYTES = 32 << 20
MAX_GROUP_ROWS = 1022
MAX_EVENT_SLOTS = 1 << 18
#: Definitions are read in pieces of so many bytes at most.
_PIECE_BYTES = 256 << 10
_MAX_ENTRY_BYTES = 128 << 10
_MOST_DEFINITIONS = 16_384
#: A copy is kept in memory several times while it is packed.
_COPY_BYTES = 12 << 20
#: Of files up to this size nobody asks whether their memory is reserved: file systems that compress have less.
_SMALL_BYTES = 2 << 20
MAX_RANK = 1 << 24
_NO_TIME = 1 << 62
_HEADER_WORDS = struct.Struct("<20Q")
_WORD = struct.Struct("<Q")
#: The three hot words, each alone in its cache line.
_HOT = struct.Struct("<Q56xQ56xQ")
assert _HOT.size == L.H_EVENTS_DROPPED + 8 - L.H_EVENT_HEAD


class RingDamaged(Exception):
    """The file cannot be used as a ring; the message says in one line which file and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHeader:
    """The constant part of a ring, checked: every area lies inside the file."""

    layout: int
    file_bytes: int
    progress_offset: int
    group_rows: int
    events_offset: int
    event_slots: int
    definitions_offset: int
    definitions_bytes: int
    crash_offset: int
    crash_bytes: int
    pid: int
    start_ticks: int
    created_wall_ns: int
    created_mono_ns: int
    rank: int
    local_rank: int
    world_size: int
    writer: int
    identity: dict[str, Any]
    identity_problem: str


class HotWords(NamedTuple):
    """Words that change with every event. A tuple, because one is made for every ring at every look."""

    event_head: int
    definitions_used: int
    events_dropped: int


NOTHING_HOT = HotWords(event_head=0, definitions_used=0, events_dropped=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    kind: int
    index: int
    payload: dict[str, Any]


def parse_header(raw: bytes, actual_bytes: int) -> RingHeader:
    """Check and unpack the first HEADER_BYTES of a ring. Raises RingDamaged with the reason."""
    if len(raw) < L.HEADER_BYTES:
        raise RingDamaged(f"only {len(raw)} of {L.HEADER_BYTES} header bytes are there")
    if raw[:8] != L.MAGIC:
        raise RingDamaged(f"magic is {raw[:8]!r}, not {L.MAGIC!r}")
    words = _HEADER_WORDS.unpack_from(raw, 0)
    layout = words[L.H_LAYOUT // 8]
    if layout != L.LAYOUT_VERSION:
        raise RingDamaged(f"layout version {layout} is not known (this release reads {L.LAYOUT_VERSION})")
    file_bytes = words[L.H_FILE_BYTES // 8]
    if not L.HEADER_BYTES < file_bytes <= MAX_FILE_BYTES:
        raise RingDamaged(f"header claims a file of {file_bytes} bytes")
    slots = words[L.H_EVENT_SLOTS // 8]
    if not 1 <= slots <= MAX_EVENT_SLOTS or slots & (slots - 1):
        raise RingDamaged(f"{slots} event slots is not a power of two up to {MAX_EVENT_SLOTS}")
    group_rows = words[L.H_GROUP_ROWS // 8]
    if group_rows > MAX_GROUP_ROWS:
        raise RingDamaged(f"{group_rows} group rows, at most {MAX_GROUP_ROWS} are possible")
    areas = _checked_areas(words, file_bytes, slots, group_rows)
    rank, world = words[L.H_RANK // 8], words[L.H_WORLD_SIZE // 8]
    if rank > MAX_RANK or world > MAX_RANK or (world and rank >= world):
        raise RingDamaged(f"rank {rank} of world size {world} is impossible")
    identity, problem = _parse_identity(raw, words[L.H_IDENTITY_BYTES // 8])
    if actual_bytes < file_bytes:
        # Still readable up to where it ends; every read checks its own length.
        problem = problem or f"file was truncated to {actual_bytes} of {file_bytes} bytes"
    return RingHeader(
        layout=layout,
        file_bytes=file_bytes,
        progress_offset=areas["progress page"][0],
        group_rows=group_rows,
        events_offset=areas["events"][0],
        event_slots=slots,
        definitions_offset=areas["definitions"][0],
        definitions_bytes=areas["definitions"][1],
        crash_offset=areas["crash area"][0],
        crash_bytes=areas["crash area"][1],
        pid=words[L.H_PID // 8] if words[L.H_PID // 8] < 1 << 31 else 0,
        start_ticks=words[L.H_PROCESS_START_TICKS // 8],
        created_wall_ns=_time(words[L.H_CREATED_WALL_NS // 8]),
        created_mono_ns=_time(words[L.H_CREATED_MONO_NS // 8]),
        rank=rank,
        local_rank=words[L.H_LOCAL_RANK // 8] if words[L.H_LOCAL_RANK // 8] < MAX_RANK else 0,
        world_size=world,
        writer=words[L.H_WRITER // 8],
        identity=identity,
        identity_problem=problem,
    )


def _time(word: int) -> int:
    """A time that no clock shows counts as none: what is told of it could be read by nobody."""
    return word if word < _NO_TIME else 0


def _checked_areas(words: tuple[int, ...], file_bytes: int, slots: int, group_rows: int) -> dict[str, tuple[int, int]]:
    """Offset and size of each area by its name. Raises RingDamaged where one lies outside the file, or two overlap."""
    areas = {
        "progress page": (words[L.H_PROGRESS_OFFSET // 8], (L.FIRST_GROUP_ROW + group_rows) * L.ROW_BYTES),
        "events": (words[L.H_EVENTS_OFFSET // 8], slots * L.EVENT_BYTES),
        "definitions": (words[L.H_DEFINITIONS_OFFSET // 8], words[L.H_DEFINITIONS_BYTES // 8]),
        "crash area": (words[L.H_CRASH_OFFSET // 8], words[L.H_CRASH_BYTES // 8]),
    }
    for name, (offset, size) in areas.items():
        if offset < L.HEADER_BYTES or offset % 8 or offset + size > file_bytes:
            raise RingDamaged(f"{name} at {offset}+{size} lies outside the {file_bytes} bytes of the file")
    ordered = sorted(areas.items(), key=lambda item: item[1])
    for (name, (offset, size)), (next_name, (next_offset, _)) in itertools.pairwise(ordered):
        if offset + size > next_offset:
            raise RingDamaged(f"{name} and {next_name} overlap")
    return areas


def _parse_identity(raw: bytes, size: int) -> tuple[dict[str, Any], str]:
    if size > L.IDENTITY_MAX_BYTES:
        return {}, f"identity claims {size} bytes"
    try:
        identity = json.loads(raw[L.H_IDENTITY : L.H_IDENTITY + size]) if size else {}
    except (ValueError, RecursionError):
        return {}, "identity is not JSON"
    return (identity, "") if isinstance(identity, dict) else ({}, "identity is not an object")


class RingFile:
    """An open ring. Every method survives truncation and nonsense; OSError is turned into short data."""

    __slots__ = ("_fd", "_groups_read", "_page_bytes", "device_inode", "header", "path", "uid")

    def __init__(self, path: Path, fd: int = -1) -> None:
        """Check. fd: the open file, which is closed with the ring; -1: a file of the caller's own, opened by its name.

        Raises RingDamaged (not a ring) or OSError (cannot be opened).
        """
        self.path = path
        self._fd = fd if fd >= 0 else open_own(path)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise RingDamaged("is not a regular file")
            self.uid = status.st_uid
            self.device_inode = (status.st_dev, status.st_ino)
            self.header = parse_header(os.pread(self._fd, L.HEADER_BYTES, 0), status.st_size)
        except RingDamaged as damage:
            os.close(self._fd)
            raise RingDamaged(f"ring {path}: {damage}") from None
        except BaseException:
            os.close(self._fd)
            raise
        self._page_bytes = (L.FIRST_GROUP_ROW + self.header.group_rows) * L.ROW_BYTES
        self._groups_read = L.FIRST_GROUP_ROW * L.ROW_BYTES

    @property
    def used_bytes(self) -> int:
        """What the file takes of the memory now; what it claims may be a hole."""
        try:
            return min(os.fstat(self._fd).st_blocks * 512, self.header.file_bytes)
        except OSError:
            return 0

    @property
    def fd(self) -> int:
        """The open file's descriptor; -1 after ``close``."""
        return self._fd

    def close(self) -> None:
        """Lets go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes of the ring from ``offset`` on; fewer at the end of the file or on an error."""
        try:
            return os.pread(self._fd, size, offset)
        except (OSError, OverflowError, ValueError):
            return b""

    def expect_groups(self, rows: int) -> None:
        """Read ``rows`` group rows with every page from now on."""
        self._groups_read = min((L.FIRST_GROUP_ROW + rows) * L.ROW_BYTES, self._page_bytes)

    def read_hot(self) -> HotWords:
        """The words that change with every event, in one read; ``NOTHING_HOT`` where the file is too short now."""
        raw = self.read(_HOT.size, L.H_EVENT_HEAD)
        return HotWords(*_HOT.unpack(raw)) if len(raw) == _HOT.size else NOTHING_HOT

    def read_page(self) -> tuple[bytes, bytes]:
        """The progress page twice in a row: a row counts only where both copies agree under an even version.

        One copy cannot tell a row in the middle of an update from a good one, because ``pread`` copies while the
        writer stores.
        """
        first = self.read(self._groups_read, self.header.progress_offset)
        return first, self.read(self._groups_read, self.header.progress_offset)

    def read_events(self, index: int, count: int) -> bytes:
        """The raw slots of events ``index .. index+count-1`` (``count`` <= slots), one or two preads."""
        header = self.header
        slot = index & (header.event_slots - 1)
        until_wrap = header.event_slots - slot
        start = header.events_offset + slot * L.EVENT_BYTES
        if count <= until_wrap:
            return self.read(count * L.EVENT_BYTES, start)
        raw = self.read(until_wrap * L.EVENT_BYTES, start)
        if len(raw) < until_wrap * L.EVENT_BYTES:
            return raw
        return raw + self.read((count - until_wrap) * L.EVENT_BYTES, header.events_offset)

    def read_definitions(self, start: int, used: int) -> tuple[list[Definition], int, str]:
        """Entries from byte ``start`` of the area up to ``used``, of one piece at most.

        Returns (definitions, byte after the last one read, problem or ""). After a problem the rest of the area
        cannot be found (entries are chained by their lengths), so the position is the end of the area.
        """
        end = min(used, self.header.definitions_bytes)
        problem = "" if used == end else f"definitions claim {used} of {end} bytes"
        size = min(end - start, _PIECE_BYTES)
        raw = self.read(size, self.header.definitions_offset + start) if end > start else b""
        is_last = start + size >= end
        found: list[Definition] = []
        position = 0
        while position + L.DEFINITION_HEAD.size <= len(raw):
            size, kind, index = L.DEFINITION_HEAD.unpack_from(raw, position)
            body = position + L.DEFINITION_HEAD.size
            if kind == 0 or size > _MAX_ENTRY_BYTES or (body + size > len(raw) and is_last):
                return found, end, f"definition at byte {start + position} of kind {kind} claims {size} bytes"
            if body + size > len(raw):
                break  # the rest of it is in the next piece
            try:
                payload = json.loads(raw[body : body + size])
                if not isinstance(payload, dict):
                    raise ValueError("not an object")
                found.append(Definition(kind=kind, index=index, payload=payload))
            except (ValueError, RecursionError):
                problem = problem or f"definition at byte {start + position} is not a JSON object"
            position = body + (size + 7 & ~7)
        return found, start + position, problem

    def all_definitions(self) -> list[Definition]:
        """Every entry that can be read now."""
        used = min(self.read_hot().definitions_used, self.header.definitions_bytes)
        found: list[Definition] = []
        position = 0
        while position < used:
            more, reached, _ = self.read_definitions(position, used)
            found += more
            if reached <= position or len(found) >= _MOST_DEFINITIONS:
                break
            position = reached
        return found

    def read_copy(self, limit_bytes: int = _COPY_BYTES) -> bytes:
        """The whole file as it is now, for evidence; empty where it claims much more than it takes, or too much.

        A writer reserves its file's memory, so one with holes is no writer's.
        """
        size = self.header.file_bytes
        is_reserved = size <= _SMALL_BYTES or self.used_bytes >= size // 2
        return self.read(size, 0) if size <= limit_bytes and is_reserved else b""


def exception_version(ring: RingFile) -> int:
    """The version word of the exception record: 0 = none, odd = being written. 8 bytes, for every look."""
    if ring.header.crash_bytes < L.C_EXC_STACK + L.C_EXC_STACK_MAX:
        return 0
    raw = ring.read(8, ring.header.crash_offset + L.C_EXC_VERSION)
    return int(_WORD.unpack(raw)[0]) if len(raw) == 8 else 0
