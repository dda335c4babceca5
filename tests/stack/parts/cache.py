"""Where what was built or fetched once is kept: outside the repository, found by what it was made from."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path


def cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whichrank"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest_of(sources: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for source in sources:
        whole.update(len(source).to_bytes(8, "little") + source)
    return whole.hexdigest()[:16]


def made_once(name: str, digest: str, make: Callable[[Path], None]) -> Path:
    """The file or folder ``name-digest`` in the cache; ``make(PATH)`` makes it when it is not there.

    Of several processes one makes it, the others wait. What was interrupted half-way is made anew.
    """
    cache = cache_folder()
    made = cache / f"{name}-{digest}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = cache / f"{name}.unfinished"
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            else:
                unfinished.unlink(missing_ok=True)
            make(unfinished)
            unfinished.rename(made)
    return made
