"""The last lines that a rank has written to its standard output and error, where these are files.

Runs in a thread that may block on a file system. A log is opened by the rank's own descriptors while it lives, with its
user's rights, and held: whatever becomes of its name, no other file is read. It has to be the user's own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from ..user_files.user_files import files_of

TAIL_BYTES = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """path: as the process calls it. fd: open until ``close_logs``."""

    path: str
    fd: int


def find_logs(pid: int, uid: int) -> tuple[LogFile, ...]:
    """The files behind the standard output and error of a user's process; pipes, terminals and what is not his are
    none.
    """
    files = files_of(uid, pid)
    found: dict[tuple[int, int], LogFile] = {}
    for number in (1, 2):
        with contextlib.suppress(OSError):
            path, fd = files.open_descriptor(pid, number)
            state = os.fstat(fd)
            log = LogFile(path=path, fd=fd)
            if found.setdefault((state.st_dev, state.st_ino), log) is not log:
                os.close(fd)
    return tuple(found.values())


def close_logs(logs: Iterable[LogFile]) -> None:
    """Lets go of files that nobody will ask for any more."""
    for log in logs:
        os.close(log.fd)


def read_tail(log: LogFile, limit_bytes: int = TAIL_BYTES) -> bytes:
    """The last ``limit_bytes`` of a log at most, from a line's beginning on; empty if it cannot be read."""
    try:
        begin = max(0, os.fstat(log.fd).st_size - limit_bytes)
        content = os.pread(log.fd, limit_bytes, begin)
    except OSError:
        return b""
    if begin:
        content = content.partition(b"\n")[2] or content
    return content
