"""Slurm's way to write many hosts: ``node[001-003,007],login1``. Pure, and bounded."""

from __future__ import annotations

import re

MAX_NODES = 200_000
_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Node names in a Slurm host list (``node[001-003,007],login1``), in its order.

    Raises ValueError, naming the part, for a list that is not whole or far too long.
    """
    names: list[str] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        word = part.group() if part else ""
        if word.strip():
            names += _expand_part(word.strip(), MAX_NODES - len(names))
        at += len(word)
        if at < len(text):
            if text[at] != ",":
                raise ValueError(f"node list: bracket without its other half at {text[at : at + 40]!r}")
            at += 1
    return tuple(names)


def _expand_part(word: str, room: int) -> list[str]:
    found = [""]
    at = 0
    while bracket := _BRACKET.match(word, at):
        numbers = [number for each in bracket.group(2).split(",") for number in _numbers(each.strip(), room)]
        if len(found) * len(numbers) > room:
            raise ValueError(f"node list: more than {MAX_NODES} nodes in {word[:40]!r}")
        found = [head + bracket.group(1) + number for head in found for number in numbers]
        at = bracket.end()
    return [head + word[at:] for head in found]


def _numbers(text: str, room: int) -> list[str]:
    if (whole := _RANGE.fullmatch(text)) is None:
        raise ValueError(f"node list: {text[:40]!r} is no number and no range")
    first, last = whole.group(1), whole.group(2) or whole.group(1)
    if int(last) < int(first) or int(last) - int(first) >= room:
        raise ValueError(f"node list: range {text} runs backwards or is too long")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
