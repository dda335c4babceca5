"""Markdown as far as commands stand in it: fenced blocks, and code in running text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^( *)```(\w*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """section: its nearest heading of two signs. line: of its first line in the file, from 1."""

    section: str
    language: str
    text: str
    line: int


def blocks(document: str) -> Iterator[Block]:
    """Raises ValueError for a block that does not end."""
    section, language, begin, inside = "", "", 0, list[str]()
    is_open = False
    for number, line in enumerate(document.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and is_open:
            yield Block(section=section, language=language, text="\n".join(inside) + "\n", line=begin)
            is_open = False
        elif fence:
            is_open, language, begin, inside = True, fence[2], number + 1, []
        elif is_open:
            inside.append(line)
        elif line.startswith("## "):
            section = line.removeprefix("## ").strip()
    if is_open:
        raise ValueError(f"line {begin}: a block that does not end")


def inline_code(document: str) -> Iterator[tuple[int, str]]:
    """Line and text of each code in running text; one that goes over a line's end is put together."""
    lines, is_open = [], False
    for line in document.splitlines():
        if _FENCE.match(line):
            is_open = not is_open
            lines.append("")
        else:
            lines.append("" if is_open else line)
    text = "\n".join(lines)
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        if "\n\n" not in match[1]:
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[1].split())
