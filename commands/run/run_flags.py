"""Flags of ``whichrank run``; what it does is in the modules beside this one, imported when it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..settings.command_line import CONFIG_HERE, OTLP, PAIRS, PRINT_CONFIG
from ..settings.settings import HookLevel, RunSettings, ViewChoice, print_settings
from ..settings.settings_or_exit import EXIT_USAGE, settings_or_exit
from ..settings.settings_sources import Flags, on_command_line

COMMAND = typer.Argument(metavar="-- COMMAND...", help="what to watch")
OUT = typer.Option(help="folder for incidents, capture and state; default whichrank-out/TIME-JOB")
JSON_LINES = typer.Option("--json", help="incidents as JSON lines on stderr, see above")
VIEW = typer.Option(help="live block, plain lines or nothing")
LEVEL = typer.Option(help="what the ranks record at the start; default events, which is all")
NATIVE = typer.Option(help="compiled recorder where it was built")
COMPLETION = typer.Option(help="record also when operations complete")
CHECK_INPUTS = typer.Option(help="name the rank that feeds the first NaN into an operation; reads each input once more")
RING_ROOT = typer.Option(help="parent folder of the rings, on a tmpfs")
KEEP_RINGS = typer.Option("--keep-rings", help="leave the rings after the end")
CAPTURE_LIMIT = typer.Option(
    metavar="SIZE", help="size of the capture, as 500MB; the oldest goes first; 0: no limit; default 2GiB"
)
JOB_NAME = typer.Option(metavar="NAME", help="what people call the job; default: the scheduler's word, or the script")
JUDGE = typer.Option(
    metavar="HOST[:PORT]", help="several nodes: whose whichrank judges; default: the rendezvous's machine"
)
JUDGE_SECRET_FILE = typer.Option(
    metavar="FILE", help="several nodes: file with the secret that they share; or WHICHRANK_JUDGE_SECRET"
)
RESTARTS = typer.Option(metavar="N", help="start the command again, so often at most; default 0 (docs/supervisor.md)")
RESTART_ON = typer.Option("--on", metavar="WORDS", help="restart for: hang, crash, slow-node; default hang,crash")
RESTART_SPARES = typer.Option("--spares", metavar="NODES", help="take a bad node's place: NAME,NAME or a file of names")
RESTART_GRACE = typer.Option(
    "--restart-grace", metavar="SECONDS", help="between SIGTERM and SIGKILL when the command is ended; default 30"
)
RESTART_DRY_RUN = typer.Option("--dry-run/--no-dry-run", help="with --restarts: say what it would do, and do nothing")


def _refuse(given: str | None) -> None:
    if given is not None:
        typer.echo(f"whichrank: {on_command_line('judge_secret')}", err=True)
        raise typer.Exit(EXIT_USAGE)


#: Of releases before; refused, with the remedy.
JUDGE_SECRET = typer.Option(metavar="TEXT", hidden=True, callback=_refuse)
KAFKA = typer.Option(metavar="HOST:PORT", help="brokers that get everything as well; default: none")


def run_command(
    command: Annotated[list[str] | None, COMMAND] = None,
    out: Annotated[Path | None, OUT] = None,
    json_lines: Annotated[bool | None, JSON_LINES] = None,
    view: Annotated[ViewChoice | None, VIEW] = None,
    level: Annotated[HookLevel | None, LEVEL] = None,
    native: Annotated[bool | None, NATIVE] = None,
    completion: Annotated[bool | None, COMPLETION] = None,
    check_inputs: Annotated[bool | None, CHECK_INPUTS] = None,
    ring_root: Annotated[Path | None, RING_ROOT] = None,
    keep_rings: Annotated[bool | None, KEEP_RINGS] = None,
    capture_limit: Annotated[str | None, CAPTURE_LIMIT] = None,
    job_name: Annotated[str | None, JOB_NAME] = None,
    judge: Annotated[str | None, JUDGE] = None,
    judge_secret_file: Annotated[Path | None, JUDGE_SECRET_FILE] = None,
    judge_secret: Annotated[str | None, JUDGE_SECRET] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    otlp: Annotated[str | None, OTLP] = None,
    restarts: Annotated[int | None, RESTARTS] = None,
    restart_on: Annotated[str | None, RESTART_ON] = None,
    restart_spares: Annotated[str | None, RESTART_SPARES] = None,
    restart_grace_s: Annotated[float | None, RESTART_GRACE] = None,
    restart_dry_run: Annotated[bool | None, RESTART_DRY_RUN] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG_HERE] = None,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Watch one command. Its output, its exit status and its signals stay its own.

    With --json each revision of an incident is one line on stderr, the same
    as in incidents.jsonl. It begins with {"schema": and other lines there are
    the command's or begin with "whichrank: ". Nothing of ours goes to stdout.

    Each flag is also a variable (WHICHRANK_OUT; WHICHRANK_JSON_LINES for
    --json) and a key of whichrank.toml (out, json_lines). A flag beats the
    variable, the variable beats the file; --print-config shows what holds.
    """
    given: Flags = {
        "out": out,
        "json_lines": json_lines,
        "view": view,
        "level": level,
        "native": native,
        "completion": completion,
        "check_inputs": check_inputs,
        "ring_root": ring_root,
        "keep_rings": keep_rings,
        "capture_limit": capture_limit,
        "job_name": job_name,
        "judge": judge,
        "judge_secret_file": judge_secret_file,
        "kafka": kafka,
        "otlp": otlp,
        "restarts": restarts,
        "restart_on": restart_on,
        "restart_spares": restart_spares,
        "restart_grace_s": restart_grace_s,
        "restart_dry_run": restart_dry_run,
    }
    _run(command or [], given, config, pairs, print_config=print_config)


def _refuse_secret(judge_secret: str | None) -> None:
    if judge_secret is not None:
        typer.echo(f"whichrank: {on_command_line('judge_secret')}", err=True)
        raise typer.Exit(EXIT_USAGE)


def _run(command: list[str], given: Flags, config: Path | None, pairs: list[str] | None, *, print_config: bool) -> None:
    settings, origins = settings_or_exit(RunSettings, given, config, pairs)
    if print_config:
        typer.echo(print_settings(settings, origins))
        typer.echo(f"# {explain_nodes(command, settings.judge)}")
        return
    if not command:
        typer.echo("whichrank: no command to watch; write it after --: whichrank run -- torchrun train.py", err=True)
        raise typer.Exit(EXIT_USAGE)
    from .command import run

    run(command, settings)


def explain_nodes(command: list[str], judge: str) -> str:
    """In words, who would judge this command: this instance alone, as judge or follower, and why.

    judge: HOST[:PORT] as the user gave it, "" not at all.
    """
    from ..multi_node.launcher import find_rendezvous
    from ..multi_node.peer_plan import InstanceRole, plan_peers
    from ..multi_node.peer_setup import is_this_machine

    job = os.environ.get("WHICHRANK_JOB_ID", "")
    plan = plan_peers(find_rendezvous(command, os.environ), judge=judge, job=job, is_local=is_this_machine)
    return (
        plan.why if plan.role is InstanceRole.ALONE else f"{plan.why}: {plan.role.value}, ports from {plan.address} on"
    )
