"""What an agent sent for people, decoded with opentelemetry-proto. Not a test module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Attributes = dict[str, Any]


def plain(holder: Any) -> Attributes:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


def spans_of(requests: Iterable[bytes]) -> list[tuple[Attributes, Span]]:
    """Every span with its resource."""
    return [
        (plain(part.resource), span)
        for raw in requests
        for part in ExportTraceServiceRequest.FromString(raw).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def points_of(requests: Iterable[bytes]) -> Iterator[tuple[Attributes, str, Attributes, Any]]:
    """(resource, metric, attributes, point) of every point, in order."""
    for raw in requests:
        for part in ExportMetricsServiceRequest.FromString(raw).resource_metrics:
            resource = plain(part.resource)
            for scope in part.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    assert kind is not None
                    for point in getattr(metric, kind).data_points:
                        yield resource, metric.name, plain(point), point


def last_points(requests: Iterable[bytes]) -> dict[tuple[str, tuple[tuple[str, Any], ...]], Any]:
    """The newest point of each series: by metric and attributes."""
    return {(name, tuple(sorted(attributes.items()))): point for _, name, attributes, point in points_of(requests)}
