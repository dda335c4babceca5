"""Opens files whose folder another user may have made: nobody waits for a FIFO, and no device is read.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_SAFE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(path: Path, owner: int | None = None) -> int:
    """A descriptor to read from. owner: uid whose file it has to be, wherever links lead; None: anybody's.

    Raises OSError, whose ``strerror`` says what is wrong: also for what is no regular file.
    """
    return _checked(os.open(path, os.O_RDONLY | _SAFE), path, owner)


def open_to_append(path: Path, mode: int) -> int:
    """A descriptor that appends to a file, which is made where it is missing; a link is not followed.

    Raises OSError, as ``open_regular``.
    """
    return _checked(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | _SAFE, mode), path, None)


def read_regular(path: Path, most_bytes: int, owner: int | None = None) -> bytes:
    """What the file holds now: what is written while it is read is left out.

    Raises OSError, as ``open_regular``, and for a file of more than ``most_bytes``.
    """
    fd = open_regular(path, owner)
    try:
        left = os.fstat(fd).st_size
        if left > most_bytes:
            raise OSError(errno.EFBIG, f"is larger than {most_bytes >> 20} MB", str(path))
        pieces = []
        while left > 0 and (piece := os.read(fd, left)):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(fd)
    return b"".join(pieces)


def _checked(fd: int, path: Path, owner: int | None) -> int:
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode):
        wrong = "is no regular file"
    elif owner is not None and state.st_uid != owner:
        wrong = f"is user {state.st_uid}'s, its folder user {owner}'s"
    else:
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, wrong, str(path))
