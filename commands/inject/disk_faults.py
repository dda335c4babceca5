"""A disk that is full, or slow because somebody writes to it all the time: files of our own in a folder.

Nothing that others need is touched: a full disk has to be one that holds neither the system, nor rings, nor the run.
Root is refused in a folder of somebody else's, who could lead its files elsewhere.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import statistics
import threading
import time
from pathlib import Path

from ..run_folder.run_directory import Unusable

_PREFIX = ".whichrank-inject-"
#: Places whose file systems are not filled.
_NOT_FILLED = ("/", "/tmp", "/var/tmp", "/var", "/home", "/dev/shm", "/run", "/etc", "/usr", "/boot")
#: Between two looks at whether somebody has made room again.
_REFILL_S = 0.5
_BLOCK_BYTES = 1 << 20
#: The load's file is written again and again within this size.
_LOAD_BYTES = 64 << 20
_WRITERS = 4
#: A disk that takes so much longer for a small write is slow.
_SLOWER = 3.0
_PROBES = 9


class FullDisk:
    """Takes all the room that the caller may use. spared: folders whose disk must not be filled."""

    def __init__(self, folder: Path, spared: tuple[Path, ...]) -> None:
        """Raises Unusable, OSError where this disk must not be filled."""
        self.done_s: float | None = None
        self.step = -1
        self._path = _own_place(folder)
        device = os.stat(folder).st_dev
        for place in (*map(Path, _NOT_FILLED), *spared):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(place).st_dev == device:
                    raise Unusable(f"{folder}: is on the disk of {place}, which is not filled: name a disk of its own")
        self._looked_s = 0.0

    def begin(self) -> None:
        """Takes the room."""
        at_s = time.time()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        self._fill()
        self.done_s = at_s

    def tend(self) -> None:
        """Takes room that somebody has made meanwhile."""
        if time.monotonic() - self._looked_s >= _REFILL_S:
            self._fill()

    def halt(self) -> None:
        """Nothing goes on."""

    def undo(self) -> None:
        """Gives the room back."""
        self._path.unlink(missing_ok=True)

    def _fill(self) -> None:
        self._looked_s = time.monotonic()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for piece in (64 << 20, 1 << 20, 4096):
                with contextlib.suppress(OSError):  # until no such piece is left
                    while _free_bytes(descriptor) >= piece:
                        os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, piece)
        finally:
            os.close(descriptor)


def _free_bytes(descriptor: int) -> int:
    state = os.fstatvfs(descriptor)
    return state.f_bavail * state.f_frsize


class SlowDisk:
    """Writes past the cache from several threads until small writes of others take several times as long.

    ``before_s`` and ``during_s``: what a small write took until it was on the disk, the median.
    """

    def __init__(self, folder: Path) -> None:
        """Raises Unusable, OSError where nothing can be written there."""
        self.done_s: float | None = None
        self.step = -1
        self.before_s = self.during_s = 0.0
        self._path = _own_place(folder)
        self._probe = self._path.with_name(f"{self._path.name}-probe")
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Begins to write. Raises Unusable where the disk does not get slow by it."""
        self.before_s, at_s = self._small_writes_s(), time.time()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        for number in range(_WRITERS):
            thread = threading.Thread(target=self._write, args=(number,), name="whichrank-load", daemon=True)
            thread.start()
            self._threads.append(thread)
        time.sleep(0.5)
        self.during_s = self._small_writes_s()
        if self.during_s < _SLOWER * self.before_s:
            raise Unusable(
                f"{self._path.parent}: a small write takes {self.before_s * 1e3:.2f} ms, under load "
                f"{self.during_s * 1e3:.2f} ms: this disk cannot be made slow by load"
            )
        self.done_s = at_s

    def tend(self) -> None:
        """The threads do it."""

    def halt(self) -> None:
        """Ends the load."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def undo(self) -> None:
        """Removes the files."""
        self._path.unlink(missing_ok=True)
        self._probe.unlink(missing_ok=True)

    def _small_writes_s(self) -> float:
        took = []
        descriptor = os.open(self._probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_PROBES):
                began_s = time.perf_counter()
                os.pwrite(descriptor, b"\0" * 4096, 0)
                os.fsync(descriptor)
                took.append(time.perf_counter() - began_s)
        finally:
            os.close(descriptor)
        return statistics.median(took)

    def _write(self, number: int) -> None:
        direct = getattr(os, "O_DIRECT", 0)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | direct | os.O_DSYNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # a file system without direct writes
            descriptor = os.open(self._path, os.O_WRONLY | os.O_DSYNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with mmap.mmap(-1, _BLOCK_BYTES) as block, contextlib.suppress(OSError):  # a full disk ends the load
                block.write(os.urandom(_BLOCK_BYTES))
                place = number * (_LOAD_BYTES // _WRITERS)
                while not self._ended.is_set():
                    os.pwrite(descriptor, block, place)
                    place = (place + _BLOCK_BYTES) % _LOAD_BYTES
        finally:
            os.close(descriptor)


def _own_place(folder: Path) -> Path:
    """A new name in the folder. Raises Unusable, OSError."""
    state = os.stat(folder)
    if os.geteuid() == 0 and (state.st_uid != 0 or state.st_mode & 0o022):
        raise Unusable(
            f"{folder}: others may write there, and could lead root's files elsewhere; name a folder of root's"
        )
    return folder.resolve() / f"{_PREFIX}{secrets.token_hex(4)}"
