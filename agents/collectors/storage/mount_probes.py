"""Does a mount still answer? Each mount has one thread that asks it; a mount that is dead holds that thread only.

A probe is ``stat`` (statvfs, which no cache answers), then ``open`` of its root and the first name in it, then, where a
folder is named for it, ``write``: a small file written, synced and removed. The thread may never come back: nobody
waits for it, it is a daemon, and a mount is not asked again before it has answered.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_WRITE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes and inodes of a file system. available_bytes: for ordinary users."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    inodes: int
    free_inodes: int


@dataclass(frozen=True, slots=True)
class OperationResult:
    """error: "" or a name of errno. ``took_ns``: until the answer, also if that was an error."""

    operation: str
    began_ns: int
    took_ns: int
    error: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    operations: tuple[OperationResult, ...]
    space: Space | None


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The operation that the thread is in. Times are of the monotonic clock."""

    operation: str
    began_ns: int


class MountProbe:
    """One mount's thread. Its methods never block; they are called from one thread.

    write_folder: absolute, on this mount; "" to write nothing.
    """

    def __init__(self, path: str, write_folder: str = "", *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = path
        self.write_folder = write_folder
        self._clock = clock
        self._wake = threading.Semaphore(0)
        self._busy = False
        self._closing = False
        # Each is one reference that the thread replaces as a whole, so that a reader never sees half of it.
        self._outstanding: Outstanding | None = None
        self._result: ProbeResult | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the thread is inside the mount's file system at the moment."""
        return self._busy

    @property
    def outstanding(self) -> Outstanding | None:
        """The probe that has not come back; None while the mount owes no answer."""
        return self._outstanding

    def ask(self) -> None:
        """Begins a probe in the mount's thread, started if need be. Nothing while one is out, or after ``close``."""
        if self._busy or self._closing:
            return
        self._busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"probe {self.path}"[:60], daemon=True)
            self._thread.start()
        self._wake.release()

    def take(self) -> ProbeResult | None:
        """The result of a probe that came back since the last call, else None; it is given once."""
        result, self._result = self._result, None
        return result

    def close(self) -> None:
        """The thread ends as soon as it can; nobody waits for it."""
        self._closing = True
        self._wake.release()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            if self._closing:
                return
            done: list[OperationResult] = []
            space, error = self._timed(done, "stat", lambda: _space(self.path))
            if not error:
                self._timed(done, "open", lambda: _first_name(self.path))
                if self.write_folder:
                    self._timed(done, "write", lambda: _write(self.write_folder, self.path))
            self._result = ProbeResult(tuple(done), space)
            self._busy = False

    def _timed(
        self, done: list[OperationResult], operation: str, call: Callable[[], Space | None]
    ) -> tuple[Space | None, str]:
        began_ns = self._clock()
        self._outstanding = Outstanding(operation, began_ns)
        answer, error = None, ""
        try:
            answer = call()
        except OSError as failure:
            error = errno.errorcode.get(failure.errno or 0, "EIO")
        finally:
            self._outstanding = None
        done.append(OperationResult(operation, began_ns, self._clock() - began_ns, error))
        return answer, error


def _space(path: str) -> Space:
    found = os.statvfs(path)
    return Space(
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bfree * found.f_frsize,
        available_bytes=found.f_bavail * found.f_frsize,
        inodes=found.f_files,
        free_inodes=found.f_ffree,
    )


def _first_name(path: str) -> None:
    with os.scandir(path) as names:
        next(names, None)


def _write(folder: str, mount: str) -> None:
    """A file of one page, there and gone: what a checkpoint needs of the mount. Also tells a used-up quota (EDQUOT)."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name = f".whichrank-probe-{socket.gethostname()}"
    try:
        if os.fstat(directory).st_dev != os.stat(mount).st_dev:
            raise OSError(errno.EXDEV, "a symbolic link led to another mount")
        with suppress(FileNotFoundError):  # left by an agent that was killed in between
            os.unlink(name, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            os.write(file, bytes(_WRITE_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)
