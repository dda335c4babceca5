"""``whichrank simulate``: its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...commands.settings.command_line import CONFIG, KAFKA, PAIRS
from ...commands.settings.settings import TopicsOptions
from ...commands.settings.settings_or_exit import EXIT_USAGE, settings_or_exit
from ...simulator.sensing import Sensing
from .command import list_scenarios, simulate

_SENSORS = "who tells of storage and fabric: collectors of nodes, exporters of servers and switches, or both"


def register(app: typer.Typer) -> None:
    """Adds ``simulate`` to an app of typer."""

    @app.command("simulate")
    def simulate_command(
        scenario: Annotated[str | None, typer.Option(metavar="NAME", help="what goes wrong; see --list")] = None,
        ranks: Annotated[int, typer.Option(min=1, max=131_072, help="of all jobs together")] = 64,
        seed: Annotated[int, typer.Option(min=0, help="the same seed gives the same records")] = 1,
        minutes: Annotated[float | None, typer.Option(min=0.1, help="default: as long as the scenario needs")] = None,
        sensors: Annotated[Sensing, typer.Option(help=_SENSORS)] = Sensing.CLIENTS,
        out: Annotated[Path | None, typer.Option(metavar="DIR", help="keep it as the folder of a run")] = None,
        kafka: Annotated[str | None, KAFKA] = None,
        pairs: Annotated[list[str] | None, PAIRS] = None,
        config: Annotated[Path | None, CONFIG] = None,
        list_all: Annotated[bool, typer.Option("--list", help="the scenarios, and stop")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    ) -> None:
        """Let something go wrong in a cluster that never existed, and judge it.

        With --out the folder can be replayed; the truth lies in truth.json
        beside the capture. With --kafka nothing is judged here: agents of all
        nodes send to it, at the pace of life.

        Exit status: 0; 2 for what cannot be simulated, written or sent.
        """
        if list_all or scenario is None:
            raise typer.Exit(list_scenarios(as_json=as_json) if list_all else EXIT_USAGE)
        brokers = None
        if kafka is not None:
            brokers = settings_or_exit(TopicsOptions, {"kafka": kafka}, config, pairs)[0].kafka_settings(
                client_id="whichrank-simulate"
            )
        raise typer.Exit(
            simulate(
                scenario,
                ranks=ranks,
                seed=seed,
                minutes=minutes,
                out=out,
                kafka=brokers,
                as_json=as_json,
                sensing=sensors,
            )
        )
