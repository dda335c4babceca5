"""A scraped page on its way to the bus: what the Collector's Prometheus receiver makes of an exporter's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..telemetry.metric_encode import Instrument, number_attributes, number_entry, number_point
from ..telemetry.otlp_wire import RequestBuilder, resource

_SCOPE = "prometheusreceiver"
#: A page goes on as one message.
_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One sample of a page. name: with ``_total``, a counter; else a gauge, whatever it holds."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one exporter says at one scrape. instance: its host and port, as the scraper knows it."""

    instance: str
    lines: tuple[Line, ...]

    def otlp(self, time_unix_ns: int) -> bytes:
        """As an OTLP metrics request. time_unix_ns: of the scrape, Unix nanoseconds."""
        host, _, port = self.instance.rpartition(":")
        who = {"service.name": "exporters", "service.instance.id": self.instance, "server.address": host,
               "server.port": port}  # fmt: skip
        families: dict[str, list[bytes]] = {}
        for line in self.lines:
            point = number_point(number_attributes(line.labels), float(line.value), time_ns=time_unix_ns, start_ns=0)
            families.setdefault(line.name, []).append(point)
        builder = RequestBuilder(_SCOPE, _LIMIT_BYTES)
        builder.add(
            resource(who), [number_entry(name, "", "", _instrument(name), points) for name, points in families.items()]
        )
        return b"".join(builder.take())


def _instrument(name: str) -> Instrument:
    return Instrument.COUNTER if name.endswith("_total") else Instrument.GAUGE
