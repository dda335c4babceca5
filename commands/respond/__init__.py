"""``whichrank respond``: from the advice to the act. Flags only; the work is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..settings.settings import RespondOptions, SettingsError, load_settings, print_settings
from ..settings.settings_sources import Flags

EXIT_USAGE = 2

KAFKA = typer.Option(metavar="HOST:PORT", help="read the topics of these brokers")
STATE = typer.Option(metavar="DIR", help="folder for what it has done, and its audit file")
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as respond_nodes_per_hour=1")
CONFIG = typer.Option(help="settings file (TOML); default /etc/whichrank/whichrank.toml")

respond_app = typer.Typer(help="Do what incidents advise, or say what would be done.", invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Adds ``whichrank respond`` to the program."""
    app.add_typer(respond_app, name="respond")


@respond_app.callback()
def respond_command(
    context: typer.Context,
    run: Annotated[Path | None, typer.Option("--from", metavar="DIR", help="read the folder of a run instead")] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    act: Annotated[bool | None, typer.Option("--act/--dry-run", help="act for real; default: dry run")] = None,
    hooks: Annotated[str | None, typer.Option(metavar="NAMES", help="webhook, slurm, kubernetes")] = None,
    state: Annotated[Path | None, STATE] = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="/healthz, /readyz, /metrics; default 127.0.0.1:8462")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="answer what is there, and end")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="each act and refusal as a line on stdout")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="print the settings and stop")] = False,
) -> None:
    """Read incidents and do what they advise, where that is automatic, sure enough and allowed.

    A dry run unless --act is given. A breaker holds it: never more than
    respond_nodes_per_hour nodes, never more than respond_nodes_share of the
    cluster; then nothing is done until whichrank respond reset-breaker.

    Exit status: 0; 1 an act failed (--once); 2 it cannot start; 3 it ends
    with an open breaker.
    """
    if context.invoked_subcommand is not None:
        return
    given = {
        "respond_from": run,
        "kafka": kafka,
        "respond_act": act,
        "respond_hooks": hooks,
        "respond_state": state,
        "respond_health": health,
    }
    settings, origins = _settings(given, config, pairs)
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    from .respond_service import respond

    raise typer.Exit(respond(settings, once=once, as_json=as_json))


@respond_app.command("status")
def status_command(
    state: Annotated[Path | None, STATE] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """The breaker, the nodes that are out, and what was done last.

    Exit status: 0; 3 while the breaker is open; 2 if nothing has run here.
    """
    from .breaker_desk import status

    raise typer.Exit(status(_folder(state, config), as_json=as_json))


@respond_app.command("reset-breaker")
def reset_breaker_command(
    why: Annotated[str, typer.Option(metavar="TEXT", help="for the audit file")] = "",
    state: Annotated[Path | None, STATE] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """A person has looked: the breaker closes, and nodes taken out until now count no more.

    Exit status: 0; 2 if nothing has run here, or it cannot be written.
    """
    from .breaker_desk import reset_breaker

    raise typer.Exit(reset_breaker(_folder(state, config), why))


def _folder(state: Path | None, config: Path | None) -> Path:
    # Where it reads from does not matter here, and need not be given.
    given = {"respond_state": state, "respond_from": Path(), "respond_act": False, "respond_hooks": ""}
    return _settings(given, config, None)[0].respond_state


def _settings(given: Flags, config: Path | None, pairs: list[str] | None) -> tuple[RespondOptions, dict[str, str]]:
    """What is wrong is told, and the program ends."""
    flags = {name: value for name, value in given.items() if value is not None}
    try:
        return load_settings(RespondOptions, flags, config, pairs or ())
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"whichrank: {line}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
