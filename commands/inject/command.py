"""Flags of ``whichrank inject``, and the order of a game day."""

from __future__ import annotations

import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..run_folder.run_directory import Unusable
from ..support.stderr import say
from .game_day import Answer, GameDay, play
from .injected_kinds import FACTS, InjectedKind
from .injection_trail import InjectionTrail
from .make_fault import FaultOptions, check_options, make_fault
from .node_faults import OUT_OF_MEMORY
from .own_run import OwnRun
from .shown import day_as_json, print_day
from .target_job import TargetJob, rings_of_job, wait_for_steps

EXIT_WRONG, EXIT_USAGE = 1, 2
KINDS = ", ".join(kind.value for kind in InjectedKind)
#: A busy machine takes minutes to import torch.
START_LIMIT_S = 300.0


def register(app: typer.Typer) -> None:
    """Adds ``whichrank inject`` to the program."""

    @app.command("inject", context_settings={"allow_interspersed_args": True}, no_args_is_help=True)
    def inject_command(
        kind: Annotated[InjectedKind, typer.Argument(metavar="KIND", help=f"what goes wrong: {KINDS}")],
        command: Annotated[
            list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="start this under whichrank run")
        ] = None,
        job: Annotated[str | None, typer.Option(metavar="ID", help="a job of yours that runs here instead")] = None,
        rank: Annotated[int | None, typer.Option(min=0, help="of this node; default: drawn at random")] = None,
        seconds: Annotated[float, typer.Option("--for", min=1.0, metavar="SECONDS", help="then it is undone")] = 60.0,
        step: Annotated[int, typer.Option(min=0, help="not before all ranks here are there")] = 30,
        percent: Annotated[float, typer.Option(help="slow: so much longer the rank's own work takes")] = 100.0,
        path: Annotated[Path | None, typer.Option(help="slow-disk, full-disk: a folder of that disk")] = None,
        kernel_log: Annotated[
            Path | None, typer.Option(help="kernel-line: the file that the agent reads (setting kernel_log)")
        ] = None,
        line: Annotated[
            str | None, typer.Option(help="kernel-line: what the kernel says, with {pid}; default: out of memory")
        ] = None,
        namespace: Annotated[str, typer.Option(help="port-down: name of the network namespace")] = "",
        port: Annotated[str, typer.Option(help="port-down: the network port in there")] = "",
        out: Annotated[Path | None, typer.Option(help="folder of the run of COMMAND")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    ) -> None:
        """Do a fault to a job on purpose, and check what whichrank says.

        Only to a job that allows it (WHICHRANK_ALLOW_INJECT=1 in its
        environment when it started), as its user, on the node of the rank.
        What is done is undone after --for, at Ctrl-C and at SIGTERM; kill,
        raise, nan and the calls of collectives cannot be.

        Exit status: 0 the verdict is right; 1 it is wrong, or none came; 2
        it cannot be done.
        """
        options = FaultOptions(
            seconds=seconds,
            percent=percent,
            path=path,
            line=OUT_OF_MEMORY if line is None else line,
            kernel_log=kernel_log,
            namespace=namespace,
            port=port,
        )
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            if (job is None) == (not command):
                raise Unusable("--job ID or -- COMMAND: name one of them")
            check_options(kind, options)
            if job is not None:
                day = _in_running_job(kind, rings_of_job(job), rank, step, options)
            else:
                day = _in_own_run(kind, OwnRun(command or [], out, quiet=as_json), rank, step, options)
        except (Unusable, OSError) as error:
            say(str(error))
            raise typer.Exit(EXIT_USAGE) from None
        raise typer.Exit(_show(day, as_json=as_json))


def _show(day: GameDay, *, as_json: bool) -> int:
    """Prints it; returns the exit status."""
    if as_json:
        typer.echo(day_as_json(day))
    else:
        print_day(day)
    return 0 if day.answer is Answer.RIGHT else EXIT_WRONG


def _in_running_job(kind: InjectedKind, rings: Path, rank: int | None, step: int, options: FaultOptions) -> GameDay:
    """In a job that runs. Raises Unusable, OSError."""
    job = wait_for_steps(rings, step, time.monotonic() + START_LIMIT_S)
    try:
        return _play(kind, job, rank, options)
    finally:
        job.close()


def _in_own_run(kind: InjectedKind, own: OwnRun, rank: int | None, step: int, options: FaultOptions) -> GameDay:
    """In a job that was started for this, and is ended afterwards. Raises Unusable, OSError."""
    job: TargetJob | None = None
    try:
        until_s = time.monotonic() + START_LIMIT_S
        job = wait_for_steps(own.find_rings(until_s), step, until_s, own.has_ended)
        return _play(kind, job, rank, options, own.has_ended)
    finally:
        own.end(job)
        if job is not None:
            job.close()


def _play(
    kind: InjectedKind,
    job: TargetJob,
    rank: int | None,
    options: FaultOptions,
    has_ended: Callable[[], bool] = lambda: False,
) -> GameDay:
    """Raises Unusable, OSError."""
    chosen = random.choice(sorted(job.ranks)) if rank is None else rank
    if chosen not in job.ranks:
        known = ", ".join(map(str, sorted(job.ranks)))
        raise Unusable(f"rank {chosen} does not live on this node; {known} do: go to the node of that rank")
    fault, target = make_fault(kind, job, job.ranks[chosen], options)
    day = GameDay(kind=kind, rank=chosen if FACTS[kind].of_rank else rank, target=target, run=job.run)

    def make_trail() -> InjectionTrail:
        return InjectionTrail(job.run, job=job.rings.name, node=socket.gethostname(), say=say)

    play(day, fault, job, seconds=options.seconds, make_trail=make_trail, has_ended=has_ended)
    return day
