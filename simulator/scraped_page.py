"""A scraped page on its way to the bus: what the Collector's Prometheus receiver makes of an exporter's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, NumberDataPoint

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


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
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        host, _, port = self.instance.rpartition(":")
        who = {"service.name": "exporters", "service.instance.id": self.instance, "server.address": host,
               "server.port": port}  # fmt: skip
        _put(resource.resource.attributes.add, who.items())
        families: dict[str, Metric] = {}
        metrics = resource.scope_metrics.add().metrics
        for line in self.lines:
            metric = families.get(line.name)
            if metric is None:
                metric = families[line.name] = metrics.add(name=line.name)
            point = _point(metric)
            point.time_unix_nano, point.as_double = time_unix_ns, float(line.value)
            _put(point.attributes.add, line.labels.items())
        return request.SerializeToString()


def _point(metric: Metric) -> NumberDataPoint:
    if not metric.name.endswith("_total"):
        return metric.gauge.data_points.add()
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, _CUMULATIVE
    return metric.sum.data_points.add()


def _put(add: object, pairs: Iterable[tuple[str, str]]) -> None:
    assert callable(add)
    for key, value in pairs:
        pair: KeyValue = add(key=key)
        pair.value.string_value = value
