"""A disk that is full, by a file of our own, or slow, since its file system is frozen most of the time.

Nothing that others need is touched: it has to be a disk that holds neither the system, nor rings, nor the run. Root is
refused where others may write, who could lead its files elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
from pathlib import Path

from ..run_folder.run_directory import Unusable

_PREFIX = ".whichrank-inject-"
#: Places whose file systems are left alone.
_SPARED = ("/", "/tmp", "/var/tmp", "/var", "/home", "/dev/shm", "/run", "/etc", "/usr", "/boot")
#: Between two looks at whether somebody has made room again.
_REFILL_S = 0.5
#: Ioctls of a file system (linux/fs.h).
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
#: One turn of a slow disk, in seconds.
_FROZEN_S, _THAWED_S = 1.5, 0.2


class FullDisk:
    """Takes all the room that the caller may use. spared: folders whose disk must not be filled."""

    def __init__(self, folder: Path, spared: tuple[Path, ...]) -> None:
        """Raises Unusable, OSError where this disk must not be filled."""
        self.done_s: float | None = None
        self.step = -1
        self._path = _own_place(folder)
        _check_spared(folder, spared)
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
    """A disk on which writes wait most of the time: its file system is frozen and thawed in turns. For root."""

    def __init__(self, folder: Path, spared: tuple[Path, ...]) -> None:
        """Raises Unusable, OSError where this disk must not be slowed, or cannot be."""
        self.done_s: float | None = None
        self.step = -1
        self._folder = folder
        _check_spared(folder, spared)
        self._place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begins with the turns. Raises Unusable where the file system cannot be frozen."""
        at_s = time.time()
        try:
            self._freeze()
        except OSError as error:
            raise Unusable(f"{self._folder}: cannot be frozen: {error.strerror}; it takes root, and a disk") from error
        self._thread = threading.Thread(target=self._turns, name="whichrank-slow-disk", daemon=True)
        self._thread.start()
        self.done_s = at_s

    def tend(self) -> None:
        """The thread does it."""

    def halt(self) -> None:
        """Ends the turns."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def undo(self) -> None:
        """Thaws, also where this process was killed in the middle of a turn."""
        with contextlib.suppress(OSError):  # it is not frozen
            fcntl.ioctl(self._place, _FITHAW, 0)

    def _freeze(self) -> None:
        fcntl.ioctl(self._place, _FIFREEZE, 0)

    def _turns(self) -> None:
        with contextlib.suppress(OSError):  # somebody else has frozen or unmounted it
            while not self._ended.is_set():
                self._ended.wait(_FROZEN_S)
                fcntl.ioctl(self._place, _FITHAW, 0)
                if not self._ended.wait(_THAWED_S):
                    self._freeze()


def _check_spared(folder: Path, spared: tuple[Path, ...]) -> None:
    """Raises Unusable where others need this disk, OSError where the folder is not there."""
    device = os.stat(folder).st_dev
    for place in (*map(Path, _SPARED), *spared):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(place).st_dev == device:
                raise Unusable(f"{folder}: is on the disk of {place}, which is spared: name a disk of its own")


def _own_place(folder: Path) -> Path:
    """A new name in the folder. Raises Unusable, OSError."""
    state = os.stat(folder)
    if os.geteuid() == 0 and (state.st_uid != 0 or state.st_mode & 0o022):
        raise Unusable(
            f"{folder}: others may write there, and could lead root's files elsewhere; name a folder of root's"
        )
    return folder.resolve() / f"{_PREFIX}{secrets.token_hex(4)}"
