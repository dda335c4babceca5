"""``whichrank diagnose kernel-log FILE``: the faults in a kernel log, a line each, and what their repeats mean."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from ...diagnosis.kernel_log import KernelEvent, KernelLogReader
from ...diagnosis.kernel_log.blocks import read_log
from ...diagnosis.kernel_log.recurrence import Conclusion, Sighting, conclusions, parameters, sighting_of
from ...diagnosis.kernel_log.stamps import Calendar
from .input_file import Unreadable
from .packed_file import opened, text_only, unpacked

EXIT_USAGE = 2
LINE_COLUMNS = 200
STDIN = "-"
SCHEMA = 1
#: Distinct faults shown; more are counted.
MOST_GROUPS = 10_000
#: Of one node, for its repeats.
HISTORY = 256
_SHOWN_DEVICE = 40


@dataclass(slots=True)
class Group:
    """Repeats of one event on one device: the first of them, how many, and when the last was."""

    event: KernelEvent
    count: int = 1
    last_s: float | None = None


@dataclass(slots=True)
class Findings:
    """What the logs say. ``left_out``: events beyond the first ``MOST_GROUPS`` groups."""

    groups: list[Group] = field(default_factory=list)
    concluded: dict[tuple[str, str, str], Conclusion] = field(default_factory=dict)
    events: int = 0
    left_out: int = 0
    driver: int | None = None


def register(app: typer.Typer) -> None:
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
    findings = Findings()
    status = unread = 0
    for name in files:
        try:
            with _opened(name) as (stream, written_s):
                reader = KernelLogReader(driver, calendar=Calendar(reference_s=written_s))
                collect(read_log(reader, stream), findings)
                findings.driver = reader.driver_major or findings.driver
        except (OSError, Unreadable) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"{name}: {error.strerror or error}; name files that can be read, or - for stdin"
            typer.echo(f"whichrank: {why}", err=True)
            status, unread = EXIT_USAGE, unread + 1  # what could be read is shown all the same
    if as_json:
        sys.stdout.write(json.dumps(document(files, findings)) + "\n")
    elif findings.groups or unread < len(files):  # of what was not read nobody knows that there is no fault in it
        _show(findings)
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


def collect(events: Iterable[KernelEvent], findings: Findings) -> None:
    """Groups repeats and judges them, in bounded memory."""
    window_s = parameters().coalesce_s
    newest: OrderedDict[tuple[str, ...], Group] = OrderedDict()
    histories: OrderedDict[str, deque[Sighting]] = OrderedDict()
    for event in events:
        findings.events += 1
        when_s = _when_s(event)
        key = (event.host, event.event, event.code, event.device, event.role.value, event.facts.get("unit", ""))
        group = newest.get(key)
        if group is not None and _is_repeat(group, when_s, window_s):
            group.count += 1
            group.last_s = when_s
            continue
        if len(findings.groups) >= MOST_GROUPS:
            findings.left_out += 1
            continue
        group = Group(event, last_s=when_s)
        findings.groups.append(group)
        newest[key] = group
        newest.move_to_end(key)
        if len(newest) > HISTORY * 16:
            newest.popitem(last=False)
        _conclude(event, histories, findings)


def _conclude(event: KernelEvent, histories: OrderedDict[str, deque[Sighting]], findings: Findings) -> None:
    sighting = sighting_of(event, event.host)
    if sighting is None:
        return
    history = histories.setdefault(event.host, deque(maxlen=HISTORY))
    history.append(sighting)
    if len(histories) > HISTORY:
        histories.popitem(last=False)
    for conclusion in conclusions(tuple(history)):
        findings.concluded[(event.host, conclusion.rule, conclusion.device)] = conclusion


def _when_s(event: KernelEvent) -> float | None:
    return event.monotonic_s if event.time_s is None else event.time_s


def _is_repeat(group: Group, when_s: float | None, window_s: float) -> bool:
    if when_s is None or group.last_s is None:
        return when_s is group.last_s
    return 0 <= when_s - group.last_s <= window_s


def document(files: Sequence[str], findings: Findings) -> dict[str, Any]:
    """The JSON form; fields may be added, never renamed."""
    return {
        "schema": SCHEMA,
        "files": list(files),
        "driver": findings.driver,
        "events_read": findings.events,
        "events_left_out": findings.left_out,
        "events": [_plain(group) for group in findings.groups],
        "conclusions": [
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
        ],
    }


def _plain(group: Group) -> dict[str, Any]:
    event = group.event
    return {
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


def _show(findings: Findings) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A line for each, whatever the terminal's width.
    console = Console(highlight=False, width=max(shutil.get_terminal_size().columns, LINE_COLUMNS))
    if not findings.groups:
        console.print("no fault found")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("time", "host", "event", "code", "device", "severity", "component", "action", "", "n"):
        table.add_column(heading, justify="right" if heading == "n" else "left", overflow="fold")
    for group in findings.groups:
        event = group.event
        cells = (
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
        )
        table.add_row(*(Text(_printable(cell)) for cell in cells))
    console.print(table)
    for (host, _, _), found in findings.concluded.items():
        where = " ".join(filter(None, (_printable(host), _printable(found.device))))
        console.print(
            f"{where or 'this node'}: {found.rule} ({found.count}): {found.domain.value}, {found.action.value}",
            markup=False,
        )
    if findings.left_out:
        console.print(f"{findings.left_out} more events are not shown")


def _clock(event: KernelEvent) -> str:
    if event.time_s is not None:
        return datetime.fromtimestamp(event.time_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return "" if event.monotonic_s is None else f"[{event.monotonic_s:.3f}]"


def _printable(text: str) -> str:
    """Log lines may hold what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)
