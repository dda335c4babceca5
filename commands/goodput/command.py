"""Flags of ``whichrank goodput``; what it reads and says is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..settings.command_line import CONFIG

EXIT_USAGE = 2


def register(app: typer.Typer) -> None:
    """Adds ``whichrank goodput`` to the program."""

    @app.command("goodput")
    def goodput_command(
        path: Annotated[
            Path | None, typer.Argument(metavar="[DIR|FILE]", help="folder of a run (default: the newest), or a file")
        ] = None,
        kafka: Annotated[
            str | None, typer.Option(metavar="HOST:PORT", help="read the findings topic of these brokers instead")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
        reference_step: Annotated[
            float | None,
            typer.Option(metavar="SECONDS", help="length of a step, for the published figure of a checkpoint log"),
        ] = None,
        until: Annotated[
            float | None, typer.Option(metavar="TIME", help="when a job that has not ended was looked at, as in FILE")
        ] = None,
        pairs: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any other key, as kafka_tls=true")
        ] = None,
        config: Annotated[Path | None, CONFIG] = None,
    ) -> None:
        """Where every GPU-second went: goodput, ETTR, downtime by its parts.

        DIR is the folder of whichrank run. FILE holds JSON lines: intervals
        as whichrank tells them, events of Google's resiliency library (job
        starts, checkpoints), or of ml-goodput-measurement (jobs, steps).
        What the buckets and figures mean, and the JSON: docs/accounting.md.

        Exit status: 0; 2 if there is nothing to account for.
        """
        from ...transport.kafka_client import KafkaTrouble
        from ..run_folder.run_directory import Unusable
        from ..settings.settings import SettingsError
        from .goodput_report import report
        from .interval_sources import of_file, of_kafka, of_run

        try:
            if kafka is not None and path is not None:
                raise Unusable("DIR or FILE and --kafka: choose one of them")
            if kafka is not None:
                found = of_kafka(kafka, pairs or (), config)
            elif path is None or path.is_dir():
                found = of_run(path)
            else:
                found = of_file(path, until_s=until, reference_step_s=reference_step)
            report(found, as_json=as_json)
        except (Unusable, KafkaTrouble, SettingsError) as error:
            for line in str(error).splitlines():
                typer.echo(f"whichrank: {line}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
