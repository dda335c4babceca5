"""``whichrank diagnose job-log FILE...``: which line of a job's logs began it, what followed, and what to do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .input_file import Unreadable
from .packed_file import opened, text_only, unpacked, without_suffix
from .rank_ranges import ranges

if TYPE_CHECKING:
    from ...diagnosis.job_log.job_log_reader import JobLog, LogSource
    from ...diagnosis.job_log.model import LogVerdict, StatementGroup

EXIT_UNREADABLE = 2
#: Other statements shown to people; --json has them all.
SHOWN = 12


def register(app: typer.Typer) -> None:
    """Adds ``whichrank diagnose job-log`` to the group."""
    app.command("job-log", no_args_is_help=True)(job_log)


def job_log(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="logs of one job: ranks, launcher, scheduler, also packed; - is stdin"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Which line of a job's logs began the failure, what only followed, and what to do about it.

    Several files are ranks of one job; rank_3.log, 3/stderr.log or node-07.out tell whose each is.

    Exit status: 0; 2 if a file cannot be read.
    """
    from ...diagnosis.job_log.job_log_reader import read_job_logs
    from .job_log_document import write_job_log

    try:
        found = read_job_logs(_sources(files))
    except OSError as error:
        sys.stderr.write(f"whichrank: {error.filename or 'stdin'} cannot be read: {error.strerror or error}\n")
        raise typer.Exit(EXIT_UNREADABLE) from None
    except Unreadable as trouble:
        sys.stderr.write(f"whichrank: {trouble}\n")
        raise typer.Exit(EXIT_UNREADABLE) from None
    if as_json:
        sys.stdout.write(json.dumps(write_job_log(found), ensure_ascii=False) + "\n")
    else:
        _show(found)


def _sources(files: Iterable[Path]) -> Iterator[LogSource]:
    from ...diagnosis.job_log.job_log_reader import LogSource, whose

    for path in files:
        if str(path) == "-":
            yield LogSource(name="-", file=text_only("stdin", unpacked("stdin", sys.stdin.buffer)))
            continue
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder; name the log files in it", str(path))
        rank, node = whose(without_suffix(os.fspath(path)))
        with opened(str(path), path) as file:
            yield LogSource(name=str(path), file=text_only(str(path), file), rank=rank, node=node)


def _show(found: JobLog) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    verdict = found.verdict
    if verdict.failure is None or verdict.primary is None:
        console.print(f"{found.lines} lines: {verdict.why}")
        return
    first = verdict.primary.first
    console.print(f"[bold]{verdict.failure.name}[/bold]  confidence {verdict.confidence:.2f}  {escape(verdict.why)}")
    console.print(f"  {escape(_place(found, verdict.primary))}  {escape(_whose(verdict.primary))}")
    console.print(f"  {escape(first.text.splitlines()[0] if first.text else '')}", overflow="fold")
    if first.where is not None and first.where.file:
        console.print(f"  raised at {escape(first.where.file)}:{first.where.line} in {escape(first.where.function)}")
    console.print(
        f"advice: {verdict.action.value if verdict.action else '-'}, restart unchanged: {verdict.restart.value}. "
        f"{escape(verdict.advice)}"
    )
    if told := _suspects(verdict):
        console.print(f"look at: {escape(told)}")
    for warning in verdict.warnings:
        console.print(f"note: {escape(warning)}")
    others = [*verdict.confirmations, *verdict.consequences]
    if not others:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("what else", "role", "times", "whose", "first at", "text"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis", min_width=40 if heading == "text" else None)
    for group in others[:SHOWN]:
        table.add_row(
            group.first.failure.name,
            group.first.role.value,
            str(group.count),
            escape(_whose(group)),
            f"{os.path.basename(found.names[group.first.line.source])}:{group.first.line.number}",
            escape(group.first.text.splitlines()[0][:100] if group.first.text else ""),
        )
    console.print(table)
    if len(others) > SHOWN:
        console.print(f"... {len(others) - SHOWN} more (--json)")


def _suspects(verdict: LogVerdict) -> str:
    suspects = verdict.suspects
    ranks = f"rank{'s' if len(suspects.ranks) > 1 else ''} {ranges(suspects.ranks)}" if suspects.ranks else ""
    devices = f"device {', '.join(suspects.devices)}" if suspects.devices else ""
    return ", ".join(part for part in (ranks, *suspects.nodes, *suspects.peers, devices) if part)


def _place(found: JobLog, group: StatementGroup) -> str:
    from .job_log_document import time_of

    line = group.first.line
    time = time_of(group)
    return f"{found.names[line.source]}:{line.number}" + (f" at {time}" if time else "")


def _whose(group: StatementGroup) -> str:
    line = group.first.line
    if len(group.ranks) > 1:
        told = ranges(group.ranks)
        return f"{len(group.ranks)} ranks" + (f" ({told})" if len(told) < 40 else f", first rank {line.rank}")
    if line.rank is not None:
        who = f"rank {line.rank}"
    elif line.local_rank is not None:
        who = f"local rank {line.local_rank}"
    else:
        who = ""
    return " ".join(part for part in (who, f"on {line.node}" if line.node else "") if part) or "-"
