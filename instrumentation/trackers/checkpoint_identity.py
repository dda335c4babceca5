"""Which checkpoint a call writes or reads: a number made of its path, and what it lies on. The path itself stays.

Two calls that name the same place have the same number, so that what an attempt goes on from can be told from what was
written before it. Streams without a file behind them have none. Standard library only; never raises.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from ...telemetry.checkpoint_states import Tier
from ...telemetry.file_systems import IN_MEMORY, OF_DISKS, OF_SERVERS

#: It is stored in a word whose highest bit stays free.
_MASK = (1 << 63) - 1
#: What folders lie on, so that mounts are read once for each; of so many.
_tiers: dict[str, Tier] = {}
_MOST_FOLDERS = 256


def checkpoint_number(place: Any) -> int:
    """A number for the path of a checkpoint, equal on all ranks; from a path, a URL or an open file.

    0 for anything else.
    """
    try:
        text = _text_of(place)
        if not text:
            return 0
        if "://" not in text:
            text = os.path.realpath(text)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    except (OSError, ValueError, TypeError):
        return 0
    return int.from_bytes(digest, "little") & _MASK or 1


def _text_of(place: Any) -> str:
    """The path or URL of a place: itself, or what an open file or object of a store calls its own; "" for none."""
    if not isinstance(place, str | os.PathLike):
        place = getattr(place, "full_name", None) or getattr(place, "name", None)
    if not isinstance(place, str | os.PathLike):
        return ""
    path = os.fspath(place)
    return path if isinstance(path, str) else os.fsdecode(path)


def checkpoint_tier(place: Any) -> Tier:
    """What a checkpoint lies on, by its URL or the mount of its path. UNKNOWN for what is no place, or nobody knows."""
    try:
        text = _text_of(place)
        if not text:
            return Tier.UNKNOWN
        if "://" in text and not text.startswith("file://"):
            return Tier.OBJECT_STORE
        folder = os.path.dirname(os.path.realpath(text.removeprefix("file://")))
        if folder not in _tiers:
            if len(_tiers) >= _MOST_FOLDERS:
                _tiers.clear()
            _tiers[folder] = _tier_of_folder(folder)
        return _tiers[folder]
    except (OSError, ValueError, TypeError):
        return Tier.UNKNOWN


def _tier_of_folder(folder: str) -> Tier:
    """By the longest mount point above it; of several at one point the last one is on top."""
    longest, fstype = -1, ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            point = before.split(" ")[4].encode().decode("unicode_escape") if "\\" in before else before.split(" ")[4]
            inside = point == "/" or folder == point or folder.startswith(point + "/")
            if inside and len(point) >= longest:
                longest, fstype = len(point), after.split(" ")[0]
    if fstype in IN_MEMORY:
        return Tier.MEMORY
    if fstype in OF_SERVERS or fstype.startswith("fuse."):
        return Tier.NETWORK
    return Tier.DISK if fstype in OF_DISKS or fstype == "overlay" else Tier.UNKNOWN
