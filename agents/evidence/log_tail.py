"""The last lines that a rank has written to its standard output and error, where these are files.

Runs in a thread that may block on a file system. A log is found by the rank's open descriptors while it lives, and is
read later only if it is still the same file: whoever can change the path cannot make us read another.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

TAIL_BYTES = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    path: str
    device_inode: tuple[int, int]


def find_logs(pid: int) -> tuple[LogFile, ...]:
    """The files behind a process's standard output and error; pipes, terminals and what cannot be seen are none."""
    found: dict[tuple[int, int], LogFile] = {}
    for number in (1, 2):
        link = f"/proc/{pid}/fd/{number}"
        try:
            state = os.stat(link)
            path = os.readlink(link)
        except OSError:
            continue
        if stat.S_ISREG(state.st_mode):
            device_inode = (state.st_dev, state.st_ino)
            found.setdefault(device_inode, LogFile(path=path, device_inode=device_inode))
    return tuple(found.values())


def read_tail(log: LogFile, limit_bytes: int = TAIL_BYTES) -> bytes:
    """The last ``limit_bytes`` of a log at most, from a line's beginning on; empty if it is gone or another file by
    now.
    """
    try:
        fd = os.open(log.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        state = os.fstat(fd)
        if (state.st_dev, state.st_ino) != log.device_inode:
            return b""
        begin = max(0, state.st_size - limit_bytes)
        content = os.pread(fd, limit_bytes, begin)
    except OSError:
        return b""
    finally:
        os.close(fd)
    if begin:
        content = content.partition(b"\n")[2] or content
    return content
