"""What ``whichrank process`` tells people: spans, metrics and events, on the topics that a collector reads.

Beside the work: what Kafka does not take at once is dropped and counted, and what goes wrong here costs no incident.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable

from ...processors.cluster.case_row import published_documents
from ...processors.cluster.charged_accounts import Account, told_accounts
from ...processors.observability_export.processor_export import PipelineCounts, ProcessorExporter
from ...processors.runner import EmbeddedRunner
from ...processors.runner_service import Role, ServiceHealth
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.records import Record
from ...transport.kafka_client import Client, KafkaTrouble, Producer, Sent

#: After a failure so long passes before a connection is tried again.
RETRY_S = 30.0
#: A job's seconds are told until so long after its last one.
ACCOUNTS_TOLD_NS = 3_600_000_000_000


class ObservabilityFeed:
    """One thread calls everything."""

    def __init__(self, client: Client, *, cluster: str, instance: str) -> None:
        self._client = client
        self._people = ProcessorExporter(
            cluster=cluster, instance=instance, node=socket.gethostname(), started_ns=time.time_ns()
        )
        self._producer: Producer | None = None
        self._retry_at_s = 0.0
        self._leads = False
        self._is_refused = False
        #: Messages that Kafka did not take.
        self.dropped = 0

    def see(self, record: Record) -> None:
        """Takes in a record, before it is judged, for spans and metrics."""
        self._people.see(record.payload, record.stamp_ns)

    def incident(self, incident: IncidentDocument, stamp_ns: int) -> None:
        """Takes in a revision that is published. stamp_ns: Unix."""
        self._people.incident(incident, stamp_ns, time.time_ns())

    def turn(self, role: Role, runner: EmbeddedRunner, health: Callable[[], ServiceHealth]) -> None:
        """Publishes what is due.

        Of incidents only the leader tells, from its state: what is open goes on being told.
        """
        if (role is Role.LEADER) != self._leads:
            self._leads = not self._leads
            if self._leads:
                self._people.lead(published_documents(runner.rows("cluster", "incidents")), time.time_ns())
            else:
                self._people.follow()
        now_ns = time.time_ns()

        def accounts() -> Iterable[tuple[str, Account]]:
            rows = runner.rows("cluster", "accounts") if self._leads else ()
            return told_accounts(rows, now_ns - ACCOUNTS_TOLD_NS)

        for told in self._people.take(now_ns, lambda: self._counts(health()), accounts):
            producer = self._connected()
            if producer is None:
                self.dropped += 1
                continue
            try:
                producer.send(told.topic, told.key.encode(), told.value, on_done=self._on_done)
            except KafkaTrouble:
                self.dropped += 1
                self._disconnect()
        if self._producer is not None:
            self._producer.poll()
        if self._is_refused:  # a client that was refused once may go on being refused: a new one follows
            self._is_refused = False
            self._disconnect()

    def close(self) -> None:
        """Waits some seconds for Kafka to take the rest."""
        if self._producer is not None:
            self._producer.flush(1.0)
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
            self._is_refused = True

    def _counts(self, health: ServiceHealth) -> PipelineCounts:
        is_behind = health.role is not Role.STANDBY
        times = os.times()
        return PipelineCounts(
            lag_s=health.lag_s if is_behind else None,
            records_in=health.records,
            records_out=health.published,
            decode_errors=health.unreadable,
            dead_letters=health.unreadable + health.contained,
            state_rows=health.rows,
            timers_late_s=health.timers_late_s,
            cpu_s=times.user + times.system,
            unpublished=self.dropped,
        )
