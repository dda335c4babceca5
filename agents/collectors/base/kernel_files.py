"""Small files of /proc and /sys, read whole, in one read each. What cannot be read is None; nothing here raises.

A driver answers such a file itself: it may say EINVAL (the speed of a port that is down), "N/A (no PMA)" or nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

#: One page: what the kernel gives for one attribute of /sys.
_PAGE_BYTES = 4096


def read_bytes(path: str | Path, limit_bytes: int = _PAGE_BYTES) -> bytes | None:
    """The file's first ``limit_bytes``; None where it cannot be read.

    With the default limit it is one single read, as attributes of /sys need it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        taken = b""
        while len(taken) < limit_bytes:
            piece = os.read(fd, limit_bytes - len(taken))
            taken += piece
            # An attribute of /sys comes in one read; a longer file of /proc in several.
            if not piece or limit_bytes == _PAGE_BYTES:
                break
        return taken
    except OSError:
        return None
    finally:
        os.close(fd)


def read_text(path: str | Path, limit_bytes: int = _PAGE_BYTES) -> str | None:
    """The file's first ``limit_bytes``, decoded and stripped; None where it cannot be read.

    Bytes that are no UTF-8, and NULs, become U+FFFD.
    """
    raw = read_bytes(path, limit_bytes)
    return None if raw is None else raw.decode("utf-8", "replace").replace("\0", "\ufffd").strip()


def read_number(path: str | Path) -> int | None:
    """The whole number in a file, decimal or, with 0x before it, hexadecimal; None for any other content or no file."""
    raw = read_bytes(path)
    return None if raw is None else number(raw)


def number(text: str | bytes) -> int | None:
    """A whole number in decimal or, with 0x before it, hexadecimal digits; None for any other text."""
    text = text.strip()
    if not text or len(text) > 24:
        return None
    try:
        return int(text, 16) if text[:2] in ("0x", b"0x") else int(text)
    except ValueError:
        return None


def list_names(folder: str | Path) -> list[str]:
    """Sorted names in the folder; [] where there is none or it may not be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def link_name(path: str | Path) -> str:
    """Last part of where a symbolic link leads, "" if it is none: the kernel names drivers and devices this way."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
