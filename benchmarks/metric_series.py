"""The series that OTLP metrics become in Prometheus: one per metric, attributes and resource, one more per resource.

As its OTLP receiver has them: an exponential histogram is one (native) series, and a resource has its ``target_info``.
Used by ``people_telemetry`` and ``cost_sheet``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from whichrank.telemetry import attributes as names

TARGET_INFO = "target_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """rank: of whose rank it speaks; -1 of nobody's."""

    metric: str
    resource: bytes
    attributes: bytes
    rank: int = -1


def series_of(requests: Iterable[bytes]) -> set[Series]:
    return {series for raw in requests for series in _series(raw)}


def series_of_ranks(requests: Iterable[bytes]) -> Counter[int]:
    """How many each rank has."""
    return Counter(series.rank for series in series_of(requests) if series.rank >= 0)


def _series(raw: bytes) -> Iterator[Series]:
    for part in ExportMetricsServiceRequest.FromString(raw).resource_metrics:
        resource = part.resource.SerializeToString()
        yield Series(metric=TARGET_INFO, resource=resource, attributes=b"")
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points:
                    words = b"".join(sorted(pair.SerializeToString() for pair in point.attributes))
                    ranks = [pair.value.int_value for pair in point.attributes if pair.key == names.RANK]
                    yield Series(
                        metric=metric.name, resource=resource, attributes=words, rank=ranks[0] if ranks else -1
                    )
