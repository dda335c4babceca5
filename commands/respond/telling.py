"""Acts and refusals as OpenTelemetry events on the topic of logs. Beside the work: what is not taken is counted."""

from __future__ import annotations

import socket
import time

from ...telemetry import attributes as names
from ...telemetry.otlp_wire import RequestBuilder
from ...telemetry.response_events import response_event, response_resource
from ...telemetry.topics import TOPIC_LOGS
from ...transport.kafka_client import Client, KafkaTrouble, Producer, Sent
from ..incident_service.audit import AuditLine

RETRY_S = 30.0
_REQUEST_BYTES = 256 << 10


class EventFeed:
    """One thread calls everything."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        # The logs topic is an input of the processors: they pass over what is only told.
        self._events = RequestBuilder(names.SCOPE_NAME, _REQUEST_BYTES, {names.COPY: True})
        self._resource = response_resource(cluster, socket.gethostname())
        self._producer: Producer | None = None
        self._retry_at_s = 0.0
        #: Requests that Kafka did not take.
        self.dropped = 0

    def tell(self, told: AuditLine) -> None:
        """Queues a line of the audit file as an event; ``turn`` sends it."""
        self._events.add(self._resource, [response_event(told.written())])

    def turn(self) -> None:
        """Sends what was told; what Kafka does not take is counted as dropped."""
        for request in self._events.take():
            producer = self._connected()
            if producer is None:
                self.dropped += 1
                continue
            try:
                producer.send(TOPIC_LOGS, b"", request, on_done=self._on_done)
            except KafkaTrouble:
                self.dropped += 1
                self._disconnect()
        if self._producer is not None:
            self._producer.poll()

    def close(self) -> None:
        """Sends the rest, and waits some seconds for Kafka to take it."""
        self.turn()
        if self._producer is not None:
            self._producer.flush(5.0)
            self._disconnect()

    def _connected(self) -> Producer | None:
        if self._producer is None and time.monotonic() >= self._retry_at_s:
            try:
                self._producer = self._client.producer()
            except KafkaTrouble:
                self._retry_at_s = time.monotonic() + RETRY_S
        return self._producer

    def _disconnect(self) -> None:
        if self._producer is not None:
            self._producer.close(0.5)
            self._producer = None
        self._retry_at_s = time.monotonic() + RETRY_S

    def _on_done(self, sent: Sent | None, trouble: KafkaTrouble | None) -> None:
        """In the client's thread; a count that loses one of two at the same moment does no harm."""
        if trouble is not None:
            self.dropped += 1
