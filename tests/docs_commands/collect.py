"""Every shell command that the documents tell people to type. Pure, but for reading the documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs_commands.blocks import blocks, inline_code

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
#: What begins a command where not everything is one: in running text, and in blocks that name no language.
PROGRAM = re.compile(
    r"(?:\.venv/bin/)?(?:whichrank|make|python -m|python tests/\S+|pre-commit|docker compose|pip)(?: |$)"
)
_SHELLS = ("sh", "bash", "console")
_COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """text: on one line, without comments. is_named: in running text, which may leave out what it needs."""

    document: str
    line: int
    text: str
    is_named: bool

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"


def commands_of(document: str, text: str) -> Iterator[Command]:
    for block in blocks(text):
        if block.language in _SHELLS and block.text.startswith("#!"):
            # A script of somebody else's, in which whichrank is called.
            for offset, line in enumerate(block.text.splitlines()):
                for call in re.findall(r"(?<![:\w/.-])whichrank [^>)|\"']*[^>)|\"'\s\d]", _COMMENT.sub("", line)):
                    if not line.startswith("#"):
                        yield Command(document=document, line=block.line + offset, text=call.strip(), is_named=False)
        elif block.language in _SHELLS or not block.language:
            for offset, line in _lines(block.text):
                if block.language or PROGRAM.match(line):
                    for part in line.split("; "):
                        yield Command(document=document, line=block.line + offset, text=part, is_named=False)
    for number, code in inline_code(text):
        if PROGRAM.match(code):
            yield Command(document=document, line=number, text=code, is_named=True)


def is_of_whichrank(command: Command) -> bool:
    return any(word.rpartition("/")[2] == "whichrank" for word in command.text.split())


def all_commands(documents: Sequence[str] = DOCUMENTS) -> list[Command]:
    return [
        command
        for document in documents
        for command in commands_of(document, (ROOT / document).read_text(encoding="utf-8"))
    ]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Whole commands with the number of their first line, from 0; comments and prompts are gone."""
    kept, began = "", 0
    for number, line in enumerate(text.splitlines()):
        began = began if kept else number
        kept += _COMMENT.sub("", line.strip().removeprefix("$ "))
        if kept.endswith("\\"):
            kept = kept.removesuffix("\\")
        else:
            if kept and not kept.startswith("#"):
                yield began, " ".join(kept.split())
            kept = ""
