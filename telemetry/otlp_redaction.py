"""OTLP requests without the secrets in their texts: spans, metrics and logs, whoever has encoded them.

Looks at every text of a request (names, attributes, bodies) and at nothing else: numbers, times, ids and bodies of
bytes (packed rows, pieces of evidence) stay as they are, and a request without a secret stays the same object. Most
texts are the same in every request, so each is looked at once. Where no text of a request has to change, nothing of it
is made an object (``message_texts``). Not thread-safe: one object for each thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from . import attributes as names
from .message_texts import MessageTexts
from .redaction import REMOVED, is_secret, redact, redact_data
from .topics import TOPIC_METRICS, TOPIC_SPANS

#: Texts that are remembered, and how long they may be: beyond, they are seldom the same twice.
_REMEMBERED, _LONGEST = 8192, 2048
#: Names of ours that sound like a secret's: the token of a launch is the place where its ranks have met.
NO_SECRETS = frozenset({names.wire_name("token")})
#: Number points and their histograms lie in a field that is called after the kind of metric.
_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_TEXTS = {
    TOPIC_SPANS: MessageTexts(ExportTraceServiceRequest.DESCRIPTOR),
    TOPIC_METRICS: MessageTexts(ExportMetricsServiceRequest.DESCRIPTOR),
}
_TEXTS_OF_LOGS = MessageTexts(ExportLogsServiceRequest.DESCRIPTOR)


class UnreadableRequest(ValueError):
    """Not OTLP of that topic: nobody can say what is in it."""


class RequestRedactor:
    def __init__(self, remembered: int = _REMEMBERED) -> None:
        """remembered: texts, at most."""
        self._remembered = remembered
        #: By name ("" of a text by itself) and text: what is left of it; None: all of it.
        self._left: dict[tuple[str, str], str | None] = {}
        self._is_changed = False
        #: Texts that were not known yet.
        self.texts_read = 0

    def redact(self, topic: str, value: bytes) -> bytes:
        """A serialized request of this topic without secrets. Raises UnreadableRequest."""
        try:
            return self._redact(topic, value)
        except DecodeError as error:
            raise UnreadableRequest(f"{len(value)} bytes on {topic} are no OTLP request") from error

    def _redact(self, topic: str, value: bytes) -> bytes:
        texts = _TEXTS.get(topic, _TEXTS_OF_LOGS).of(value)
        if texts is not None and all([self._look(name, text) is None for name, text in texts]):
            return value
        self._is_changed = False
        if topic == TOPIC_SPANS:
            traces = ExportTraceServiceRequest.FromString(value)
            self._spans(traces)
            return traces.SerializeToString() if self._is_changed else value
        if topic == TOPIC_METRICS:
            metrics = ExportMetricsServiceRequest.FromString(value)
            self._metrics(metrics)
            return metrics.SerializeToString() if self._is_changed else value
        logs = ExportLogsServiceRequest.FromString(value)
        self._logs(logs)
        return logs.SerializeToString() if self._is_changed else value

    def text(self, text: str) -> str:
        """A text by itself, as the key of a message is, without secrets."""
        left = self._look("", text)
        return text if left is None else left

    # --- the three signals --------------------------------------------------------------------------------------------
    def _logs(self, request: ExportLogsServiceRequest) -> None:
        for part in request.resource_logs:
            self._pairs(part.resource.attributes)
            for scope in part.scope_logs:
                self._scope(scope.scope)
                for record in scope.log_records:
                    self._field(record, "event_name")
                    self._field(record, "severity_text")
                    self._pairs(record.attributes)
                    self._value("", record.body)

    def _spans(self, request: ExportTraceServiceRequest) -> None:
        for part in request.resource_spans:
            self._pairs(part.resource.attributes)
            for scope in part.scope_spans:
                self._scope(scope.scope)
                for span in scope.spans:
                    self._field(span, "name")
                    self._field(span, "trace_state")
                    self._field(span.status, "message")
                    self._pairs(span.attributes)
                    for event in span.events:
                        self._field(event, "name")
                        self._pairs(event.attributes)
                    for link in span.links:
                        self._field(link, "trace_state")
                        self._pairs(link.attributes)

    def _metrics(self, request: ExportMetricsServiceRequest) -> None:
        for part in request.resource_metrics:
            self._pairs(part.resource.attributes)
            for scope in part.scope_metrics:
                self._scope(scope.scope)
                for metric in scope.metrics:
                    for field in ("name", "description", "unit"):
                        self._field(metric, field)
                    self._pairs(metric.metadata)
                    kind = metric.WhichOneof("data")
                    if kind in _KINDS:
                        for point in getattr(metric, kind).data_points:
                            self._pairs(point.attributes)
                            for exemplar in getattr(point, "exemplars", ()):
                                self._pairs(exemplar.filtered_attributes)

    # --- texts --------------------------------------------------------------------------------------------------------
    def _scope(self, scope: Any) -> None:
        self._field(scope, "name")
        self._field(scope, "version")
        self._pairs(scope.attributes)

    def _field(self, holder: Any, field: str) -> None:
        text = getattr(holder, field)
        if text and (left := self._look("", text)) is not None:
            setattr(holder, field, left)
            self._is_changed = True

    def _pairs(self, pairs: Iterable[KeyValue]) -> None:
        for pair in pairs:
            self._value(pair.key, pair.value)
            if (left := self._look("", pair.key)) is not None:
                pair.key = left
                self._is_changed = True

    def _value(self, name: str, value: AnyValue) -> None:
        kind = value.WhichOneof("value")
        if kind == "string_value":
            if (left := self._look(name, value.string_value)) is not None:
                value.string_value = left
                self._is_changed = True
        elif kind == "array_value":
            for item in value.array_value.values:
                self._value(name, item)
        elif kind == "kvlist_value":
            self._pairs(value.kvlist_value.values)

    def _look(self, name: str, text: str) -> str | None:
        """What is left of a text that stands under a name; None: all of it."""
        key = (name, text)
        try:
            return self._left[key]
        except KeyError:
            left = _redact_value(name, text)
            self.texts_read += 1
        found = None if left == text else left
        if len(text) <= _LONGEST:
            if len(self._left) >= self._remembered:  # jobs and ranks come and go: start over rather than grow
                self._left.clear()
            self._left[key] = found
        return found


def _redact_value(name: str, text: str) -> str:
    if name == names.BLOCK_GROUPS:
        return _in_json(text, redact_data)
    if name and name not in NO_SECRETS and is_secret(names.short_name(name), text):
        return REMOVED
    return redact(text)


def _in_json(text: str, clean: Callable[[Any], Any]) -> str:
    """Programs read this: it stays JSON."""
    try:
        return json.dumps(clean(json.loads(text)), separators=(",", ":"))
    except (ValueError, RecursionError):
        return redact(text)
