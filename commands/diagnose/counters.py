"""``whichrank diagnose counters PATH``: series of NIC and InfiniBand counters -> conditions with beginning and end."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.table import Table

from ...diagnosis.counters.port_conditions import ChangeKind, PortConditionSpan
from ...diagnosis.counters.port_series import PortLook, SeriesReader, seconds_of
from ...diagnosis.counters.port_watch import PortWatch
from ...diagnosis.counters.rules import ExpectedPorts, Grade, expected_by_product, expected_ports
from ...diagnosis.counters.sysfs import read_sample
from ...diagnosis.counters.traffic import NodeTraffic
from ..support.stderr import say
from .input_file import EXIT_USAGE, Unreadable, bounded_lines, delimiter_of, looks_like_json
from .packed_file import opened_text, without_suffix

#: Conditions that ended; the first ones are kept, the rest counted.
MAX_ENDED = 10_000
MAX_NODES = 4096
_COMPACT_TIME = re.compile(r"(\d{8})[-_T]?(\d{6})$")
FORMATS = """PATH is one of

JSON lines: a port at one time each, {"t": 12.0, "device": "mlx5_0", "port": 1, "state": "ACTIVE", "rate": 400,
"link_downed": 0, ...}, or {"t": 12.0, "ports": [...]}; counters also under "counters".

CSV or TSV with a header: t, device, port, state, phys_state, rate, node and a column per counter, or the two
columns counter and value. t: seconds since any beginning, or ISO 8601.

A folder with snapshots of /sys by time: PATH/TIME/class/infiniband/..., TIME as 1726000000 or 20260131-120000.
"""


def register(app: typer.Typer) -> None:
    """Adds ``whichrank diagnose counters`` to the group."""

    @app.command("counters", help=f"Conditions of network ports, from series of their counters.\n\n{FORMATS}")
    def counters_command(
        path: Annotated[Path, typer.Argument(metavar="PATH", help="file, folder of snapshots, or - for stdin")],
        gpu: Annotated[
            str, typer.Option(metavar="PRODUCT", help="expect the ports of nodes with this GPU, as H100")
        ] = "",
        ports: Annotated[int, typer.Option(min=0, help="expect at least so many active RDMA ports")] = 0,
        gbps: Annotated[float, typer.Option(min=0, help="expect of each at least so many Gb/s")] = 0.0,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    ) -> None:
        try:
            expected = _expected(gpu, ports, gbps)
            raise typer.Exit(_diagnose(path, expected, as_json=as_json))
        except Unreadable as trouble:
            say(str(trouble))
            raise typer.Exit(EXIT_USAGE) from None


def _diagnose(path: Path, expected: ExpectedPorts | None, *, as_json: bool) -> int:
    reader = SeriesReader()
    watches: dict[str, PortWatch] = {}
    traffic: dict[str, NodeTraffic] = {}
    ended: list[tuple[str, PortConditionSpan]] = []
    looks = dropped = 0
    for look in _looks(path, reader):
        looks += 1
        if look.node not in watches and len(watches) >= MAX_NODES:
            dropped += 1
            continue
        traffic.setdefault(look.node, NodeTraffic()).take(look.sample)
        for change in watches.setdefault(look.node, PortWatch(expected=expected)).take(look.sample):
            if change.kind is not ChangeKind.ENDED:
                continue
            if len(ended) < MAX_ENDED:
                ended.append((look.node, change.condition))
            else:
                dropped += 1
    if not looks:
        raise Unreadable(_nothing(path, reader))
    found = ended + [(node, condition) for node, watch in watches.items() for condition in watch.open_conditions]
    found.sort(key=lambda each: (each[1].since_s, each[0], each[1].port, each[1].name))
    late = sum(watch.ignored_looks for watch in watches.values())
    notes = [
        *([f"{reader.bad_rows} rows could not be read, the first at line {reader.first_bad[0]}: {reader.first_bad[1]}"]
          if reader.first_bad else []),
        *([f"{late} looks were left out: not in the order of time, or too many ports"] if late else []),
        *([f"{dropped} more conditions or nodes are not shown"] if dropped else []),
    ]  # fmt: skip
    if as_json:
        document = {
            "schema": 1,
            "source": str(path),
            "looks": looks,
            "nodes": len(watches),
            "bad_rows": reader.bad_rows,
            "conditions": [{"node": node, **condition.plain()} for node, condition in found],
            "ports": [
                {"node": node, "port": name, "sent_bytes": each.sent_bytes, "received_bytes": each.received_bytes}
                for node, ports in traffic.items()
                for name, each in ports.ports.items()
            ],
            "notes": notes,
        }
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    _print(found, looks, len(watches))
    for note in notes:
        say(note)
    return 0


def _print(found: list[tuple[str, PortConditionSpan]], looks: int, nodes: int) -> None:
    if not found:
        say(f"looks: {looks}, nodes: {nodes}; nothing is wrong with the ports")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("since", "until", "port", "condition", "how bad", "what it shows", "advice"):
        table.add_column(heading, overflow="fold")
    for node, condition in found:
        value = f"{condition.value:g}" + (f" > {condition.limit:g}" if condition.value > condition.limit else "")
        table.add_row(
            f"{condition.since_s:.0f}",
            "still" if condition.until_s is None else f"{condition.until_s:.0f}",
            " ".join(part for part in (node, condition.port) if part) or "node",
            condition.name,
            f"{_MARK[condition.grade]} {value} {condition.unit}".rstrip(),
            condition.shows,
            condition.action.value,
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


_MARK = {Grade.INFO: "info", Grade.WARN: "warn", Grade.CRITICAL: "critical"}


def _looks(path: Path, reader: SeriesReader) -> Iterator[PortLook]:
    if path.is_dir():
        yield from _snapshots(path)
    elif str(path) == "-":
        yield from _series(sys.stdin, "", reader)
    else:
        try:
            with opened_text(str(path), path) as file:
                yield from _series(file, Path(without_suffix(path.name)).suffix.lower(), reader)
        except OSError as trouble:
            raise Unreadable(f"{path}: {trouble.strerror}; name a file or a folder of snapshots") from trouble


def _series(file: TextIO, suffix: str, reader: SeriesReader) -> Iterator[PortLook]:
    lines = bounded_lines(file)
    first = next(lines, "")
    everything = itertools.chain([first], lines)
    if looks_like_json(first, suffix):
        yield from reader.json_lines(everything)
    else:
        yield from reader.table(everything, delimiter_of(first))


def _snapshots(folder: Path) -> Iterator[PortLook]:
    try:
        times = {place: _time_of(place.name) for place in folder.iterdir() if place.is_dir()}
    except OSError as trouble:
        raise Unreadable(f"{folder}: {trouble.strerror}; name a folder of snapshots that may be read") from trouble
    ordered: Iterable[tuple[float, Path]] = sorted((t_s, place) for place, t_s in times.items() if t_s is not None)
    if not ordered:
        # The tree itself, captured once.
        ordered = [(0.0, folder)]
    for t_s, place in ordered:
        if (sample := read_sample(place, t_s)).ports:
            yield PortLook(node="", sample=sample)


def _time_of(name: str) -> float | None:
    if found := _COMPACT_TIME.search(name):
        day, clock = found.groups()
        iso = f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:]}"
        return seconds_of(iso)
    return seconds_of(name)


def _expected(gpu: str, ports: int, gbps: float) -> ExpectedPorts | None:
    if gpu and (ports or gbps):
        raise Unreadable("--gpu says ports and rate; give either --gpu or --ports and --gbps")
    if gpu:
        if (expected := expected_ports(gpu)) is None:
            raise Unreadable(
                f"--gpu {gpu}: not known; {', '.join(expected_by_product())} are, or give --ports and --gbps"
            )
        return expected
    return ExpectedPorts(ports=ports, gbps=gbps) if ports or gbps else None


def _nothing(path: Path, reader: SeriesReader) -> str:
    if reader.first_bad:
        line, why = reader.first_bad
        return f"{path}: line {line}: {why}; see whichrank diagnose counters --help for the formats"
    return f"{path}: no port in it; see whichrank diagnose counters --help for the formats"
