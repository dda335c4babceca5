"""``whichrank grafana sync|annotate|export``: dashboards, rules and incidents into a Grafana. Flags only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..run_folder.run_directory import Unusable
from ..settings.annotate_options import AnnotateOptions
from ..settings.cli_errors import one_line
from ..settings.secret_file import read_secret_file
from ..settings.settings import SettingsError, load_settings, print_settings
from ..settings.settings_sources import Flags

EXIT_USAGE = 2
KAFKA = typer.Option(metavar="HOST:PORT", help="read the topic of these brokers")
FROM = typer.Option("--from", metavar="DIR", help="read the folder of a run instead")
URL = typer.Option(metavar="URL", help="of the Grafana, as in a browser", envvar="GRAFANA_URL")
TOKEN_FILE = typer.Option(help="file with a service account's token; default: the variable GRAFANA_TOKEN")
ORGANIZATION = typer.Option(metavar="ID", help="organisation; default: the token's")
STATE = typer.Option(metavar="DIR", help="folder for how far the topic was read")
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as annotate_max_age_s=86400")
CONFIG = typer.Option(help="settings file (TOML); default /etc/whichrank/whichrank.toml")

TOKEN = "GRAFANA_TOKEN"  # the name of the variable

grafana_app = typer.Typer(help="Put dashboards, rules and incidents into a Grafana.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds ``whichrank grafana`` to the program."""
    app.add_typer(grafana_app, name="grafana")


@grafana_app.command("sync")
def sync_command(
    url: Annotated[str, URL],
    token_file: Annotated[Path | None, TOKEN_FILE] = None,
    organization: Annotated[int | None, ORGANIZATION] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=UID",
            help="a data source that is there: prometheus, victorialogs and jaeger, or loki and tempo in their place",
        ),
    ] = None,
    make: Annotated[
        list[str] | None, typer.Option(metavar="TYPE=URL", help="a data source that is to be made; again for more")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="change nothing, show the difference")] = False,
) -> None:
    """Its own folder, dashboards and rules; nothing else is touched. What is as it should be is left alone.

    Policies, contact points, templates and data sources that are there are never written.

    Exit status: 0; 2 for what cannot be done, in one line.
    """
    with one_line():
        from .run import synchronise

        synchronise(
            url, token=_token(token_file), organization=organization, use=use or [], make=make or [], dry_run=dry_run
        )


@grafana_app.command("annotate")
def annotate_command(
    url: Annotated[str | None, URL] = None,
    token_file: Annotated[Path | None, TOKEN_FILE] = None,
    organization: Annotated[int | None, ORGANIZATION] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    run: Annotated[Path | None, FROM] = None,
    state: Annotated[Path | None, STATE] = None,
    once: Annotated[bool, typer.Option("--once", help="annotate what is there, and end")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="print the settings and stop")] = False,
) -> None:
    """Each incident becomes an annotation from its onset to its end, and changes with it.

    Tags that people added to one stay. One per cluster; it ends with
    SIGTERM, and goes on where it was.

    Exit status: 0; 1 something was not annotated (--once); 2 it cannot start.
    """
    given: Flags = {
        "kafka": kafka,
        "annotate_from": run,
        "annotate_state": state,
        "grafana_url": url,
        "grafana_token": os.environ.get(TOKEN) if token_file is None else None,
        "grafana_token_file": token_file,
        "grafana_organization": organization,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    try:
        settings, origins = load_settings(AnnotateOptions, flags, config, pairs or ())
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"whichrank: {line}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    with one_line():
        from .follow import follow

        raise typer.Exit(follow(settings, once=once))


@grafana_app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="is made; what is there is left alone unless --force")],
    force: Annotated[bool, typer.Option("--force", help="write over files that are there")] = False,
) -> None:
    """Provisioning files: dashboards, data sources and rules for those who mount them, and Prometheus' rule file."""
    with one_line():
        from .run import export

        export(folder, force=force)


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(TOKEN, "")
    try:
        return read_secret_file(path)
    except ValueError as error:
        raise Unusable(f"{path}: {error}: write the token there, or set {TOKEN}") from None
