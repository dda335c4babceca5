"""Metrics decoded with opentelemetry-proto, histograms held against the SDK's own mapping of values to buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, ExponentialHistogramDataPoint, Metric
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import LogarithmMapping

from whichrank.telemetry import attributes as names
from whichrank.telemetry.histogram_table import SCALE, HistogramTable
from whichrank.telemetry.metric_encode import (
    METRICS,
    Instrument,
    histogram_attributes,
    metric_entry,
    number_attributes,
    number_point,
)
from whichrank.telemetry.otlp_wire import RequestBuilder

CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
START_NS, NOW_NS = 1_700_000_000 * 10**9, 1_700_000_010 * 10**9


def decode(entry: bytes) -> Metric:
    builder = RequestBuilder("whichrank", 900_000)
    builder.add(b"", [entry])
    (raw,) = builder.take()
    return ExportMetricsServiceRequest.FromString(raw).resource_metrics[0].scope_metrics[0].metrics[0]


def plain(holder: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


def points_of(table: HistogramTable, time_ns: int = NOW_NS) -> list[ExponentialHistogramDataPoint]:
    metric = decode(metric_entry(names.METRIC_STEP_DURATION, table.points(time_ns)))
    assert metric.exponential_histogram.aggregation_temporality == CUMULATIVE
    return list(metric.exponential_histogram.data_points)


def test_every_metric_is_described_and_has_a_unit() -> None:
    assert set(METRICS) == set(names.METRIC_UNITS)
    for name, metric in METRICS.items():
        assert metric.description, name
        # "1" would become the suffix _ratio in Prometheus.
        assert names.METRIC_UNITS[name] != "1"


def test_no_metric_has_a_step_a_sequence_or_a_trace_among_its_attributes() -> None:
    endless = {names.STEP, names.COLLECTIVE_SEQ, names.JOB_ATTEMPT, names.GROUP_UID, names.MONOTONIC_NS}
    for name, metric in METRICS.items():
        assert not endless & set(metric.attributes), name
        assert not [key for key in metric.attributes if "trace" in key or "seq" in key], name


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_what_its_instrument_says(name: str) -> None:
    instrument = METRICS[name].instrument
    metric = decode(metric_entry(name, [number_point(b"", 2, time_ns=NOW_NS, start_ns=START_NS)]))
    assert (metric.name, metric.unit, metric.description) == (
        name,
        names.METRIC_UNITS[name],
        METRICS[name].description,
    )
    expected = {
        Instrument.GAUGE: ("gauge", None, None),
        Instrument.COUNTER: ("sum", CUMULATIVE, True),
        Instrument.UP_DOWN_COUNTER: ("sum", CUMULATIVE, False),
        Instrument.HISTOGRAM: (
            "exponential_histogram",
            CUMULATIVE,
            None,
        ),
    }[instrument]
    kind = metric.WhichOneof("data")
    assert kind is not None
    data = getattr(metric, kind)
    assert (kind, getattr(data, "aggregation_temporality", None), getattr(data, "is_monotonic", None)) == expected


@given(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False)))
def test_numbers_arrive_as_they_were(value: float) -> None:
    attributes = number_attributes({names.JOB_ID: "job-7", names.RANK: 3, names.WORLD: ""})
    points = [number_point(attributes, value, time_ns=NOW_NS, start_ns=START_NS), number_point(b"", 1, time_ns=NOW_NS)]
    counter, gauge = decode(metric_entry(names.METRIC_RANK_WAIT, points)).sum.data_points
    assert plain(counter) == {"whichrank.job.id": "job-7", "whichrank.rank": 3}
    found = counter.as_int if isinstance(value, int) else counter.as_double
    assert (found, counter.start_time_unix_nano, counter.time_unix_nano) == (value, START_NS, NOW_NS)
    assert (gauge.as_int, gauge.start_time_unix_nano) == (1, 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(1e-6, 1e5)), min_size=1, max_size=60))
def test_a_histogram_is_the_sdks(told: list[tuple[int, float]]) -> None:
    table = HistogramTable(10)
    rows = [table.series(number, histogram_attributes({names.RANK: number}), START_NS) for number in range(3)]
    for part in (told[::2], told[1::2]):  # in any portions
        table.record(np.array([rows[number] for number, _ in part], np.intp), np.array([value for _, value in part]))
    mapping = LogarithmMapping(SCALE)
    for number, point in enumerate(points_of(table)):
        values = [value for told_number, value in told if told_number == number]
        assert plain(point) == {"whichrank.rank": number}
        assert (point.count, point.zero_count, point.scale) == (len(values), 0, SCALE)
        assert point.sum == pytest.approx(sum(values))
        assert (point.start_time_unix_nano, point.time_unix_nano) == (START_NS, NOW_NS)
        found = {point.positive.offset + place: n for place, n in enumerate(point.positive.bucket_counts) if n}
        # On a bound itself the two may round to different sides.
        exact = np.array(sorted(mapping.map_to_index(value) for value in values))
        ours = np.array(sorted(index for index, n in found.items() for _ in range(n)))
        assert len(ours) == len(exact)
        bounds = np.array(sorted(values)) * np.exp2(np.array([[-1e-9], [1e-9]]))
        low, high = ([mapping.map_to_index(value) for value in side] for side in bounds)
        assert all((ours >= low) & (ours <= high))


def test_zero_and_what_is_out_of_range_are_counted() -> None:
    table = HistogramTable(10)
    row = table.series("a", b"", START_NS)
    table.record(np.full(4, row, np.intp), np.array([0.0, -1.0, 1e-12, 1e12]))
    (point,) = points_of(table)
    assert (point.count, point.zero_count, sum(point.positive.bucket_counts)) == (4, 2, 2)
    assert len(point.positive.bucket_counts) == 37 * 8


def test_counts_go_on_from_report_to_report() -> None:
    table = HistogramTable(10)
    row = table.series("a", b"", START_NS)
    for expected in (1, 2, 3):
        table.record(np.array([row], np.intp), np.array([0.5]))
        (point,) = points_of(table)
        assert (point.count, point.start_time_unix_nano) == (expected, START_NS)


def test_a_series_that_ended_is_told_once_more_and_begins_anew() -> None:
    table = HistogramTable(2)
    rows = [table.series(key, histogram_attributes({names.RANK: key}), START_NS) for key in (0, 1)]
    table.record(np.array(rows, np.intp), np.array([0.5, 0.25]))
    assert table.series(2, b"", START_NS) == -1, "bounded"
    table.record(np.array([-1], np.intp), np.array([0.5]))
    table.end(0)
    assert len(points_of(table)) == 2
    assert [plain(point) for point in points_of(table)] == [{"whichrank.rank": 1}]
    again = table.series(0, histogram_attributes({names.RANK: 0}), NOW_NS)
    table.record(np.array([again], np.intp), np.array([4.0]))
    first = next(point for point in points_of(table) if plain(point)["whichrank.rank"] == 0)
    assert (first.count, first.sum, first.start_time_unix_nano) == (1, 4.0, NOW_NS)


def test_a_series_that_goes_on_before_it_was_told_to_have_ended_is_the_same() -> None:
    table = HistogramTable(2)
    row = table.series("a", b"", START_NS)
    table.record(np.array([row], np.intp), np.array([0.5]))
    table.end("a")
    assert table.known("a") is None
    assert table.series("a", b"", NOW_NS) == row
    assert table.known("a") == row
    for _ in range(2):
        (point,) = points_of(table)
        assert (point.count, point.start_time_unix_nano) == (1, START_NS)


def test_many_series_keep_their_own_counts() -> None:
    table = HistogramTable(500)
    rows = np.array([table.series(key, histogram_attributes({names.RANK: key}), START_NS) for key in range(500)])
    for value in (0.001, 1.0):
        table.record(rows, np.full(500, value))
    points = points_of(table)
    assert sorted(plain(point)["whichrank.rank"] for point in points) == list(range(500))
    assert {(point.count, point.sum) for point in points} == {(2, 1.001)}
