"""Files that an operator names: regular ones of a sensible size, read at once. Nobody waits for a FIFO or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Settings of a thousand receivers have a tenth of it.
MOST_BYTES = 1 << 20


def read_given_file(path: Path, most_bytes: int = MOST_BYTES) -> tuple[bytes, os.stat_result]:
    """What a file holds, and its state at that moment; links are followed.

    Raises OSError, whose ``strerror`` says what is wrong: also for what is no regular file, and for a larger one.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        pieces, left = [], most_bytes + 1
        while left > 0 and (piece := os.read(fd, left)):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(fd)
    if left <= 0:
        raise OSError(errno.EFBIG, f"is larger than {most_bytes >> 10} kB", str(path))
    return b"".join(pieces), state
