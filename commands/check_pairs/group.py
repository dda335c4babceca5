"""``whichrank check`` with ``pairs`` below it."""

from __future__ import annotations

import typer

from ..check.command import check_app
from .command import pairs_command


def register(app: typer.Typer) -> None:
    """Adds ``whichrank check`` and ``whichrank check pairs`` to the program."""
    check_app.command("pairs")(pairs_command)
    app.add_typer(check_app, name="check")
