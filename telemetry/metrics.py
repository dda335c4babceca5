"""Metrics of steps, collectives, ranks and incidents: accumulated from rows, written as OTLP.

``JobMetrics`` is fed blocks and asked now and then for one ExportMetricsServiceRequest; histograms are cumulative with
bounds of our own, because the usual ones end at 10 s and know nothing below 5 ms. Attributes are ranks, phases, groups
and operations, never a step or a sequence number. No clock and no thread: times come with the blocks and the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, ScopeMetrics

from . import attributes as names
from .otlp import build_resource
from .records import Block, Identity
from .vocabulary import EventName, Op, Phase

#: Upper bounds in seconds, three a decade from 10 µs to 1000 s.
DURATION_BOUNDS_S: tuple[float, ...] = (
    *(round(base * 10.0**exponent, 9) for exponent in range(-5, 3) for base in (1.0, 2.0, 5.0)),
    1000.0,
)
#: Series of one metric kept at most; what comes beyond is counted in ``JobMetrics.series_dropped``.
MAX_SERIES = 2000

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_BOUNDS = np.array(DURATION_BOUNDS_S)
_MAX_INT64 = (1 << 63) - 1

SeriesKey = tuple[tuple[str, str | int], ...]


class DurationHistogram:
    """Counts per bucket, sum, least and most of durations in seconds."""

    __slots__ = ("counts", "least", "most", "total")

    def __init__(self) -> None:
        self.counts = np.zeros(len(DURATION_BOUNDS_S) + 1, np.int64)
        self.total = 0.0
        self.least = float("inf")
        self.most = 0.0

    def observe(self, durations_s: np.ndarray) -> None:
        """Add durations; a value equal to a bound falls in the bucket that the bound ends (OTLP's rule)."""
        if len(durations_s):
            self.counts += np.bincount(np.searchsorted(_BOUNDS, durations_s, side="left"), minlength=len(self.counts))
            self.total += float(durations_s.sum())
            self.least = min(self.least, float(durations_s.min()))
            self.most = max(self.most, float(durations_s.max()))


class JobMetrics:
    """Metrics of one job and attempt."""

    def __init__(self, identity: Identity, start_ns: int) -> None:
        """``start_ns``: Unix time from which the cumulative values count."""
        self._identity = identity
        self._start_ns = start_ns
        self._steps: dict[SeriesKey, DurationHistogram] = {}
        self._phases: dict[SeriesKey, DurationHistogram] = {}
        self._collectives: dict[SeriesKey, DurationHistogram] = {}
        self._bytes: dict[SeriesKey, int] = {}
        self._step_counts: dict[SeriesKey, int] = {}
        self._step_times_s: dict[SeriesKey, float] = {}
        self._heartbeat_ages_s: dict[SeriesKey, float] = {}
        self._overhead_s: dict[SeriesKey, float] = {}
        self._incidents: dict[SeriesKey, int] = {}
        #: Observations that found no room for their series.
        self.series_dropped = 0

    def observe(self, block: Block) -> None:
        """Take in a block of steps, collectives or progress; others are passed over."""
        if not len(block.rows):
            return
        if block.name is EventName.BLOCK_STEPS:
            self._observe_steps(block.rows)
        elif block.name is EventName.BLOCK_COLLECTIVES:
            self._observe_collectives(block)
        elif block.name is EventName.BLOCK_PROGRESS:
            self._observe_progress(block.rows)

    def set_active_incidents(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """Open incidents by (bucket, kind, severity); what is not named is none."""
        for key in self._incidents:
            self._incidents[key] = 0
        for (bucket, kind, severity), count in counts.items():
            key = ((names.INCIDENT_BUCKET, bucket), (names.INCIDENT_KIND, kind), (names.INCIDENT_SEVERITY, severity))
            if self._has_room(self._incidents, key):
                self._incidents[key] = count

    def encode(self, now_ns: int) -> bytes:
        """One serialized ExportMetricsServiceRequest as of the Unix time ``now_ns``."""
        request = ExportMetricsServiceRequest()
        resource_metrics = request.resource_metrics.add()
        resource_metrics.resource.CopyFrom(build_resource(self._identity))
        scope = resource_metrics.scope_metrics.add()
        scope.scope.name = names.SCOPE_NAME
        self._add_histogram(scope, names.METRIC_STEP_DURATION, self._steps, now_ns)
        self._add_histogram(scope, names.METRIC_PHASE_DURATION, self._phases, now_ns)
        self._add_histogram(scope, names.METRIC_COLLECTIVE_DURATION, self._collectives, now_ns)
        self._add_sum(scope, names.METRIC_COLLECTIVE_BYTES, self._bytes, now_ns, monotonic=True)
        self._add_sum(scope, names.METRIC_STEPS, self._step_counts, now_ns, monotonic=True)
        self._add_sum(scope, names.METRIC_OVERHEAD, self._overhead_s, now_ns, monotonic=True)
        self._add_gauge(scope, names.METRIC_RANK_STEP_TIME, self._step_times_s, now_ns)
        pace = {key: 1.0 / seconds for key, seconds in self._step_times_s.items() if seconds > 0}
        self._add_gauge(scope, names.METRIC_RANK_PACE, pace, now_ns)
        self._add_gauge(scope, names.METRIC_HEARTBEAT_AGE, self._heartbeat_ages_s, now_ns)
        self._add_sum(scope, names.METRIC_INCIDENT_ACTIVE, self._incidents, now_ns, monotonic=False)
        return request.SerializeToString()

    # --- observing ---
    def _observe_steps(self, rows: np.ndarray) -> None:
        durations_s = (rows["end_ns"] - rows["begin_ns"]) / 1e9
        self._histogram(self._steps, (), durations_s)
        phases_s = rows["phase_ns"] / 1e9
        for phase in Phase:
            spent_s = phases_s[:, phase]
            if spent_s.any():
                self._histogram(self._phases, ((names.PHASE, phase.name.lower()),), spent_s[spent_s > 0])
        for rank in np.unique(rows["rank"]).tolist():
            own = durations_s[rows["rank"] == rank]
            key: SeriesKey = ((names.RANK, rank),)
            self._set(self._step_times_s, key, float(np.median(own)))
            if self._has_room(self._step_counts, key):
                self._step_counts[key] = self._step_counts.get(key, 0) + len(own)

    def _observe_collectives(self, block: Block) -> None:
        rows = block.rows[block.rows["done_ns"] > 0]
        if not len(rows):
            return
        began = np.where(rows["started_ns"] > 0, rows["started_ns"], rows["enqueued_ns"])
        durations_s = (rows["done_ns"] - began) / 1e9
        sort_of = rows["group"].astype(np.int64) << 8 | rows["op"]
        for sort in np.unique(sort_of).tolist():
            chosen = sort_of == sort
            group, op = block.groups[sort >> 8], sort & 0xFF
            word = Op(op).name.lower() if op <= max(Op) else Op.UNKNOWN.name.lower()
            key: SeriesKey = ((names.COLLECTIVE_OP, word), (names.GROUP_NAME, group.name))
            self._histogram(self._collectives, key, durations_s[chosen])
            if self._has_room(self._bytes, key):
                moved = int(np.maximum(rows["bytes"][chosen], 0).sum())
                self._bytes[key] = min(self._bytes.get(key, 0) + moved, _MAX_INT64)

    def _observe_progress(self, rows: np.ndarray) -> None:
        for rank, age_ns, cost_ns in zip(
            rows["rank"].tolist(), rows["heartbeat_age_ns"].tolist(), rows["own_cost_ns"].tolist(), strict=True
        ):
            key: SeriesKey = ((names.RANK, rank),)
            if age_ns >= 0:
                self._set(self._heartbeat_ages_s, key, age_ns / 1e9)
            if cost_ns >= 0:
                self._set(self._overhead_s, key, cost_ns / 1e9)

    def _histogram(self, series: dict[SeriesKey, DurationHistogram], key: SeriesKey, durations_s: np.ndarray) -> None:
        if self._has_room(series, key):
            series.setdefault(key, DurationHistogram()).observe(np.maximum(durations_s, 0.0))

    def _set(self, series: dict[SeriesKey, float], key: SeriesKey, value: float) -> None:
        if self._has_room(series, key):
            series[key] = value

    def _has_room(self, series: Mapping[SeriesKey, object], key: SeriesKey) -> bool:
        if key in series or len(series) < MAX_SERIES:
            return True
        self.series_dropped += 1
        return False

    # --- encoding ---
    def _add_histogram(
        self, scope: ScopeMetrics, name: str, series: Mapping[SeriesKey, DurationHistogram], now_ns: int
    ) -> None:
        if not series:
            return
        metric = _add_metric(scope, name)
        metric.histogram.aggregation_temporality = _CUMULATIVE
        for key, histogram in series.items():
            point = metric.histogram.data_points.add()
            point.start_time_unix_nano, point.time_unix_nano = self._start_ns, now_ns
            point.count = int(histogram.counts.sum())
            point.sum = histogram.total
            if point.count:
                point.min, point.max = histogram.least, histogram.most
            point.explicit_bounds.extend(DURATION_BOUNDS_S)
            point.bucket_counts.extend(histogram.counts.tolist())
            point.attributes.extend(_attributes(key))

    def _add_sum(
        self,
        scope: ScopeMetrics,
        name: str,
        series: Mapping[SeriesKey, int] | Mapping[SeriesKey, float],
        now_ns: int,
        *,
        monotonic: bool,
    ) -> None:
        if not series:
            return
        metric = _add_metric(scope, name)
        metric.sum.aggregation_temporality = _CUMULATIVE
        metric.sum.is_monotonic = monotonic
        for key, value in series.items():
            point = metric.sum.data_points.add()
            point.start_time_unix_nano, point.time_unix_nano = self._start_ns, now_ns
            if isinstance(value, int):
                point.as_int = value
            else:
                point.as_double = value
            point.attributes.extend(_attributes(key))

    def _add_gauge(self, scope: ScopeMetrics, name: str, series: Mapping[SeriesKey, float], now_ns: int) -> None:
        if not series:
            return
        metric = _add_metric(scope, name)
        for key, value in series.items():
            point = metric.gauge.data_points.add()
            point.time_unix_nano = now_ns
            point.as_double = value
            point.attributes.extend(_attributes(key))


def _add_metric(scope: ScopeMetrics, name: str) -> Metric:
    metric = scope.metrics.add()
    metric.name = name
    metric.unit = names.METRIC_UNITS[name]
    return metric


def _attributes(key: SeriesKey) -> Iterable[KeyValue]:
    for name, value in key:
        pair = KeyValue(key=name)
        if isinstance(value, str):
            pair.value.string_value = value
        else:
            pair.value.int_value = value
        yield pair
