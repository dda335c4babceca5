"""Metrics read back with the official protobuf classes."""

from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from whichrank.telemetry import attributes as names
from whichrank.telemetry import metrics
from whichrank.telemetry.metrics import DURATION_BOUNDS_S, DurationHistogram, JobMetrics
from whichrank.telemetry.records import Block, Group, Identity
from whichrank.telemetry.tables import COLLECTIVES, PROGRESS, STEPS
from whichrank.telemetry.vocabulary import EventName, Op, Phase

IDENTITY = Identity(cluster="c", job="j", attempt="a", node="n")


def read(value: bytes) -> dict[str, Metric]:
    (resource_metrics,) = ExportMetricsServiceRequest.FromString(value).resource_metrics
    return {metric.name: metric for metric in resource_metrics.scope_metrics[0].metrics}


def steps_block() -> Block:
    rows = np.zeros(4, STEPS)
    rows["rank"] = [0, 0, 1, 1]
    rows["begin_ns"] = 10**9
    rows["end_ns"] = 10**9 + np.array([100, 120, 200, 200]) * 10**6
    rows["phase_ns"][:, Phase.FORWARD] = 30 * 10**6
    return Block(name=EventName.BLOCK_STEPS, identity=IDENTITY, rows=rows)


def test_steps_become_histograms_counts_and_pace() -> None:
    job = JobMetrics(IDENTITY, start_ns=5)
    job.observe(steps_block())
    found = read(job.encode(now_ns=9))
    metric = found[names.METRIC_STEP_DURATION]
    (point,) = metric.histogram.data_points
    assert metric.unit == "s"
    assert metric.histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert (point.count, round(point.sum, 6), point.min, point.max) == (4, 0.62, 0.1, 0.2)
    assert (point.start_time_unix_nano, point.time_unix_nano) == (5, 9)
    by_bound = dict(zip([*point.explicit_bounds, np.inf], point.bucket_counts, strict=True))
    assert {bound: n for bound, n in by_bound.items() if n} == {0.1: 1, 0.2: 3}
    (phase,) = found[names.METRIC_PHASE_DURATION].histogram.data_points
    assert [(pair.key, pair.value.string_value) for pair in phase.attributes] == [(names.PHASE, "forward")]
    pace = {p.attributes[0].value.int_value: p.as_double for p in found[names.METRIC_RANK_PACE].gauge.data_points}
    assert pace == pytest.approx({0: 1 / 0.11, 1: 5.0})
    job.observe(steps_block())
    counts = read(job.encode(now_ns=10))[names.METRIC_STEPS].sum
    assert counts.is_monotonic
    assert [point.as_int for point in counts.data_points] == [4, 4]


def test_collectives_are_timed_by_the_device_where_it_tells() -> None:
    rows = np.zeros(3, COLLECTIVES)
    rows["op"], rows["bytes"] = [Op.ALL_REDUCE, Op.ALL_REDUCE, Op.BROADCAST], 1000
    rows["enqueued_ns"] = 10**9
    rows["started_ns"] = [0, 10**9 + 50 * 10**6, 0]
    rows["done_ns"] = [10**9 + 70 * 10**6, 10**9 + 70 * 10**6, 0]  # the last is still open
    job = JobMetrics(IDENTITY, start_ns=0)
    group = Group(uid="u", name="dp")
    job.observe(Block(name=EventName.BLOCK_COLLECTIVES, identity=IDENTITY, rows=rows, groups=(group,)))
    found = read(job.encode(now_ns=1))
    (point,) = found[names.METRIC_COLLECTIVE_DURATION].histogram.data_points
    assert (point.count, round(point.sum, 6)) == (2, 0.09)
    assert {pair.key: pair.value.string_value for pair in point.attributes} == {
        names.COLLECTIVE_OP: "all_reduce",
        names.GROUP_NAME: "dp",
    }
    (moved,) = found[names.METRIC_COLLECTIVE_BYTES].sum.data_points
    assert moved.as_int == 2000


def test_incidents_that_closed_read_zero_not_their_last_number() -> None:
    job = JobMetrics(IDENTITY, start_ns=0)
    job.set_active_incidents({("communication_hang", "rank_stopped", "page"): 1})
    job.set_active_incidents({})
    metric = read(job.encode(now_ns=1))[names.METRIC_INCIDENT_ACTIVE]
    assert not metric.sum.is_monotonic
    assert [point.as_int for point in metric.sum.data_points] == [0]


def test_progress_gives_age_and_overhead_only_where_known() -> None:
    rows = np.zeros(2, PROGRESS)
    rows["rank"], rows["heartbeat_age_ns"], rows["own_cost_ns"] = [0, 1], [5 * 10**8, -1], [10**7, -1]
    job = JobMetrics(IDENTITY, start_ns=0)
    job.observe(Block(name=EventName.BLOCK_PROGRESS, identity=IDENTITY, rows=rows))
    found = read(job.encode(now_ns=1))
    assert [point.as_double for point in found[names.METRIC_HEARTBEAT_AGE].gauge.data_points] == [0.5]
    assert [point.as_double for point in found[names.METRIC_OVERHEAD].sum.data_points] == [0.01]


def test_no_attribute_is_a_step_or_a_sequence_number() -> None:
    job = JobMetrics(IDENTITY, start_ns=0)
    job.observe(steps_block())
    assert b"whichrank.step\x12" not in job.encode(now_ns=1)


def test_series_are_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SERIES", 1)
    job = JobMetrics(IDENTITY, start_ns=0)
    job.observe(steps_block())
    assert len(read(job.encode(now_ns=1))[names.METRIC_RANK_PACE].gauge.data_points) == 1
    assert job.series_dropped > 0


def test_a_value_on_a_bound_belongs_to_the_bucket_that_ends_there() -> None:
    histogram = DurationHistogram()
    histogram.observe(np.array(DURATION_BOUNDS_S))
    histogram.observe(np.array([1e9, 0.0]))
    assert histogram.counts.tolist() == [2, *[1] * len(DURATION_BOUNDS_S)]
    assert list(DURATION_BOUNDS_S) == sorted(set(DURATION_BOUNDS_S))
