"""Lines without their numbers, and patterns of rules for them: what a pattern matches its folded form matches, folded.

Logs say the same few hundred things with ever other numbers, so which rules may match is asked once for all lines that
are the same when folded. A folded pattern matches too much: it says no for sure, or perhaps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache

from ..alike import takes_digits_alike, zeroed

#: What addresses, counters and generated names are made of.
HEXADECIMAL = b"0123456789abcdef"

_HEXADECIMAL = HEXADECIMAL.decode()
_DIGITS = "0123456789"
#: One item of a pattern, as far as rules use them. condition: takes no characters itself; of a group, its begin.
_ITEM = re.compile(
    r"(?P<condition>\(\?<?[=!]|\\[bBAZ]|[\^$])|(?P<opens>\((?:\?:|\?P<\w+>)?)|(?P<closes>\))|(?P<bar>\|)|"
    r"(?P<one>\[\^?\]?(?:\\.|[^\]\\])*\]|\\?.)",
    re.DOTALL,
)
_REPEATED = re.compile(r"(?P<times>[*+?]|\{(?P<least>\d*)(?:,(?P<most>\d*))?\})(?P<lazy>\??)")


class Fold(Enum):
    #: Without ``HEXADECIMAL``: few kinds of lines are left, and parts of words.
    COARSE = "coarse"
    #: A zero for each digit: more kinds, and nothing is lost but numbers.
    FINE = "fine"


def folded(lines: bytes, fold: Fold) -> bytes:
    """The text with its numbers taken out, so that lines that differ in numbers only become equal.

    COARSE: hexadecimal digits are left out, letters among them too. FINE: every digit is a 0.
    """
    return lines.translate(None, HEXADECIMAL) if fold is Fold.COARSE else zeroed(lines)


@cache
def folded_pattern(regex: str, fold: Fold) -> re.Pattern[str]:
    """A pattern that matches in each ASCII line, ``folded``, in which ``regex`` matches.

    Raises re.error for syntax not known here.
    """
    rewritten = _rewritten(regex, _nothing, _or_less) if fold is Fold.COARSE else _rewritten(regex, _if_alike, _or_zero)
    return re.compile("".join(rewritten))


def _rewritten(
    regex: str, of_condition: Callable[[str], str], of_item: Callable[[str, re.Match[str] | None], str]
) -> Iterator[str]:
    """of_item: takes the item, and how often it is repeated. Groups lose their names."""
    at = 0
    while item := _ITEM.match(regex, at):
        begin, at = at, item.end()
        if item["condition"]:
            at = _end_of_group(regex, at) if item[0].startswith("(") else at
            yield of_condition(regex[begin:at])
        elif item["opens"]:
            yield "(?:"
        elif item["bar"]:
            yield "|"
        else:
            repeated = _REPEATED.match(regex, at)
            at = repeated.end() if repeated else at
            yield of_item(item[0], repeated) if item["one"] else ")" + _times(repeated)


def _end_of_group(regex: str, at: int) -> int:
    """Behind the group that is open at this place."""
    depth = 1
    while depth and (item := _ITEM.match(regex, at)):
        depth += item[0].startswith("(") - (item[0] == ")")
        at = item.end()
    return at


def _nothing(condition: str) -> str:
    return ""


def _if_alike(condition: str) -> str:
    return condition if takes_digits_alike(condition) else ""


def _or_less(item: str, repeated: re.Match[str] | None) -> str:
    """As often, or less often by what is left out of lines."""
    if not _taken(item, _HEXADECIMAL):
        return item + _times(repeated)
    if item in _HEXADECIMAL or item == r"\d":
        return ""
    if repeated is None:
        return item + "?"
    if repeated["least"] is not None:
        most = repeated["least"] if repeated["most"] is None else repeated["most"]
        return f"{item}{{0,{most}}}{repeated['lazy']}"
    return item + ("?" if repeated["times"] == "?" else "*") + repeated["lazy"]


def _or_zero(item: str, repeated: re.Match[str] | None) -> str:
    taken = _taken(item, _DIGITS)
    return (f"(?:{item}|0)" if taken and "0" not in taken else item) + _times(repeated)


def _times(repeated: re.Match[str] | None) -> str:
    return repeated[0] if repeated else ""


@cache
def _taken(item: str, characters: str) -> str:
    """Those of the characters that the item can be."""
    return "".join(re.findall(item, characters))
