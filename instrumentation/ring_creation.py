"""Creation of one rank's ring file: size, header, reserved pages, lock, and publication under its final name.

Runs once per process, in whichever thread calls ``init``. Never writes after publication (the writers do), and never
reopens the file: closing a second descriptor would drop the POSIX lock that tells the agent this process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from ..telemetry import ring_layout as layout

IdentityValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RingGeometry:
    """Sizes of the areas of one ring file; the offsets follow from them."""

    group_rows: int = layout.DEFAULT_GROUP_ROWS
    event_slots: int = layout.DEFAULT_EVENT_SLOTS
    definitions_bytes: int = layout.DEFAULT_DEFINITIONS_BYTES

    def __post_init__(self) -> None:
        if self.event_slots < 2 or self.event_slots & (self.event_slots - 1):
            raise ValueError(f"event slots must be a power of two, not {self.event_slots}")
        if not 0 < self.group_rows < 65536 - layout.FIRST_GROUP_ROW:
            raise ValueError(f"group rows must fit 16 bits, not {self.group_rows}")

    @property
    def progress_offset(self) -> int:
        """Bytes from the file's begin to the progress page, which follows the header."""
        return layout.HEADER_BYTES

    @property
    def events_offset(self) -> int:
        """Bytes from the file's begin to event slot 0."""
        rows = layout.FIRST_GROUP_ROW + self.group_rows
        return self.progress_offset + rows * layout.ROW_BYTES

    @property
    def definitions_offset(self) -> int:
        """Bytes from the file's begin to the definitions."""
        return self.events_offset + self.event_slots * layout.EVENT_BYTES

    @property
    def crash_offset(self) -> int:
        """Bytes from the file's begin to the crash area, rounded up to whole words."""
        return self.definitions_offset + (self.definitions_bytes + 7) // 8 * 8

    @property
    def crash_bytes(self) -> int:
        """Bytes of the crash area, with the lines of calls at its end."""
        return layout.C_CALLS + layout.CALLS * 8

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file: a multiple of the page size."""
        page = 4096
        return (self.crash_offset + self.crash_bytes + page - 1) // page * page


def geometry_for(world_size: int, *, event_slots: int | None = None, group_rows: int | None = None) -> RingGeometry:
    """Sizes of a ring's areas for this world; None: the default.

    Definitions grow with the world, because strided member lists do not shorten to ranges.
    """
    return RingGeometry(
        group_rows=layout.DEFAULT_GROUP_ROWS if group_rows is None else group_rows,
        event_slots=layout.DEFAULT_EVENT_SLOTS if event_slots is None else event_slots,
        definitions_bytes=max(layout.DEFAULT_DEFINITIONS_BYTES, (48 * world_size + 4095) // 4096 * 4096)
        + layout.CALL_SITE_BYTES,
    )


def read_process_start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat, which tells a reused pid from the old one; 0 where there is no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text[text.rindex(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


class PreparedRing:
    """A complete ring file under a temporary name, locked by this process, not yet visible to readers."""

    __slots__ = ("fd", "geometry", "path", "temporary_path")

    def __init__(self, *, fd: int, path: Path, temporary_path: Path, geometry: RingGeometry) -> None:
        self.fd = fd
        self.path = path
        self.temporary_path = temporary_path
        self.geometry = geometry

    def publish(self) -> None:
        """Renames the file into place: a reader that finds it finds it whole. Raises OSError."""
        os.rename(self.temporary_path, self.path)

    def discard(self) -> None:
        """Removes the file and closes it; safe to call at any point before publication."""
        self.remove_temporary()
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def remove_temporary(self) -> None:
        """Removes the unpublished file; its descriptor has an owner already, and stays open."""
        with contextlib.suppress(OSError):
            os.unlink(self.temporary_path)


def prepare_ring(
    directory: Path,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    identity: dict[str, IdentityValue],
    geometry: RingGeometry,
    writer_kind: int,
) -> PreparedRing:
    """Creates, reserves, fills in and locks a ring file under a temporary name.

    Raises OSError; then nothing is left behind.
    """
    pid = os.getpid()
    created_ns = time.monotonic_ns()
    name = layout.RING_NAME.format(rank=rank, pid=pid, created_ns=created_ns)
    path = Path(directory) / name
    temporary_path = path.with_name(f".{name}.tmp")
    fd = os.open(temporary_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    prepared = PreparedRing(fd=fd, path=path, temporary_path=temporary_path, geometry=geometry)
    try:
        # Without reserved pages a tmpfs that fills up later kills the writer by SIGBUS: no reservation, no ring.
        os.posix_fallocate(fd, 0, geometry.file_bytes)
        header = bytearray(layout.HEADER_BYTES)
        header[layout.H_MAGIC : layout.H_MAGIC + 8] = layout.MAGIC
        text = _fit_identity(identity)
        for offset, value in (
            (layout.H_LAYOUT, layout.LAYOUT_VERSION),
            (layout.H_FILE_BYTES, geometry.file_bytes),
            (layout.H_PROGRESS_OFFSET, geometry.progress_offset),
            (layout.H_GROUP_ROWS, geometry.group_rows),
            (layout.H_EVENTS_OFFSET, geometry.events_offset),
            (layout.H_EVENT_SLOTS, geometry.event_slots),
            (layout.H_DEFINITIONS_OFFSET, geometry.definitions_offset),
            (layout.H_DEFINITIONS_BYTES, geometry.definitions_bytes),
            (layout.H_CRASH_OFFSET, geometry.crash_offset),
            (layout.H_CRASH_BYTES, geometry.crash_bytes),
            (layout.H_PID, pid),
            (layout.H_PROCESS_START_TICKS, read_process_start_ticks(pid)),
            (layout.H_CREATED_WALL_NS, time.time_ns()),
            (layout.H_CREATED_MONO_NS, created_ns),
            (layout.H_RANK, rank),
            (layout.H_LOCAL_RANK, local_rank),
            (layout.H_WORLD_SIZE, world_size),
            (layout.H_WRITER, writer_kind),
            (layout.H_IDENTITY_BYTES, len(text)),
        ):
            struct.pack_into("<Q", header, offset, value)
        header[layout.H_IDENTITY : layout.H_IDENTITY + len(text)] = text
        written = os.pwrite(fd, header, 0)
        if written != len(header):
            raise OSError(f"{temporary_path}: wrote {written} of {len(header)} header bytes")
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except BaseException:
        prepared.discard()
        raise
    return prepared


def _fit_identity(identity: dict[str, IdentityValue]) -> bytes:
    """JSON of the identity; the longest values go first where it is too long, because cut JSON tells nothing."""
    kept = dict(identity)
    while True:
        text = json.dumps(kept, separators=(",", ":"), sort_keys=True).encode()
        if len(text) <= layout.IDENTITY_MAX_BYTES:
            return text
        del kept[max(kept, key=lambda key: len(str(kept[key])) + len(key))]
