"""Lines without their numbers, and patterns of rules for them: what a pattern matches its folded form matches, folded.

Logs say the same few hundred things with ever other numbers: without some characters they are few, and can be asked
once which rules may match. A folded pattern matches too much, for these characters and what must not stand beside a
match are gone from it: it says no for sure, or perhaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

#: What addresses, counters and generated names are made of; and what is always a number, which loses less.
HEXADECIMAL = b"0123456789abcdef"
DIGITS = b"0123456789"

#: One item of a pattern, as far as rules use them. condition: takes no letters itself; of a group, its begin.
_ITEM = re.compile(
    r"(?P<condition>\(\?<?[=!]|\\[bBAZ]|[\^$])|(?P<opens>\((?:\?:|\?P<\w+>)?)|(?P<closes>\))|(?P<bar>\|)|"
    r"(?P<one>\[\^?\]?(?:\\.|[^\]\\])*\]|\\?.)",
    re.DOTALL,
)
_REPEATED = re.compile(r"(?P<times>[*+?]|\{(?P<least>\d*)(?:,(?P<most>\d*))?\})(?P<lazy>\??)")


@cache
def folded_pattern(regex: str, left_out: bytes) -> re.Pattern[str]:
    """Matches in each ASCII line in which ``regex`` matches, once it is without the characters that are ``left_out``.

    left_out: ``HEXADECIMAL`` or ``DIGITS``. Raises re.error for syntax not known here.
    """
    return re.compile("".join(_folded_items(regex, left_out)))


def _folded_items(regex: str, left_out: bytes) -> Iterator[str]:
    at = 0
    while item := _ITEM.match(regex, at):
        at = item.end()
        if item["condition"]:
            at = _end_of_group(regex, at) if item[0].startswith("(") else at
        elif item["opens"]:
            yield "(?:"
        elif item["bar"]:
            yield "|"
        else:
            repeated = _REPEATED.match(regex, at)
            at = repeated.end() if repeated else at
            if item["one"] and _takes_any(item[0], left_out):
                yield _or_less(item[0], repeated, left_out)
            else:
                yield item[0] + (repeated[0] if repeated else "")


def _end_of_group(regex: str, at: int) -> int:
    """Behind the group that is open at this place."""
    depth = 1
    while depth and (item := _ITEM.match(regex, at)):
        depth += item[0].startswith("(") - (item[0] == ")")
        at = item.end()
    return at


@cache
def _takes_any(item: str, left_out: bytes) -> bool:
    return re.search(item, left_out.decode()) is not None


def _or_less(item: str, repeated: re.Match[str] | None, left_out: bytes) -> str:
    """As often as it is repeated, or less often by what is left out of lines."""
    if item == r"\d" or item.encode() in left_out:
        return ""
    if repeated is None:
        return item + "?"
    if repeated["least"] is not None:
        most = repeated["least"] if repeated["most"] is None else repeated["most"]
        return f"{item}{{0,{most}}}{repeated['lazy']}"
    return item + ("?" if repeated["times"] == "?" else "*") + repeated["lazy"]
