"""Files of lines in which people say something, in a run's folder: commands append, a run that goes on reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...telemetry.regular_files import open_regular, open_to_append
from .people_codec import NoWord
from .run_directory import RunDirectory, Unusable

_Word = TypeVar("_Word")
#: Is told where a line lies, ``plans.jsonl, byte 12``, and why it is none.
OnOdd = Callable[[str, str], None]

#: Bytes; more is nobody's word.
MAX_FILE_BYTES = 4 << 20


def append_line(path: Path, line: str) -> None:
    """Appends a line, with its end, to a file that is made if need be; a link is not followed. Raises Unusable."""
    try:
        file = open_to_append(path, 0o644)
        try:
            os.write(file, line.encode() + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error


def whole_lines(path: Path, after: int = 0) -> tuple[list[bytes], int]:
    """(whole lines beyond byte ``after``, the byte behind them); no lines where there is no file. Raises OSError."""
    try:
        with open(open_regular(path, RunDirectory(path.parent).owner), "rb") as file:
            file.seek(after)
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return [], after
    whole = content[: content.rfind(b"\n") + 1]
    return whole[:-1].split(b"\n") if whole else [], after + len(whole)


def read_entries(
    path: Path, after: int, read: Callable[[bytes], _Word], on_odd: OnOdd | None = None
) -> tuple[list[_Word], int]:
    """(words in whole lines beyond byte ``after``, the byte behind them). What is none is told to ``on_odd``.

    The first such line is, with how many follow: a file of something else has millions. Raises OSError.
    """
    lines, end = whole_lines(path, after)
    words: list[_Word] = []
    place, first_odd, count = after, ("", ""), 0
    for line in lines:
        try:
            words.append(read(line))
        except NoWord as odd:
            first_odd = first_odd if count else (f"{path.name}, byte {place}", str(odd))
            count += 1
        place += len(line) + 1
    if count and on_odd is not None:
        where, why = first_odd
        on_odd(where, why if count == 1 else f"{why}; {count - 1:,} more lines like it")
    return words, end
