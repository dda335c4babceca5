"""``whichrank checkpoint-now``: asks the ranks of a job on this node for an emergency save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..telemetry.emergency_words import DEFAULT_SECONDS, SaveReason
from ..telemetry.ring_root import ring_root
from .embedded.near_end import ask_for_save, listening_ranks
from .run_folder.run_directory import Unusable

EXIT_USAGE = 2


def register(app: typer.Typer) -> None:
    """Adds ``whichrank checkpoint-now`` to the program."""

    @app.command("checkpoint-now")
    def checkpoint_now_command(
        folder: Annotated[
            Path | None, typer.Argument(metavar="[DIR]", help="folder of a run (with run.json), or of a job's rings")
        ] = None,
        job: Annotated[str | None, typer.Option(metavar="ID", help="the job instead, as its rings are named")] = None,
        reason: Annotated[str, typer.Option(help="what the save function is told")] = SaveReason.PERSON.value,
        seconds: Annotated[float, typer.Option(min=1.0, help="how long the ranks may try")] = DEFAULT_SECONDS,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    ) -> None:
        """Have a job save a checkpoint after its present step.

        All ranks of the job, on all nodes, that called
        whichrank.on_checkpoint save after the same step; training goes on.
        Ask once, on one node, as the job's user. What comes of it: an
        incident where not all ranks saved (emergency_save_missed).

        Exit status: 0 asked; 2 no such job here, or none of its ranks listens.
        """
        try:
            rings = _rings_of(folder, job)
            ranks = sorted(listening_ranks(rings))
            if not ranks:
                raise Unusable(f"{rings}: no rank of this node listens; the script has to call whichrank.on_checkpoint")
            ask_for_save(rings, reason, seconds)
        except (Unusable, OSError) as error:
            typer.echo(f"whichrank: {error}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
        if as_json:
            typer.echo(json.dumps({"rings": str(rings), "ranks_listening": ranks, "seconds": seconds}))
        else:
            typer.echo(f"asked: {len(ranks)} ranks of this node listen, and have {seconds:g} s")


def _rings_of(folder: Path | None, job: str | None) -> Path:
    """Where the job's rings are. Raises Unusable."""
    if (folder is None) == (job is None):
        raise Unusable("DIR or --job ID: name one of them")
    rings = ring_root() / (job or "") if folder is None else folder
    description = rings / "run.json"
    if description.is_file():
        try:
            said: Any = json.loads(description.read_text(encoding="utf-8"))
            rings = Path(str(said["ring_directory"]))
        except (ValueError, KeyError, TypeError):
            raise Unusable(f"{description}: does not say where the rings are") from None
    if not rings.is_dir():
        raise Unusable(f"{rings}: no rings of a running job are there")
    return rings
