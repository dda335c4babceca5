"""Pages of other people's exporters over time, as a Collector brings them: text, OTLP, decoder, entities.

A page is what Prometheus would scrape (text exposition); ``Pages`` makes OTLP of it as the Collector's receiver does,
decodes that as a processor does, and gives the findings of the entity operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from tests.processors.cluster.conftest import START_S, Court
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.operator import Timer
from whichrank.processors.runner_decode import MessageDecoder
from whichrank.telemetry.records import Finding, Record, Samples
from whichrank.telemetry.topics import TOPIC_METRICS

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _EntityState(Court):
    """What a runner gives the operator for one entity."""

    entity = ""

    @property
    def key(self) -> str:
        return self.entity

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)


class Pages:
    """Takes pages in the order of time. said: lines for people, of what is left out."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._decoder = MessageDecoder(load_rules().wanted, self.said.append)
        self._operator = EntityOperator()
        self._entities: dict[str, _EntityState] = {}

    def take(self, instance: str, page: str, at: float) -> Iterator[Finding]:
        """Findings that the page brings about. instance: of the scrape, host:port; at: seconds after START_S."""
        for payload in self._decoder.decode(TOPIC_METRICS, otlp_of(instance, page, at)):
            if not isinstance(payload, Samples):
                raise TypeError(f"a page of {instance} is no metrics")
            record = Record(topic=TOPIC_METRICS, key="", stamp_ns=_ns(at), payload=payload)
            key = self._operator.key_of(record)
            if key is None:
                continue
            state = self._entities.setdefault(key, _EntityState())
            state.entity = key
            yield from self._fire(state, at)
            state.now = _ns(at)
            self._operator.process([record], state)
            yield from _emitted(state)

    def _fire(self, state: _EntityState, at: float) -> Iterator[Finding]:
        while state.timers and min(state.timers.values()) <= _ns(at):
            name = min(state.timers, key=state.timers.__getitem__)
            state.now = state.timers.pop(name)
            self._operator.on_timer(Timer(name, state.now), state)
            yield from _emitted(state)


def otlp_of(instance: str, page: str, at: float) -> bytes:
    """The page as an OTLP message, as the Collector's Prometheus receiver makes it. at: seconds after START_S."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    host, _, port = instance.rpartition(":")
    told = {"service.name": "exporter", "service.instance.id": instance, "server.address": host, "server.port": port}
    resource.resource.attributes.extend(_attributes(told.items()))
    metrics = resource.scope_metrics.add().metrics
    for line in page.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        metric = metrics.add(name=match["name"])
        if match["name"].endswith("_total"):
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            point = metric.sum.data_points.add()
        else:
            point = metric.gauge.data_points.add()
        point.time_unix_nano = _ns(at)
        point.as_double = float(match["value"])
        point.attributes.extend(_attributes(_LABEL.findall(match["labels"] or "")))
    return request.SerializeToString()


def _attributes(pairs: Iterable[tuple[str, str]]) -> Iterator[KeyValue]:
    return (KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in pairs)


def _emitted(state: _EntityState) -> Iterator[Finding]:
    records, state.emitted = state.emitted, []
    for record in records:
        if isinstance(record.payload, Finding):
            yield record.payload


def _ns(at: float) -> int:
    return round((START_S + at) * 1e9)
