"""Metrics of nodes and other entities: from OTLP requests to ``Samples``, and the collectors' points to requests.

Decoding never raises, and looks only at metrics that the caller wants: a message may hold thousands of others. Points
without a number (histograms, summaries, "no recorded value") are passed over. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags, Metric, NumberDataPoint

from . import attributes as names
from .metric_encode import Instrument as WireInstrument
from .metric_encode import number_attributes, number_entry, number_point
from .metric_layouts import Layouts
from .metric_order import MetricOrder
from .node_metrics import NodeMetricInstrument, node_metrics
from .otlp import read_identity, value_of
from .otlp_wire import RequestBuilder, resource
from .records import Broken, Identity, Point, Samples

#: Points of one message beyond this are left: damage, or abuse.
MAX_POINTS = 200_000
_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_WIRE = {
    NodeMetricInstrument.GAUGE: WireInstrument.GAUGE,
    NodeMetricInstrument.COUNTER: WireInstrument.COUNTER,
    NodeMetricInstrument.UP_DOWN_COUNTER: WireInstrument.UP_DOWN_COUNTER,
}


class MetricReader:
    """Decodes messages, and remembers what they have in common: one like those before is read far faster.

    is_wanted: which metrics, told by their names, are read. is_ours: which come in one order; a message with others is
    told in the order of names. Used by one thread.
    """

    def __init__(self, is_wanted: Callable[[str], bool], is_ours: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted
        self._layouts = Layouts(is_wanted)
        self._order = MetricOrder(is_wanted, is_ours)

    def read(self, topic: str, value: bytes) -> Sequence[Samples | Broken]:
        """``decode_metrics`` of the message."""
        known = self._layouts.read(value)
        if known is not None:
            return known
        ordered = self._order.sorted(value)
        if ordered is not None:
            found = decode_metrics(topic, ordered, self._is_wanted, self._layouts)
            if not any(isinstance(each, Broken) for each in found):
                return found
        return decode_metrics(topic, value, self._is_wanted, self._layouts)


def decode_metrics(
    topic: str, value: bytes, is_wanted: Callable[[str], bool], layouts: Layouts | None = None
) -> Sequence[Samples | Broken]:
    """One ``Samples`` for each resource that has points of a wanted metric (told by its name).

    layouts: of what came before, made for the same wanted metrics; a message like one of those is read far faster.
    """
    if layouts is not None and (known := layouts.read(value)) is not None:
        return known
    try:
        request = ExportMetricsServiceRequest.FromString(value)
    except DecodeError:
        return [Broken(topic=topic, reason=f"{len(value)} bytes are not an OTLP metrics request", value=bytes(value))]
    found: list[Samples] = []
    room = MAX_POINTS
    for part in request.resource_metrics:
        points: list[Point] = []
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                if len(points) < room and is_wanted(metric.name):
                    points += _points(metric, room - len(points))
        if points:
            room -= len(points)
            identity = read_identity(part.resource.attributes)
            found.append(Samples(identity=identity, points=tuple(points), resource=_plain(part.resource.attributes)))
    return layouts.learn(value, found) if layouts is not None else found


def _points(metric: Metric, most: int) -> list[Point]:
    kind = metric.WhichOneof("data")
    if kind not in ("gauge", "sum"):
        return []
    data: Sequence[NumberDataPoint] = getattr(metric, kind).data_points
    points = []
    for point in data[:most]:
        if point.flags & _NO_VALUE:
            continue
        number = point.as_double if point.HasField("as_double") else float(point.as_int)
        if math.isfinite(number):
            points.append(
                Point(
                    name=metric.name,
                    value=number,
                    attributes=_plain(point.attributes),
                    time_ns=point.time_unix_nano,
                    start_ns=point.start_time_unix_nano,
                )
            )
    return points


def _plain(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: value for pair in pairs if (value := value_of(pair.value)) is not None}


def encode_points(identity: Identity, points: Iterable[Point], *, limit_bytes: int) -> list[bytes]:
    """Points of a node as OTLP requests of at most ``limit_bytes`` each; unknown metrics are left out.

    identity: whose they are. What is in the resource for programs is in each point as well: of a resource Prometheus
    keeps little.
    """
    builder = RequestBuilder(names.SCOPE_NAME, limit_bytes)
    by_name: dict[str, list[bytes]] = {}
    for point in points:
        where: Mapping[str, Any] = {names.NODE_ID: identity.node, **point.attributes}
        by_name.setdefault(point.name, []).append(
            number_point(number_attributes(where), point.value, time_ns=point.time_ns, start_ns=point.start_ns)
        )
    known = node_metrics()
    entries = [
        number_entry(name, known[name].description, known[name].unit, _WIRE[known[name].instrument], encoded)
        for name, encoded in by_name.items()
        if name in known
    ]
    who = resource(
        {
            names.SERVICE_NAME: "whichrank-agent",
            names.SERVICE_INSTANCE_ID: identity.node,
            names.HOST_NAME: identity.node,
            names.NODE_ID: identity.node,
            names.CLUSTER_ID: identity.cluster,
        }
    )
    builder.add(who, entries)
    return builder.take()
