"""``whichrank notify``: incidents reach people. Flags only; the work is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..settings.notify_options import NotifyOptions
from ..settings.settings import SettingsError, load_settings, print_settings
from ..settings.settings_sources import Flags

EXIT_USAGE = 2

KAFKA = typer.Option(metavar="HOST:PORT", help="read the topic of these brokers")
FROM = typer.Option("--from", metavar="DIR", help="read the folder of a run instead")
STATE = typer.Option(metavar="DIR", help="folder for what was told to whom")
HEALTH = typer.Option(metavar="HOST:PORT", help="/healthz, /readyz, /metrics; default 127.0.0.1:8463")
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as notify_max_age_s=3600")
CONFIG = typer.Option(help="settings file (TOML); default /etc/whichrank/whichrank.toml")


def register(app: typer.Typer) -> None:
    """Adds ``whichrank notify`` to the program."""
    app.command("notify")(notify_command)


def notify_command(
    kafka: Annotated[str | None, KAFKA] = None,
    run: Annotated[Path | None, FROM] = None,
    state: Annotated[Path | None, STATE] = None,
    health: Annotated[str | None, HEALTH] = None,
    test: Annotated[str, typer.Option(metavar="RECEIVER", help="only send it a test, marked as one")] = "",
    once: Annotated[bool, typer.Option("--once", help="tell what is there, and end")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="print the settings and stop")] = False,
) -> None:
    """Tell people of incidents: Alertmanager, PagerDuty, Slack, a webhook.

    Who is told what is in the settings file: docs/notify.md. One per
    cluster, with a folder that outlives it. It ends with SIGTERM.

    Exit status: 0; 1 something could not be told (--once, --test); 2 it
    cannot start.
    """
    given: Flags = {"kafka": kafka, "notify_from": run, "notify_state": state, "notify_health": health}
    flags = {name: value for name, value in given.items() if value is not None}
    if test:
        flags.setdefault("notify_from", Path())  # nothing is read
    try:
        settings, origins = load_settings(NotifyOptions, flags, config, pairs or ())
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"whichrank: {line}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    from .notify_service import notify, send_test

    raise typer.Exit(send_test(settings, test) if test else notify(settings, once=once))
