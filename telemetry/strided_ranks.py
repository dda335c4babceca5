"""Lists of ranks with a constant stride in few characters: ``"0,8,16,24"`` is ``"0-24/8"``.

Data-parallel groups of large jobs are such lists, of thousands of members, and each block names its groups. Only on the
wire: everywhere else ranks are ranges (``ring_layout.format_ranks``). Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .ring_layout import format_ranks, parse_ranks

_RUN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?")
#: Fewer members in a row are no run.
_SHORTEST_RUN = 3


@lru_cache(maxsize=512)
def shorten(ranks: str) -> str:
    """Ranges of ranks, as ``format_ranks`` writes them, with strides: ``"0,8,16,24"`` -> ``"0-24/8"``.

    Raises ValueError for what ``format_ranks`` has not made: it could not be had back.
    """
    members = parse_ranks(ranks)
    if format_ranks(members) != ranks:
        raise ValueError(f"{ranks[:40]!r} are not ranges of ranks in order")
    parts = []
    begin = 0
    while begin < len(members):
        end = begin + 1
        stride = members[end] - members[begin] if end < len(members) else 0
        while end < len(members) and members[end] - members[end - 1] == stride:
            end += 1
        if stride > 1 and end - begin < _SHORTEST_RUN:
            end = begin + 1
        if end - begin == 1:
            parts.append(f"{members[begin]}")
        else:
            parts.append(f"{members[begin]}-{members[end - 1]}" + (f"/{stride}" if stride > 1 else ""))
        begin = end
    return ",".join(parts)


@lru_cache(maxsize=512)
def lengthen(runs: str, ranks: int, characters: int) -> str:
    """The ranges that ``shorten`` shortened; the same text gives the same string.

    ranks, characters: what all members must be below, and how long the result may be. Raises ValueError for more, and
    for what are no runs.
    """
    members: list[int] = []
    for part in runs.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a run of ranks")
        low, high, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        is_run = stride and low <= high < ranks
        if not is_run or len(members) + (high - low) // stride >= characters:
            raise ValueError(f"{part[:40]!r} is not a run of ranks of any job")
        members.extend(range(low, high + 1, stride))
    text = format_ranks(members)
    if len(text) > characters:
        raise ValueError(f"a list of ranks of {len(text)} characters")
    return text
