"""Files of /proc and /sys, read whole. What cannot be read or is no number is None: never an exception, never a 0."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_MOST_BYTES = 1 << 20
#: More digits than the kernel's longest number has.
_MOST_DIGITS = 20


def read_text(path: Path | str, most_bytes: int = _MOST_BYTES) -> str | None:
    """The file's first ``most_bytes`` as text; None if it is absent, may not be read, or its driver answers with an
    error.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        # These files end with an empty read; a short one is no end.
        parts: list[bytes] = []
        left = most_bytes
        while left > 0 and (part := os.read(fd, min(left, 64 << 10))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def whole_number(text: str) -> int | None:
    """A decimal integer with ASCII digits only, a minus allowed; None for anything else, and for too many digits."""
    text = text.strip()
    digits = text[1:] if text.startswith("-") else text
    return int(text) if 0 < len(digits) <= _MOST_DIGITS and digits.isascii() and digits.isdigit() else None


def decimal_number(text: str) -> float | None:
    """A number of digits with at most one point; None for anything else, exponents and infinity included."""
    whole, _, fraction = text.strip().partition(".")
    if whole_number(whole) is None or (fraction and (whole_number(fraction) is None or fraction.startswith("-"))):
        return None
    return float(text)


def read_number(path: Path | str) -> int | None:
    """The integer that a file consists of; None where it cannot be read or holds something else."""
    text = read_text(path, 4096)
    return None if text is None else whole_number(text)


def keyed_numbers(text: str) -> Mapping[str, int]:
    """Lines of ``key 12``, ``Key: 12`` or ``Key:  12 kB`` -> number by key, as it stands; other lines are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split(None, 2)
        if len(words) >= 2:
            number = whole_number(words[1])
            if number is not None:
                found[words[0].rstrip(":")] = number
    return found


def listed(folder: Path | str, prefix: str = "", most: int = 4096) -> list[str]:
    """The first ``most`` names in a folder that begin with ``prefix``, sorted; empty if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(prefix)]
    except OSError:
        return []
    return sorted(names)[:most]
