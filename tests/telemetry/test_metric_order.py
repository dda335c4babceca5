"""Metrics of one page in any order: the same samples, and only the first page of a target is decoded in full."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from whichrank.telemetry.metric_order import MetricOrder
from whichrank.telemetry.otlp_metrics import MetricReader, decode_metrics
from whichrank.telemetry.point_columns import PointColumns
from whichrank.telemetry.records import Broken, Samples

FOREIGN = ("ifOperStatus", "ifInErrors", "ifHCInOctets", "ifSpeed")
OURS = ("hw.errors", "hw.network.up")


def is_wanted(name: str) -> bool:
    return name != "ifSpeed"


def page(order: list[str], number: float, target: str = "leaf-1") -> bytes:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add(schema_url="https://of.resource")
    part.resource.attributes.add(key="service.instance.id").value.string_value = target
    scope = part.scope_metrics.add(schema_url="https://of.scope")
    scope.scope.name = "receiver"
    for name in order:
        metric = scope.metrics.add(name=name, description=f"of {name}")
        for port in range(3):
            point = metric.gauge.data_points.add(time_unix_nano=int(number), as_double=number * (port + 1))
            point.attributes.add(key="ifName").value.string_value = f"Eth1/{port}"
    return request.SerializeToString()


def reader() -> MetricReader:
    return MetricReader(is_wanted, OURS.__contains__)


def test_the_order_of_a_page_is_that_of_its_names() -> None:
    ordered = MetricOrder(is_wanted, OURS.__contains__).sorted(page(["ifSpeed", "ifOperStatus", "ifInErrors"], 1.0))
    assert ordered is not None
    parse = ExportMetricsServiceRequest.FromString
    assert parse(ordered) == parse(page(["ifInErrors", "ifOperStatus"], 1.0))


def test_what_comes_in_one_order_anyway_and_what_is_no_page_stays_as_it_is() -> None:
    order = MetricOrder(is_wanted, OURS.__contains__)
    assert order.sorted(page(["hw.network.up", "hw.errors"], 1.0)) is None
    assert order.sorted(b"\x0a\xff\xff") is None
    assert order.sorted(b"") is None
    assert order.sorted(page(["ifSpeed"], 1.0)) is None  # nothing of it is wanted


@given(st.integers(0, 1000), st.floats(1.0, 1e9))
def test_in_any_order_the_same_is_told_as_by_decoding_in_full(seed: int, number: float) -> None:
    shuffled = list(FOREIGN)
    random.Random(seed).shuffle(shuffled)
    remembers = reader()
    remembers.read("t", page(list(FOREIGN), 7.0))
    (found,) = remembers.read("t", page(shuffled, number))
    (in_full,) = decode_metrics("t", page(sorted(FOREIGN), number), is_wanted)
    assert isinstance(found, Samples)
    assert isinstance(in_full, Samples)
    assert found == in_full
    assert isinstance(found.points, PointColumns)  # by place


def test_pages_of_one_target_have_one_order_and_those_of_another_their_own() -> None:
    remembers = reader()
    told = [
        remembers.read("t", page(order, 2.0, target))[0]
        for order in ([*FOREIGN], [*reversed(FOREIGN)])
        for target in ("leaf-1", "leaf-2")
    ]
    orders = [each.order for each in told if isinstance(each, Samples)]
    assert orders[0] is orders[2]
    assert orders[1] is orders[3]
    assert orders[0] is not orders[1]


@pytest.mark.parametrize("cut", [5, 40, 200])
def test_a_damaged_page_is_kept_as_it_came(cut: int) -> None:
    damaged = page([*FOREIGN], 1.0)[:-cut] + b"\xff" * cut
    (broken,) = reader().read("t", damaged)
    assert isinstance(broken, Broken)
    assert broken.value == damaged
