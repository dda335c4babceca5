"""A command line of whichrank as the real program reads it, up to the moment at which it would begin."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from typer.main import get_command

from whichrank.commands.main import app

#: What typer raises for words that it cannot take; click's, wherever that comes from.
_USAGE: type[Exception] = typer.BadParameter.__bases__[0]
#: Of something that was only named.
_INCOMPLETE = ("MissingParameter", "NoArgsIsHelpError")
#: Where a placeholder stands for a number.
_NUMBERS = {"RANK": "3"}


def words_of(text: str) -> list[str]:
    """Words behind ``whichrank``. What stands in brackets may be given, and is."""
    words = shlex.split(re.sub(r"\[(--[^\]]*)\]", r"\1", text))
    begin = next(place for place, word in enumerate(words) if word.rpartition("/")[2] == "whichrank")
    return [_NUMBERS.get(word, word) for word in words[begin + 1 :]]


def wrong_with(text: str, *, is_named: bool = False) -> str:
    """What the program would say of it; empty where it takes it. is_named: it need not have all that it needs."""
    words = words_of(text)
    command: Any = _program()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        return f"there is no command {words[0]!r}"
    try:
        _parse(command, words)
    except _USAGE as error:
        if type(error).__name__ in _INCOMPLETE and is_named:
            return ""
        return str(error) or type(error).__name__
    return ""


@cache
def _program() -> Any:
    return get_command(app)


def _parse(command: Any, words: Sequence[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(typer.Exit):  # --help
        command.make_context("whichrank", list(words))
