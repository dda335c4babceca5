"""Incidents for people: each revision as a log event, a life as a span, and a gauge of what is open.

The gauge of an incident stays at 1 while it is open and goes to 0 for some minutes after its end, since a series that
merely stops is shown as open for minutes. No thread, no I/O, no clock of its own. Bounded: of more incidents than
``max_gauges`` those that ended first are left out first, and that is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...telemetry import attributes as names
from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.incident_events import (
    SpanPlace,
    incident_event,
    incident_resource,
    incident_span,
    is_over,
)
from ...telemetry.incident_writing import write_incident
from ...telemetry.metric_encode import metric_entry, number_attributes, number_point
from ...telemetry.otlp_wire import AttributeValue, RequestBuilder
from ...telemetry.vocabulary import IncidentState

_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Gauge:
    resource: bytes
    attributes: bytes
    start_ns: int
    value: int = 1
    #: Unix time until which a 0 is told; 0: it is open.
    until_ns: int = 0


class IncidentTelemetry:
    """Incidents as telemetry for people. Call ``revision`` for each one, then publish what the ``take_`` methods
    return.
    """

    def __init__(
        self, *, gauges_period_s: float = 10.0, linger_s: float = 300.0, max_gauges: int = 1024, request_bytes: int
    ) -> None:
        self._period_ns = int(gauges_period_s * _SECOND_NS)
        self._linger_ns = int(linger_s * _SECOND_NS)
        self._max_gauges = max_gauges
        self._request_bytes = request_bytes
        # The logs topic is an input of the processors, too: they pass over what they have told themselves.
        self._events = RequestBuilder(names.SCOPE_NAME, request_bytes, {names.COPY: True})
        self._spans = RequestBuilder(names.SCOPE_NAME, request_bytes)
        self._gauges: dict[bytes, _Gauge] = {}  # by attributes
        self._gauge_of: dict[str, bytes] = {}  # the one that is 1, by incident
        self._next_ns = 0
        #: Gauges that were left out because there were too many.
        self.gauges_dropped = 0

    def revision(self, incident: IncidentDocument, bad_step: SpanPlace | None, time_ns: int) -> None:
        """Queues a published revision as a log event, and as a span once it is over; sets its gauge, and makes gauges
        due.

        bad_step: the span it refers to. time_ns: Unix.
        """
        document = write_incident(incident)
        self._events.add(incident_resource(document), [incident_event(document, bad_step)])
        if is_over(document):
            self._spans.add(incident_resource(document), [incident_span(document, bad_step)])
        self.remember(incident, time_ns)
        self._next_ns = 0  # people are told at once

    def remember(self, incident: IncidentDocument, time_ns: int) -> None:
        """Sets the gauge of a revision without telling the revision. time_ns: Unix."""
        open_now = incident.state == IncidentState.OPEN
        attributes = _attributes(incident)
        before = self._gauge_of.get(incident.id)
        if before is not None and (before != attributes or not open_now):
            self._end(self._gauges[before], time_ns)
            del self._gauge_of[incident.id]
        if not open_now:
            return
        gauge = self._gauges.get(attributes)
        if gauge is None:
            gauge = self._gauges[attributes] = _Gauge(incident_resource(write_incident(incident)), attributes, time_ns)
        gauge.value, gauge.until_ns = 1, 0
        self._gauge_of[incident.id] = attributes
        self._keep_within_bounds()

    def forget(self) -> None:
        """Drops all gauges: another instance tells them from now on."""
        self._gauges.clear()
        self._gauge_of.clear()

    def take_events(self) -> list[bytes]:
        """Removes and returns serialized requests for the topic of logs."""
        return self._events.take()

    def take_spans(self) -> list[bytes]:
        """Removes and returns serialized requests for the topic of spans."""
        return self._spans.take()

    def take_metrics(self, time_ns: int) -> list[bytes]:
        """Serialized requests with all gauges for the topic of metrics; [] until they are due again. time_ns: Unix."""
        if time_ns < self._next_ns:
            return []
        self._next_ns = time_ns + self._period_ns
        builder = RequestBuilder(names.SCOPE_NAME, self._request_bytes)
        by_resource: dict[bytes, list[bytes]] = {}
        for key, gauge in list(self._gauges.items()):
            if gauge.until_ns and time_ns > gauge.until_ns:
                del self._gauges[key]
                continue
            point = number_point(gauge.attributes, gauge.value, time_ns=time_ns, start_ns=gauge.start_ns)
            by_resource.setdefault(gauge.resource, []).append(point)
        for resource, points in by_resource.items():
            builder.add(resource, [metric_entry(names.METRIC_INCIDENT_ACTIVE, points)])
        return builder.take()

    def _end(self, gauge: _Gauge, time_ns: int) -> None:
        gauge.value, gauge.until_ns = 0, time_ns + self._linger_ns

    def _keep_within_bounds(self) -> None:
        if len(self._gauges) <= self._max_gauges:
            return
        ended = [key for key, gauge in self._gauges.items() if gauge.until_ns]
        first = min(ended, key=lambda key: self._gauges[key].until_ns) if ended else next(iter(self._gauges))
        del self._gauges[first]
        self._gauge_of = {incident: key for incident, key in self._gauge_of.items() if key != first}
        self.gauges_dropped += 1


def _attributes(incident: IncidentDocument) -> bytes:
    suspect = incident.suspects[0] if incident.suspects else None
    shown: dict[str, AttributeValue | None] = {
        names.CLUSTER_ID: incident.cluster,
        names.JOB_ID: incident.job.id,
        names.INCIDENT_ID: incident.id,
        names.INCIDENT_SEVERITY: word_of(incident.severity),
        names.INCIDENT_BUCKET: word_of(incident.bucket),
        names.INCIDENT_KIND: word_of(incident.kind),
        names.SUSPECT_RANK: suspect.rank if suspect is not None else None,
        names.SUSPECT_NODE: suspect.node if suspect is not None else None,
    }
    return number_attributes(shown)
