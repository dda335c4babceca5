"""The ``whichrank`` program: its commands and their flags. Each command's work is in its own module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .settings import Level, SettingsError, View, load_settings, print_settings

EXIT_USAGE = 2

app = typer.Typer(
    name="whichrank",
    help="Says which rank, node or line of code stopped or slowed a PyTorch training job, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program() -> None:
    """Keeps ``run`` a word of its own even while it is the only command."""


@app.command("run", context_settings={"allow_interspersed_args": False}, no_args_is_help=True)
def run_command(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="what to watch")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for incidents, capture and state")] = None,
    json_lines: Annotated[
        bool | None, typer.Option("--json", help="incidents as JSON lines on stderr (stdout is the command's)")
    ] = None,
    view: Annotated[View | None, typer.Option(help="live block, plain lines or nothing")] = None,
    level: Annotated[Level | None, typer.Option(help="what the ranks record at the start")] = None,
    native: Annotated[bool | None, typer.Option(help="compiled recorder where it was built")] = None,
    completion: Annotated[bool | None, typer.Option(help="record also when operations complete")] = None,
    ring_root: Annotated[Path | None, typer.Option(help="parent folder of the rings, on a tmpfs")] = None,
    keep_rings: Annotated[bool | None, typer.Option("--keep-rings", help="leave the rings after the end")] = None,
    capture_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="size of the capture, the oldest goes first; 0: no limit [2GiB]")
    ] = None,
    job_name: Annotated[str | None, typer.Option(metavar="NAME", help="what people call the job")] = None,
    config: Annotated[Path | None, typer.Option(help="settings file (TOML); default ./whichrank.toml")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="print the settings and stop")] = False,
) -> None:
    """Watch one command. Its output, its exit status and its signals stay its own."""
    given: dict[str, Any] = {
        "out": out,
        "json_lines": json_lines,
        "view": view,
        "level": level,
        "native": native,
        "completion": completion,
        "ring_root": ring_root,
        "keep_rings": keep_rings,
        "capture_limit": capture_limit,
        "job_name": job_name,
    }
    try:
        settings, origins = load_settings({k: v for k, v in given.items() if v is not None}, config)
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"whichrank: {line}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    if not command:
        typer.echo("whichrank: no command to watch; write it after --: whichrank run -- torchrun train.py", err=True)
        raise typer.Exit(EXIT_USAGE)
    from .run import run

    run(command, settings)


@app.command("replay")
def replay_command(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="folder of a run")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    out: Annotated[Path | None, typer.Option(help="where to write incidents.jsonl; default DIR/replay-N")] = None,
) -> None:
    """Run the operators again over the capture of a run, and the rings that a killed run left behind."""
    from .replay import replay

    raise typer.Exit(replay(run, as_json=as_json, out=out))


@app.command("demo")
def demo_command(
    scenario: Annotated[str | None, typer.Option(help="kind of fault; default: drawn at random")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    seed: Annotated[int | None, typer.Option(help="repeat an earlier draw")] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run")] = None,
) -> None:
    """Train for real on four ranks, let one go wrong, and check that the incident names it."""
    from .demo import demo

    raise typer.Exit(demo(scenario, as_json=as_json, seed=seed, out=out))


def main() -> None:
    """Entry point of the ``whichrank`` program."""
    app()


if __name__ == "__main__":
    main()
