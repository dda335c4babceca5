"""Which checkpoint a call writes or reads: a number made of its path. The path itself stays in the process.

Two calls that name the same place have the same number, so that what an attempt goes on from can be told from what was
written before it. Streams without a file behind them have none. Standard library only; never raises.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

#: It is stored in a word whose highest bit stays free.
_MASK = (1 << 63) - 1


def checkpoint_number(place: Any) -> int:
    """A number for the path of a checkpoint, equal on all ranks; from a path, a URL or an open file.

    0 for anything else.
    """
    try:
        if not isinstance(place, str | os.PathLike):
            place = getattr(place, "name", None)
        if not isinstance(place, str | os.PathLike):
            return 0
        path = os.fspath(place)
        text = path if isinstance(path, str) else os.fsdecode(path)
        if "://" not in text:
            text = os.path.realpath(text)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    except (OSError, ValueError, TypeError):
        return 0
    return int.from_bytes(digest, "little") & _MASK or 1
