"""Metrics of entities from OTLP: what is wanted comes out whole, what is broken never raises."""

from __future__ import annotations

import math
import random

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags

from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp_metrics import decode_metrics, encode_points
from whichrank.telemetry.records import Broken, Identity, Point, Samples


def request() -> ExportMetricsServiceRequest:
    """As a collector's Prometheus receiver sends it: a gauge, a sum, a histogram and a point without a value."""
    made = ExportMetricsServiceRequest()
    part = made.resource_metrics.add()
    for key, value in (("host.name", "n7"), ("service.instance.id", "n7:9400")):
        part.resource.attributes.add(key=key).value.string_value = value
    scope = part.scope_metrics.add()
    gauge = scope.metrics.add(name="DCGM_FI_DEV_GPU_TEMP")
    point = gauge.gauge.data_points.add(time_unix_nano=5, as_double=71.0)
    point.attributes.add(key="gpu").value.string_value = "3"
    gauge.gauge.data_points.add(time_unix_nano=5, flags=DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK)
    gauge.gauge.data_points.add(time_unix_nano=5, as_double=math.nan)
    total = scope.metrics.add(name="node_network_carrier_changes_total")
    total.sum.data_points.add(time_unix_nano=6, start_time_unix_nano=2, as_int=4)
    scope.metrics.add(name="histogram").histogram.data_points.add(count=1)
    scope.metrics.add(name="not wanted").gauge.data_points.add(as_int=1)
    return made


def test_numbers_of_wanted_metrics_come_out() -> None:
    (samples,) = decode_metrics("t", request().SerializeToString(), lambda name: name != "not wanted")
    assert isinstance(samples, Samples)
    assert samples.identity == Identity(node="n7")
    assert samples.resource["service.instance.id"] == "n7:9400"
    assert samples.points == (
        Point(name="DCGM_FI_DEV_GPU_TEMP", value=71.0, attributes={"gpu": "3"}, time_ns=5),
        Point(name="node_network_carrier_changes_total", value=4.0, time_ns=6, start_ns=2),
    )


def test_what_nobody_wants_costs_no_record() -> None:
    assert decode_metrics("t", request().SerializeToString(), lambda name: False) == []


def test_garbage_is_broken_and_never_raises() -> None:
    draw = random.Random(3)
    whole = request().SerializeToString()
    for _ in range(500):
        damaged = bytearray(whole[: draw.randrange(len(whole))])
        for _ in range(draw.randrange(4)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        for found in decode_metrics("t", bytes(damaged), lambda name: True):
            assert isinstance(found, Samples | Broken)


def test_what_is_written_is_cumulative_named_and_bounded() -> None:
    name = "whichrank.collector.failures"
    points = [
        Point(name=name, value=n, attributes={"whichrank.collector": f"c{n}"}, time_ns=9, start_ns=3)
        for n in range(1000)
    ]
    requests = encode_points(Identity(cluster="c", node="n1"), points, limit_bytes=1 << 20)
    made = ExportMetricsServiceRequest.FromString(requests[0])
    (metric,) = made.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit, metric.sum.is_monotonic) == (name, node_metrics()[name].unit, True)
    assert metric.sum.aggregation_temporality == 2
    assert len(metric.sum.data_points) == 1000


def test_the_tables_of_metrics_are_whole() -> None:
    for name, metric in node_metrics().items():
        assert metric.description, name
        assert metric.unit, name
        assert not {"step", "sequence", "trace"} & {word for a in metric.attributes for word in a.split(".")}, name
