"""Series of port samples as people have them: JSON lines, CSV or TSV. Text in, looks in the file's order out.

A row is one port at one time: ``t`` and ``device``, and what else is known: ``port``, ``state``, ``phys_state``,
``rate`` (Gb/s), ``link_layer``, ``node``; any other column with a whole number is a counter, or one counter per row in
the columns ``counter`` and ``value``. A JSON line may hold all ``ports`` of one time in a list.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from .sample import (
    Layer,
    NodeSample,
    PortSample,
    parse_counter,
    parse_layer,
    parse_physical,
    parse_rate,
    parse_state,
)

MAX_COLUMNS = 1024
MAX_PORTS_PER_LOOK = 1024
_TIME = ("t", "t_s", "time", "timestamp", "ts", "time_s")
_NODE = ("node", "host", "hostname", "instance")
_DEVICE = ("device", "dev", "interface", "ifname", "netdev", "hca")
_STATE = ("state", "operstate", "link_state")
_PHYSICAL = ("phys_state", "physical_state", "physical")
_RATE = ("rate", "rate_gbps", "rate_gbsec", "speed_gbps")
_LAYER = ("link_layer", "layer")
_NOT_COUNTERS = frozenset({*_TIME, *_NODE, *_DEVICE, *_STATE, *_PHYSICAL, *_RATE, *_LAYER, "port", "counter", "value"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLook:
    """``node`` "": the file does not say."""

    node: str
    sample: NodeSample


@dataclass(slots=True)
class SeriesReader:
    """Counts what it could not read. ``first_bad``: the first such line (1-based) and why."""

    rows: int = 0
    bad_rows: int = 0
    first_bad: tuple[int, str] | None = None
    _time: tuple[str, float] | None = None
    _ports: dict[tuple[str, int], _Row] = field(default_factory=dict)

    def json_lines(self, lines: Iterable[str]) -> Iterator[PortLook]:
        """Looks in a file of one JSON object per line, in its order.

        Lines that are none are counted, the first one named.
        """
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                self._bad(number, "no JSON")
                continue
            if not isinstance(entry, dict):
                self._bad(number, "no JSON object")
                continue
            ports = entry.get("ports")
            if isinstance(ports, list):
                shared = {key: value for key, value in entry.items() if key != "ports"}
                for port in ports[:MAX_PORTS_PER_LOOK]:
                    if isinstance(port, dict):
                        yield from self._row(number, {**shared, **port})
                    else:
                        self._bad(number, "a port is no JSON object")
            else:
                yield from self._row(number, entry)
        yield from self._flush()

    def table(self, lines: Iterable[str], delimiter: str) -> Iterator[PortLook]:
        """Looks in a CSV or TSV file with a header, in its order.

        Rows that cannot be read are counted, the first one named.
        """
        header: list[str] | None = None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                cells = next(csv.reader([line.replace("\0", "")], delimiter=delimiter), [])
            except csv.Error as trouble:
                self._bad(number, str(trouble))
                continue
            if header is None:
                header = [cell.strip().lower() for cell in cells[:MAX_COLUMNS]]
                continue
            yield from self._row(number, dict(zip(header, cells, strict=False)))
        yield from self._flush()

    def _row(self, number: int, entry: Mapping[str, object]) -> Iterator[PortLook]:
        entry = {str(key).strip().lower(): value for key, value in list(entry.items())[:MAX_COLUMNS]}
        t_s, device = seconds_of(_first(entry, _TIME)), _first(entry, _DEVICE)
        if t_s is None:
            self._bad(number, "no time (t: seconds, or ISO 8601)")
            return
        if not isinstance(device, str) or not device.strip():
            self._bad(number, "no device")
            return
        node = _first(entry, _NODE)
        now = (str(node)[:256] if node is not None else "", t_s)
        if self._time is not None and self._time != now:
            yield from self._flush()
        self._time = now
        self.rows += 1
        port = parse_counter(entry.get("port", 1))
        key = (device.strip()[:128], port if port is not None else 1)
        if key in self._ports or len(self._ports) < MAX_PORTS_PER_LOOK:
            self._ports.setdefault(key, _Row()).take(entry)

    def _flush(self) -> Iterator[PortLook]:
        if self._time is not None and self._ports:
            node, t_s = self._time
            ports = tuple(row.sample(device, port) for (device, port), row in self._ports.items())
            yield PortLook(node=node, sample=NodeSample(t_s=t_s, ports=ports))
        self._ports = {}

    def _bad(self, number: int, why: str) -> None:
        self.bad_rows += 1
        self.first_bad = self.first_bad or (number, why)


@dataclass(slots=True)
class _Row:
    """One port at one time, gathered from one row or from one row per counter."""

    fields: dict[str, object] = field(default_factory=dict)
    counters: dict[str, int | None] = field(default_factory=dict)

    def take(self, entry: Mapping[str, object]) -> None:
        nested = entry.get("counters")
        if isinstance(nested, dict):
            self._count({str(name): value for name, value in list(nested.items())[:MAX_COLUMNS]})
        name = entry.get("counter")
        if isinstance(name, str) and name:
            self._count({name.strip(): entry.get("value")})
        known = {key: value for key, value in entry.items() if key in _NOT_COUNTERS}
        self.fields |= {key: value for key, value in known.items() if value not in (None, "")}
        self._count({key: value for key, value in entry.items() if key not in known and key != "counters"})

    def _count(self, counters: Mapping[str, object]) -> None:
        for name, value in counters.items():
            number = parse_counter(value)
            if (number is not None or value is None) and len(self.counters) < MAX_COLUMNS:
                self.counters[name[:128]] = number

    def sample(self, device: str, port: int) -> PortSample:
        state, rate = _first(self.fields, _STATE), _first(self.fields, _RATE)
        layer = _first(self.fields, _LAYER)
        return PortSample(
            device=device,
            port=port,
            # A name such as eth0 or ib0 belongs to /sys/class/net; RDMA devices have a port of their own.
            layer=parse_layer(str(layer)) if layer is not None else Layer.UNKNOWN,
            state=parse_state(str(state)) if state is not None else parse_state(None),
            physical=parse_physical(str(_first(self.fields, _PHYSICAL) or "")),
            rate=parse_rate(rate if isinstance(rate, (int, float, str)) else None),
            counters=self.counters,
        )


def seconds_of(value: object) -> float | None:
    """Seconds from a number (milli-, micro- and nanoseconds since 1970 are known by their size) or ISO 8601.

    Else None.
    """
    if isinstance(value, str):
        text = value.strip()[:64]
        try:
            value = float(text)
        except ValueError:
            return _iso_seconds(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number) or abs(number) >= 1e20:
        return None
    for bound, scale in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if abs(number) >= bound:
            return number / scale
    return number


def _iso_seconds(text: str) -> float | None:
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return when.timestamp()


def _first(entry: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((entry[name] for name in names if entry.get(name) is not None), None)
