"""What a command cannot do is told in one line on stderr, and the program ends with status 2."""

from __future__ import annotations

import typer

from ..run_folder.run_directory import Unusable
from .settings import SettingsError

EXIT_USAGE = 2


class one_line:  # reads as a statement
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from ...transport.kafka_client import KafkaTrouble

        if isinstance(error, Unusable | KafkaTrouble | SettingsError):
            for line in str(error).splitlines():
                typer.echo(f"whichrank: {line}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
