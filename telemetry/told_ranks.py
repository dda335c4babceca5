"""Ranks that a record names as text, read with care: what was told may be no list of ranks, or name millions."""

from __future__ import annotations

import re

#: No job has more, and nobody lists more.
MOST_RANKS = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def read_ranks(text: object) -> list[int]:
    """The ranks in a text of ranges ("0-3,7"); none for what is no such text, or names more than MOST_RANKS."""
    ranks: list[int] = []
    for part in str(text or "").split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            return []
        low, high = int(found[1]), int(found[2] or found[1])
        if high - low + len(ranks) >= MOST_RANKS:
            return []
        ranks.extend(range(low, high + 1))
    return ranks
