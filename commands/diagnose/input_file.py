"""Files that people name: lines of bounded length, and one line for what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

EXIT_USAGE = 2
#: A look of 1,000 ports in one JSON line is some 500 kB.
MAX_LINE = 4 << 20


class Unreadable(Exception):
    """One line that names file, place and remedy."""


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Lines of at most MAX_LINE characters: the rest of a longer one is left out."""
    while line := file.readline(MAX_LINE):
        yield line
        while not line.endswith("\n") and (line := file.readline(MAX_LINE)):
            pass


def looks_like_json(first: str, suffix: str) -> bool:
    """Whether a file holds JSON, by its suffix, else by its first line's first character."""
    return first.lstrip().startswith("{") or suffix in {".jsonl", ".json", ".ndjson"}


def delimiter_of(header: str) -> str:
    """The delimiter of a table with this header: a tab where it has one, else a comma."""
    return "\t" if "\t" in header else ","
