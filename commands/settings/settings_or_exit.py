"""Settings of a command, or a line for each thing that is wrong with them, and the end of the program."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import typer

from .settings import SettingsError, load_settings
from .settings_sources import Flags, Settings

EXIT_USAGE = 2

S = TypeVar("S", bound=Settings)


def settings_or_exit(
    kind: type[S], given: Flags, config: Path | None, pairs: list[str] | None
) -> tuple[S, dict[str, str]]:
    """The settings of a command, and by key where each value came from.

    What is wrong with them is printed to stderr, and typer.Exit raised. given: flags, None for one that was not given.
    """
    try:
        return load_settings(kind, {k: v for k, v in given.items() if v is not None}, config, pairs or ())
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"whichrank: {line}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
