"""``whichrank diagnose kernel-log FILE``: the faults in a kernel log, a line each, and what their repeats mean."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO, TextIO

import typer

from ...diagnosis.kernel_log import KernelEvent, KernelLogReader
from ...diagnosis.kernel_log.blocks import read_log
from ...diagnosis.kernel_log.findings import Findings, RepeatedEvent
from ...diagnosis.kernel_log.repeats import RepeatLane
from ...diagnosis.kernel_log.stamps import Calendar
from .input_file import Unreadable
from .packed_file import opened, text_only, unpacked

EXIT_USAGE = 2
STDIN = "-"
SCHEMA = 1
HEADINGS = ("time", "host", "event", "code", "device", "severity", "component", "action", "", "n")
_SHOWN_DEVICE = 40


def register(app: typer.Typer) -> None:
    """Adds ``whichrank diagnose kernel-log`` to the group."""

    @app.command("kernel-log")
    def kernel_log_command(
        files: Annotated[
            list[str], typer.Argument(metavar="FILE...", help="dmesg, syslog, journal, also packed; - is stdin")
        ],
        driver: Annotated[
            str | None,
            typer.Option(metavar="VERSION", help="of the NVIDIA driver, for Xid 144-150; default: as logged"),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    ) -> None:
        """Faults of GPU, NIC, disk, memory, kernel in kernel logs.

        Repeats within a minute are one line with a count. Exit status: 0,
        whether or not there was a fault; 2 if a file cannot be read.
        """
        raise typer.Exit(diagnose(files, driver=driver, as_json=as_json))


def diagnose(files: Sequence[str], *, driver: str | None, as_json: bool) -> int:
    """Prints the faults in these kernel logs. The exit status: 0; 2 where a file cannot be read.

    driver: version of the NVIDIA driver; None: as the logs say.
    """
    findings = Findings()
    status = unread = 0
    for name in files:
        try:
            with _opened(name) as (stream, written_s):
                reader = KernelLogReader(driver, calendar=Calendar(reference_s=written_s))
                repeats = RepeatLane(findings)
                try:
                    findings.collect(read_log(reader, stream, repeats))
                finally:
                    findings.events += repeats.taken
                findings.driver = reader.driver_major or findings.driver
        except (OSError, Unreadable) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"{name}: {error.strerror or error}; name files that can be read, or - for stdin"
            typer.echo(f"whichrank: {why}", err=True)
            status, unread = EXIT_USAGE, unread + 1  # what could be read is shown all the same
    if as_json:
        write_json(files, findings, sys.stdout)
    elif findings.groups or unread < len(files):  # of what was not read nobody knows that there is no fault in it
        _show(findings, sys.stdout)
    return status


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, float]]:
    """The bytes of the log, unpacked, and when it was last written (stdin: now)."""
    if name == STDIN:
        yield text_only("stdin", unpacked("stdin", sys.stdin.buffer)), time.time()
        return
    path = Path(name)
    with opened(name, path) as file:
        yield text_only(name, file), path.stat().st_mtime


def write_json(files: Sequence[str], findings: Findings, out: TextIO) -> None:
    """Writes the findings as JSON to ``out``, piece by piece: there may be more of it than memory is for.

    Fields may be added, never renamed.
    """
    head = {
        "schema": SCHEMA,
        "files": list(files),
        "driver": findings.driver,
        "events_read": findings.events,
        "events_left_out": findings.left_out,
    }
    out.write(json.dumps(head)[:-1] + ', "events": [')
    for number, group in enumerate(findings.groups):
        out.write((", " if number else "") + _group_json(group))
    concluded = [
        {
            "host": host,
            "rule": conclusion.rule,
            "also": conclusion.also,
            "device": conclusion.device,
            "domain": conclusion.domain.value,
            "repair": conclusion.repair.value,
            "action": conclusion.action.value,
            "count": conclusion.count,
        }
        for (host, _, _), conclusion in findings.concluded.items()
    ]
    out.write('], "conclusions": ' + json.dumps(concluded) + "}\n")


def _group_json(group: RepeatedEvent) -> str:
    event = group.event
    plain = {
        "time": event.time_s,
        "monotonic": event.monotonic_s,
        "last": group.last_s,
        "count": group.count,
        "host": event.host,
        "event": event.event,
        "also": list(event.also),
        "code": event.code,
        "device_kind": event.device_kind.value,
        "device": event.device,
        "severity": event.severity.value,
        "component": event.component,
        "domain": event.domain.value,
        "repair": event.repair.value,
        "action": event.action.value,
        "role": event.role.value,
        "meaning": event.meaning,
        "process": event.process,
        "pid": event.pid,
        "facts": dict(event.facts),
        "text": event.text,
    }
    return json.dumps(plain)


def _show(findings: Findings, out: TextIO) -> None:
    """A line for each, whatever the terminal's width. Written as made: a table that knows all its cells is large."""
    if not findings.groups:
        out.write("no fault found\n")
        return
    widths = [len(heading) for heading in HEADINGS]
    for group in findings.groups:
        widths = [max(width, len(cell)) for width, cell in zip(widths, _cells(group), strict=True)]
    for cells in chain((HEADINGS,), map(_cells, findings.groups)):
        *texts, count = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        out.write(" ".join((*texts, count.strip().rjust(widths[-1]))) + "\n")
    for (host, _, _), found in findings.concluded.items():
        where = " ".join(filter(None, (_printable(host), _printable(found.device))))
        out.write(f"{where or 'this node'}: {found.rule} ({found.count}): {found.domain.value}, {found.action.value}\n")
    if findings.left_out:
        out.write(f"{findings.left_out} more events are not shown\n")


def _cells(group: RepeatedEvent) -> tuple[str, ...]:
    event = group.event
    return tuple(
        map(
            _printable,
            (
                _clock(event),
                event.host,
                event.event,
                event.code,
                event.device[-_SHOWN_DEVICE:],
                event.severity.value,
                event.component,
                event.action.value,
                "" if event.role.value == "initiating" else event.role.value,
                str(group.count),
            ),
        )
    )


def _clock(event: KernelEvent) -> str:
    if event.time_s is not None:
        return datetime.fromtimestamp(event.time_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return "" if event.monotonic_s is None else f"[{event.monotonic_s:.3f}]"


def _printable(text: str) -> str:
    """Log lines may hold what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)
