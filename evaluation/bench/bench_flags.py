"""Flags of ``whichrank bench``; what it does is in the modules beside this one, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RANKS = typer.Option(min=1, max=131_072, help="of all jobs of a scenario together")
RUNS = typer.Option(min=1, help="of each scenario, each with the next seed")
SEED = typer.Option(min=0, help="of the first run")
ONLY = typer.Option(metavar="NAME", help="of scenarios, again for more")
DETECTOR = typer.Option(metavar="FILE", help="a program to be scored, see docs/faultbench.md")
LIMIT = typer.Option(min=1.0, metavar="SECONDS", help="per run; more is wrong")
JOBS = typer.Option(min=1, help="so many runs at a time, a process each")
RESULTS = typer.Option(metavar="DIR", help="keep what was measured; what is there is not run again")
PART = typer.Option(metavar="K/N", help="only the K-th of N parts of all runs")
HELD_OUT = typer.Option("--held-out", help="seeds, meshes and topologies that were not used for tuning")
PLAIN = typer.Option("--plain", help="no harmless anomalies beside faults, and no collector fails to watch")
SOUND = typer.Option(metavar="LOAD", help="instead: days without a fault, at load reference or reduced")
GPU_DAYS = typer.Option(min=0.001, help="with --sound")
COST = typer.Option(metavar="RANKS", help="instead: what the operators cost; again for more")
ACCOUNTING = typer.Option("--accounting", help="instead: the seconds, against the truth")
JSON = typer.Option("--json", help="one JSON object on stdout")


def bench_command(
    ranks: Annotated[int, RANKS] = 64,
    runs: Annotated[int, RUNS] = 3,
    seed: Annotated[int, SEED] = 1,
    only: Annotated[list[str] | None, ONLY] = None,
    detector: Annotated[Path | None, DETECTOR] = None,
    limit: Annotated[float, LIMIT] = 900.0,
    jobs: Annotated[int, JOBS] = 1,
    results: Annotated[Path | None, RESULTS] = None,
    part: Annotated[str, PART] = "1/1",
    held_out: Annotated[bool, HELD_OUT] = False,
    plain: Annotated[bool, PLAIN] = False,
    sound: Annotated[str | None, SOUND] = None,
    gpu_days: Annotated[float, GPU_DAYS] = 10.0,
    cost: Annotated[list[int] | None, COST] = None,
    accounting: Annotated[bool, ACCOUNTING] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let every fault of the catalogue happen, and count how often it is told rightly.

    Each run is simulated, and judged by the same operators as a real one (or
    by FILE); a simple detector runs beside. The truth reaches only the scorer.

    Exit status: 0; 1 if something is SHORT; 2 for what cannot be run.
    """
    from . import suites
    from .command import Wanted, bench

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


def register(app: typer.Typer) -> None:
    """Adds ``bench`` to an app of typer."""
    app.command("bench")(bench_command)
