"""``whichrank incidents list|show|watch|export|label|ack|close``: what was found, and what people say of it.

Flags only; each command is a module beside this one and is imported when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..run_folder.run_directory import Unusable
from ..settings.cli_errors import one_line
from ..settings.settings import TopicsOptions, load_settings

if TYPE_CHECKING:
    from .chosen import IncidentSource

ID = typer.Argument(metavar="ID", help="as incidents list names it; its beginning is enough")
FROM = typer.Option("--from", metavar="DIR", help="folder of a run; default: the newest whichrank-out/*")
KAFKA = typer.Option(metavar="HOST:PORT", help="read the topics of these brokers instead")
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as kafka_tls=true")
CONFIG = typer.Option(help="settings file (TOML); default /etc/whichrank/whichrank.toml")
JSON = typer.Option("--json", help="one JSON object on stdout")

incidents_app = typer.Typer(
    help="What was found: list it, look at it, put all of it into one file.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Adds ``whichrank incidents`` to the program."""
    app.add_typer(incidents_app, name="incidents")


@incidents_app.command("list")
def list_command(
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """All incidents, the oldest first; those that went into others are marked."""
    from .show import list_incidents

    with one_line():
        list_incidents(_source(run, kafka, pairs, config), as_json=as_json)


@incidents_app.command("show")
def show_command(
    incident: Annotated[str, ID],
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """One incident: who, since when, why, and who only looks guilty."""
    from .show import show_incident

    with one_line():
        show_incident(_source(run, kafka, pairs, config), incident, as_json=as_json)


@incidents_app.command("watch")
def watch_command(
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document per line on stdout")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """A line for each change, as it happens; what is open already comes first.

    It ends when the run does, with Kafka never (Ctrl-C).
    """
    from .watch_command import watch

    with one_line():
        watch(_source(run, kafka, pairs, config), as_json=as_json)


@incidents_app.command("export")
def export_command(
    incident: Annotated[str, ID],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="the archive; default ./incident-ID.tar.gz")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the archive if it is there")] = False,
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """One archive for a ticket: the incident in words and as JSON, and its evidence.

    Stacks, rings, the last log lines and minutes of the suspects, flight
    recorders' dumps, the kernel log of their nodes; the manifest has sizes
    and hashes, and says what is missing and why. The same incident gives the
    same bytes.

    Exit status: 0; 2 if there is no such incident or the archive cannot be
    written.
    """
    from .export import export_incident

    with one_line():
        export_incident(_source(run, kafka, pairs, config), incident, out=out, force=force, as_json=as_json)


@incidents_app.command("label")
def label_command(
    incident: Annotated[str, ID],
    cause: Annotated[str, typer.Option(metavar="WHAT", help="what it was: node=NAME, application, or any word")] = "",
    wrong: Annotated[bool, typer.Option("--wrong", help="what the incident says is not so")] = False,
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Say what it was: it stands in the incident, and counts in the history of its nodes.

    A wrong incident takes its count back; node=NAME counts against that node
    alone; another cause against none.
    """
    from .label import label_incident

    with one_line():
        label_incident(_source(run, kafka, pairs, config), incident, cause=cause, wrong=wrong, as_json=as_json)


@incidents_app.command("ack")
def ack_command(
    incident: Annotated[str, ID],
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Say that you are at it: it stands in the incident."""
    from .label import acknowledge

    with one_line():
        acknowledge(_source(run, kafka, pairs, config), incident, as_json=as_json)


@incidents_app.command("close")
def close_command(
    incident: Annotated[str, ID],
    because: Annotated[str, typer.Option(metavar="WHY", help="what was done about it")] = "",
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Say that nobody needs to look any more: it stands in the incident.

    Its state stays what was seen: resolved when what it tells of is over.
    """
    from .label import close

    with one_line():
        close(_source(run, kafka, pairs, config), incident, because=because, as_json=as_json)


def _source(run: Path | None, kafka: str | None, pairs: list[str] | None, config: Path | None) -> IncidentSource:
    """Raises Unusable, SettingsError, KafkaTrouble."""
    if kafka is None:
        from .run_source import RunSource

        return RunSource(run)
    if run is not None:
        raise Unusable("--from and --kafka: choose one of them")
    from ...transport.kafka import make_client
    from .kafka_source import KafkaSource

    settings, _ = load_settings(TopicsOptions, {"kafka": kafka}, config, pairs or ())
    return KafkaSource(make_client(settings.kafka_settings()), kafka)
