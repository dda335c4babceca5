"""What a process of a rank was given in its environment: the few variables that are asked for, and no others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

_MAX_BYTES = 4 << 20


def read_environment(pid: int, wanted: Collection[str]) -> dict[str, str]:
    """The variables of these names that the process began with. Raises OSError where it has gone, or is another's."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        raw = file.read(_MAX_BYTES)
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, _, value = item.partition(b"=")
        with contextlib.suppress(UnicodeDecodeError):
            if name.decode() in wanted:
                found[name.decode()] = os.fsdecode(value)
    return found
