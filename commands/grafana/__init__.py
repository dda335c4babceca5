"""``whichrank grafana sync|export``: dashboards and rules into a Grafana, or into files for one. Flags only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..one_line import one_line
from ..run_directory import Unusable

app = typer.Typer(help="Put the dashboards and rules into a Grafana, or into files for one.", no_args_is_help=True)
TOKEN = "GRAFANA_TOKEN"  # the name of the variable


@app.command("sync")
def sync_command(
    url: Annotated[str, typer.Option(metavar="URL", help="of the Grafana, as in a browser", envvar="GRAFANA_URL")],
    token_file: Annotated[
        Path | None, typer.Option(help=f"file with a service account's token; default: the variable {TOKEN}")
    ] = None,
    organization: Annotated[int | None, typer.Option(metavar="ID", help="organisation; default: the token's")] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=UID", help="a data source that is there: prometheus, loki or tempo; again for more"),
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


@app.command("export")
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
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}: write the token there, or set {TOKEN}") from error
