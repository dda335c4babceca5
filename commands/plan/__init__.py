"""``whichrank plan announce|cancel|list``: what is going to be done, so that nobody is paged for it. Flags only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...telemetry.identity import DEFAULT_CLUSTER
from ..run_folder.run_directory import Unusable
from ..settings.cli_errors import one_line
from ..settings.settings import TopicsOptions, load_settings

if TYPE_CHECKING:
    from .announce import Board

FROM = typer.Option("--from", metavar="DIR", help="folder of a run that goes on; default: the newest whichrank-out/*")
KAFKA = typer.Option(metavar="HOST:PORT", help="for everybody who reads the topics of these brokers")
CLUSTER = typer.Option(metavar="NAME", help="as in the incidents' field cluster; with --kafka")
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as kafka_tls=true")
CONFIG = typer.Option(help="settings file (TOML); default /etc/whichrank/whichrank.toml")
JSON = typer.Option("--json", help="one JSON object on stdout")
WHERE = typer.Option(
    metavar="WHAT=NAMES",
    help="node=n1,n2; leaf=, spine=, rack=, pdu=, storage=NAMES; fabric=*: everything; again for more",
)

plan_app = typer.Typer(help="Announce what is going to be done: maintenance, a drain, a cancel.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds ``whichrank plan`` to the program."""
    app.add_typer(plan_app, name="plan")


@plan_app.command("announce")
def announce_command(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="maintenance, drain; of jobs: cancel, shrink, profiler")],
    where: Annotated[list[str] | None, WHERE] = None,
    job: Annotated[list[str] | None, typer.Option(metavar="ID", help="job that it concerns, again for more")] = None,
    begin: Annotated[str, typer.Option(metavar="TIME", help="ISO 8601, or +MINUTES from now")] = "+0",
    end: Annotated[str, typer.Option(metavar="TIME", help="ISO 8601, or +MINUTES from the beginning")] = "+60",
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    cluster: Annotated[str, CLUSTER] = DEFAULT_CLUSTER,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Say it before it begins: what it brings about is told as info, bucket planned.

    What outlasts the plan by a minute is an incident again. What began before
    this was said is none of its work.
    """
    from .announce import announce

    with one_line():
        board = _board(run, kafka, cluster, pairs, config)
        announce(board, what, where=where or [], jobs=job or [], begin=begin, end=end, as_json=as_json)


@plan_app.command("cancel")
def cancel_command(
    plan: Annotated[str, typer.Argument(metavar="ID", help="as whichrank plan list names it")],
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    cluster: Annotated[str, CLUSTER] = DEFAULT_CLUSTER,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Call a plan off: it explains nothing from now on."""
    from .announce import cancel

    with one_line():
        cancel(_board(run, kafka, cluster, pairs, config), plan, as_json=as_json)


@plan_app.command("list")
def list_command(
    run: Annotated[Path | None, FROM] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    cluster: Annotated[str, CLUSTER] = DEFAULT_CLUSTER,
    as_json: Annotated[bool, JSON] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """What people have announced, and what of it was called off or is over."""
    from .announce import list_plans

    with one_line():
        list_plans(_board(run, kafka, cluster, pairs, config), as_json=as_json)


def _board(run: Path | None, kafka: str | None, cluster: str, pairs: list[str] | None, config: Path | None) -> Board:
    """Raises Unusable, SettingsError, KafkaTrouble."""
    from .announce import FolderBoard, KafkaBoard

    if kafka is None:
        return FolderBoard(run)
    if run is not None:
        raise Unusable("--from and --kafka: choose one of them")
    from ...transport.kafka import make_client

    settings, _ = load_settings(TopicsOptions, {"kafka": kafka}, config, pairs or ())
    return KafkaBoard(make_client(settings.kafka_settings()), kafka, cluster)
