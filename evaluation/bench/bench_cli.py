"""``whichrank bench``: its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import suites
from .command import Wanted, bench


def register(app: typer.Typer) -> None:
    """Adds ``bench`` to an app of typer."""

    @app.command("bench")
    def bench_command(
        ranks: Annotated[int, typer.Option(min=1, max=131_072, help="of all jobs of a scenario together")] = 64,
        runs: Annotated[int, typer.Option(min=1, help="of each scenario, each with the next seed")] = 3,
        seed: Annotated[int, typer.Option(min=0, help="of the first run")] = 1,
        only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="of scenarios, again for more")] = None,
        detector: Annotated[
            Path | None, typer.Option(metavar="FILE", help="a program to be scored, see docs/faultbench.md")
        ] = None,
        limit: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="per run; more is wrong")] = 900.0,
        jobs: Annotated[int, typer.Option(min=1, help="so many runs at a time, a process each")] = 1,
        results: Annotated[
            Path | None, typer.Option(metavar="DIR", help="keep what was measured; what is there is not run again")
        ] = None,
        part: Annotated[str, typer.Option(metavar="K/N", help="only the K-th of N parts of all runs")] = "1/1",
        held_out: Annotated[
            bool, typer.Option("--held-out", help="seeds, meshes and topologies that were not used for tuning")
        ] = False,
        plain: Annotated[
            bool, typer.Option("--plain", help="no harmless anomalies beside faults, and no collector fails to watch")
        ] = False,
        sound: Annotated[
            str | None, typer.Option(metavar="LOAD", help="instead: days without a fault, at load reference or reduced")
        ] = None,
        gpu_days: Annotated[float, typer.Option(min=0.001, help="with --sound")] = 10.0,
        cost: Annotated[
            list[int] | None, typer.Option(metavar="RANKS", help="instead: what the operators cost; again for more")
        ] = None,
        accounting: Annotated[
            bool, typer.Option("--accounting", help="instead: the seconds, against the truth")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    ) -> None:
        """Let every fault of the catalogue happen, and count how often it is told rightly.

        Each run is simulated, and judged by the same operators as a real one (or
        by FILE); a simple detector runs beside. The truth reaches only the scorer.

        Exit status: 0; 1 if something is SHORT; 2 for what cannot be run.
        """
        if sound is not None:
            raise typer.Exit(
                suites.sound_days(sound, gpu_days=gpu_days, seed=seed, jobs=jobs, results=results, limit_s=limit)
            )
        if cost:
            raise typer.Exit(suites.cost(cost, results=results))
        if accounting:
            raise typer.Exit(suites.accounting(results=results))
        wanted = Wanted(
            ranks=ranks,
            runs=runs,
            seed=seed,
            only=only or [],
            detector=detector,
            limit_s=limit,
            jobs=jobs,
            results=results,
            part=part,
            held_out=held_out,
            plain=plain,
        )
        raise typer.Exit(bench(wanted, as_json=as_json))
