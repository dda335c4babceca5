"""Flags of ``whichrank report``; what it reads and draws is in the modules beside this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..run_folder.run_directory import Unusable
from ..settings.cli_errors import one_line
from ..settings.command_line import CONFIG

DEFAULT_MINUTES = 30.0


def register(app: typer.Typer) -> None:
    """Adds ``whichrank report`` to the program."""

    @app.command("report")
    def report_command(
        run: Annotated[
            Path | None, typer.Argument(metavar="[DIR]", help="folder of a run; default: the newest whichrank-out/*")
        ] = None,
        out: Annotated[
            Path, typer.Option("--out", "-o", metavar="FILE", help="the page; one that is there is replaced")
        ] = Path("whichrank-report.html"),
        job: Annotated[str, typer.Option(metavar="ID", help="of several; default: that of the worst incident")] = "",
        kafka: Annotated[
            str | None, typer.Option(metavar="HOST:PORT", help="read the topics of these brokers instead")
        ] = None,
        minutes: Annotated[float, typer.Option(min=0.1, help="with --kafka: how far back")] = DEFAULT_MINUTES,
        pairs: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any other key, as kafka_tls=true")
        ] = None,
        config: Annotated[Path | None, CONFIG] = None,
    ) -> None:
        """One HTML file that tells a run: who, since when, why, every rank in every step.

        It opens in a browser without a network, and can be sent to anybody.

        Exit status: 0; 2 if there is nothing to report or FILE cannot be
        written.
        """
        with one_line():
            from ..support.stderr import say
            from .page import render
            from .sources import of_kafka, of_run

            if kafka is not None and run is not None:
                raise Unusable("DIR and --kafka: choose one of them")
            if kafka is not None:
                reading, documents = of_kafka(kafka, job, minutes, pairs or (), config)
            else:
                reading, documents = of_run(run, job)
            page = render(reading, documents)
            size_mb = _write(out, page) / 1e6
            say(
                f"{out}: {size_mb:.1f} MB, {len(documents)} incident{'s' * (len(documents) != 1)}; open it in a browser"
            )


def _write(path: Path, page: str) -> int:
    """In one piece: somebody may have it open. The size in bytes. Raises Unusable."""
    content = page.encode("utf-8", "replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Unusable(f"{path}: cannot be written: {error.strerror or error}; choose another --out") from error
    return len(content)
