"""The folder of one user below which his jobs have their rings, in memory that all users of the node share.

Its usual name can be taken by anybody first. Then it is another folder, with a random name that only its owner can
have made: all of his ranks find it by its owner, and so does the agent. Standard library only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def ring_root(shared: Path = SHARED_MEMORY) -> Path:
    """This user's folder as far as it is known now; it is not made."""
    usual = shared / f"whichrank-{os.getuid()}"
    if _is_free_or_own(usual):
        return usual
    return next(iter(_others(shared)), usual)


def make_ring_root(shared: Path = SHARED_MEMORY) -> Path:
    """This user's folder (0700), made where it is missing.

    Raises OSError, and PermissionError where another user is faster at each name.
    """
    usual = ring_root(shared)
    if not _is_free_or_own(usual):
        made = shared / f"whichrank-{os.getuid()}-{os.urandom(8).hex()}"
        made.mkdir(mode=0o700)
        # Ranks that begin at once make one each: the oldest is everybody's.
        usual = _others(shared)[0]
        if usual != made:
            made.rmdir()
    usual.mkdir(mode=0o700, exist_ok=True)
    if not _is_free_or_own(usual):
        raise PermissionError(f"{usual} belongs to another user")
    return usual


def _is_free_or_own(path: Path) -> bool:
    """Not following a link: whoever made that would say where the rings go."""
    try:
        state = os.lstat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()


def _others(shared: Path) -> list[Path]:
    """This user's folders with random names, the oldest first: a tmpfs numbers its inodes as they are made."""
    uid, begin = os.getuid(), f"whichrank-{os.getuid()}-"
    found = []
    # Others may have made a hundred thousand such names, and take them away at any time.
    with os.scandir(shared) as entries:
        for entry in entries:
            if not entry.name.startswith(begin):
                continue
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if state.st_uid == uid and stat.S_ISDIR(state.st_mode) and not state.st_mode & 0o077:
                found.append((state.st_ino, shared / entry.name))
    return [path for _, path in sorted(found)]
