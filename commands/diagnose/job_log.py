"""``whichrank diagnose job-log FILE...``: which line of a job's logs began it, what followed, and what to do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .input_file import Unreadable
from .packed_file import opened, text_only, unpacked, without_suffix

if TYPE_CHECKING:
    from ...diagnosis.job_log.job_log_reader import JobLog, LogSource
    from ...diagnosis.job_log.model import Episode, LogVerdict, Progress, StatementGroup, Suspects

EXIT_UNREADABLE = 2
SCHEMA = 1
#: Other statements shown to people; --json has them all.
SHOWN = 12


def register(app: typer.Typer) -> None:
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
    """
    from ...diagnosis.job_log.job_log_reader import read_job_logs

    try:
        found = read_job_logs(_sources(files))
    except OSError as error:
        sys.stderr.write(f"whichrank: {error.filename or 'stdin'} cannot be read: {error.strerror or error}\n")
        raise typer.Exit(EXIT_UNREADABLE) from None
    except Unreadable as trouble:
        sys.stderr.write(f"whichrank: {trouble}\n")
        raise typer.Exit(EXIT_UNREADABLE) from None
    if as_json:
        sys.stdout.write(json.dumps(document(found), ensure_ascii=False) + "\n")
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


def document(found: JobLog) -> dict[str, Any]:
    """What --json prints; docs/diagnose-job-log.md has its meaning."""
    from ...diagnosis.job_log.log_verdict import failures, restart_word

    verdict = found.verdict
    failure = verdict.failure
    return {
        "schema": SCHEMA,
        "files": list(found.names),
        "lines": found.lines,
        "class": failure.name if failure else None,
        "bucket": failure.bucket.value if failure else None,
        "scope": failure.scope.value if failure else None,
        "is_cause": verdict.is_cause,
        "confidence": verdict.confidence,
        "why": verdict.why,
        "suspects": {
            "ranks": ranges(verdict.suspects.ranks),
            "nodes": list(verdict.suspects.nodes),
            "devices": list(verdict.suspects.devices),
            "why": verdict.suspects.why or None,
        },
        "missing": ranges(verdict.suspects.missing),
        "peers": list(verdict.suspects.peers),
        "primary": _statement(found, verdict.primary, verdict.suspects) if verdict.primary else None,
        "precursors": [_statement(found, group) for group in verdict.precursors],
        "confirmations": [_statement(found, group) for group in verdict.confirmations],
        "consequences": [_statement(found, group) for group in verdict.consequences],
        "advice": {
            "action": verdict.action.value if verdict.action else None,
            "restart": restart_word(verdict).value,
            "text": verdict.advice,
        },
        "warnings": list(verdict.warnings),
        "episodes": [_episode(found, episode) for episode in failures(found.episodes)],
        "timeouts": [
            {
                "operations": sorted(wave.operations),
                "timeout_ms": wave.timeout_ms,
                "count": wave.count,
                "ranks": ranges(wave.ranks),
                "rank_count": len(wave.ranks),
                "lines": wave.lines,
            }
            for wave in found.waves
        ],
        "progress": {
            "first": _progress(found, found.first_progress),
            "last": _progress(found, found.last_progress),
            "checkpoint": _progress(found, found.last_checkpoint),
        },
    }


def _statement(found: JobLog, group: StatementGroup, suspects: Suspects | None = None) -> dict[str, Any]:
    from ...diagnosis.job_log.witnesses import of_exit_code

    first = group.first
    where = first.where
    # Who only reports another is no place to look at.
    line, reporter = first.line, None
    others = suspects is not None and bool(suspects.why) and bool(suspects.ranks or suspects.peers)
    if first.points_elsewhere or (others and suspects is not None and line.rank not in suspects.ranks):
        reporter = {"rank": line.rank, "node": line.node}
        line = replace(line, rank=None, local_rank=None, node=first.target.node)
    return {
        "file": found.names[first.line.source],
        "line": first.line.number,
        "first_line": first.first_line,
        "text": first.text,
        "class": of_exit_code(first).failure.name,
        "role": first.role.value,
        "form": first.form.value,
        "exception": first.exception or None,
        "where": {"file": where.file, "line": where.line, "function": where.function} if where else None,
        "time": _time(group),
        "rank": line.rank,
        "local_rank": line.local_rank,
        "node": line.node,
        "device": first.device,
        "peer": first.target.peer,
        "reported_by": reporter,
        "exit_code": first.exit_code,
        "count": group.count,
        "ranks": ranges(group.ranks),
        "rank_count": len(group.ranks),
        "lines": [number for _, number in group.lines],
    }


def _episode(found: JobLog, episode: Episode) -> dict[str, Any]:
    from ...diagnosis.job_log.log_verdict import terminal

    end = terminal(episode)
    return {
        "status": episode.status.value,
        "terminal": _statement(found, end) if end else None,
        "statements": len(episode.groups) + episode.overflow,
        "progress_before": _progress(found, episode.before),
        "progress_after": _progress(found, episode.after),
    }


def _progress(found: JobLog, progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "file": found.names[progress.source],
        "line": progress.number,
        "step": progress.step,
        "total": progress.total,
    }


def ranges(ranks: Iterable[int]) -> str:
    """1,2,3,7 as "1-3,7"."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in parts)


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
    line = group.first.line
    time = _time(group)
    return f"{found.names[line.source]}:{line.number}" + (f" at {time}" if time else "")


def _time(group: StatementGroup) -> str | None:
    stamp = group.first.line.own_stamp or group.first.line.stamp
    return stamp.text if stamp else None


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
