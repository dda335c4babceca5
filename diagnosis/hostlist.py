"""Slurm's way to write many node names in few letters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Names of one list; what a person mistyped could else fill the memory.
_MAX_HOSTLIST = 65_536
_BRACKETS = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]")


class HostlistError(ValueError):
    """One line for a person: which list, and what is wrong in it."""


def expand_hostlist(text: str) -> list[str]:
    """Node names in a Slurm host list: ``gpu[01-03,7],login1`` -> gpu01 gpu02 gpu03 gpu7 login1.

    Raises HostlistError for a list that cannot be read or is too long.
    """
    found: list[str] = []
    for part in _split_outside_brackets(text):
        found += _expand_one(part, _MAX_HOSTLIST - len(found))
    return found


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, begin = 0, 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            if text[begin:position].strip():
                yield text[begin:position].strip()
            begin = position + 1
        if depth not in (0, 1):
            raise HostlistError(f"hostlist {text[:60]!r}: brackets do not match")
    if depth:
        raise HostlistError(f"hostlist {text[:60]!r}: a bracket is not closed")
    if text[begin:].strip():
        yield text[begin:].strip()


def _expand_one(text: str, room: int) -> list[str]:
    names = [""]
    rest = text
    while True:
        match = _BRACKETS.match(rest)
        if match is None:
            break
        endings = list(_ranges(match[2], text, room))
        if len(names) * len(endings) > room:
            raise HostlistError(f"hostlist {text[:60]!r}: more than {_MAX_HOSTLIST} names")
        names = [name + match[1] + ending for name in names for ending in endings]
        rest = rest[match.end() :]
    if len(names) > room:
        raise HostlistError(f"hostlist {text[:60]!r}: more than {_MAX_HOSTLIST} names")
    return [name + rest for name in names]


def _ranges(text: str, whole: str, room: int) -> Iterator[str]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not dash:
            yield first
            continue
        if not (_is_number(first) and _is_number(last)) or int(first) > int(last):
            raise HostlistError(f"hostlist {whole[:60]!r}: {part[:40]!r} is no range of numbers")
        if int(last) - int(first) >= room:
            raise HostlistError(f"hostlist {whole[:60]!r}: more than {_MAX_HOSTLIST} names")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12
