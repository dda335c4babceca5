"""Ranks in few characters. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def ranges(ranks: Iterable[int]) -> str:
    """Ranks as ranges, sorted: 1,2,3,7 as "1-3,7"."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in parts)
