"""Tables and words as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def code(text: str) -> str:
    """The text as a code span of Markdown; empty stays empty."""
    return f"`{text}`" if text else ""


def codes(names: Iterable[str]) -> str:
    """The names as code spans of Markdown, with commas between them."""
    return ", ".join(code(name) for name in names)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown. Raises ValueError for a row that has not as many cells as there are heads."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"{row[0]}: {len(row)} cells below {len(heads)} heads")
        lines.append("| " + " | ".join(_cell(cell) for cell in row) + " |")
    return "\n".join(lines)


def section(heading: str, *parts: str) -> str:
    """A section of Markdown: a heading, and its parts below it; empty parts are left out."""
    return "\n\n".join([f"## {heading}", *(part for part in parts if part)])


def _cell(text: str) -> str:
    """On one line, and no end of a cell within it."""
    return " ".join(text.split()).replace("|", "\\|")
