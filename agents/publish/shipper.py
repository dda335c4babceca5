"""Blocks and events onto the bus: encoding, size limits, and what happens when the bus refuses.

Called by the polling thread. Order is kept; a refused message (disk full) is counted and dropped, because nothing
downstream may ever slow the reading of rings. The embedded bus gets a flush in as few messages as possible. The way to
Kafka may have to give up the less important, so there a message holds records of one priority: a flush becomes its
definitions, its collectives, its rows of steps and progress, and what went wrong, in this order. Of a large job it is
one message all the same: who reads them pays for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...telemetry.otlp import encode_batches
from ...telemetry.packed_flush import Packing, TaughtList
from ...telemetry.records import Block, Event
from ...transport.bus import TOPIC_BLOCKS, TOPIC_LOGS
from ..base.health import AgentHealth
from ..base.priority import Priority, priority_of, runs_of_one_priority
from ..privacy.redaction_filter import Publish, PublishRanked, RedactionFilter


class Shipper:
    def __init__(
        self,
        publish: Publish | None,
        job: str,
        health: AgentHealth,
        request_bytes: int,
        publish_ranked: PublishRanked | None = None,
    ) -> None:
        """Both ways get everything, through the gate."""
        gate = RedactionFilter(health.drop)
        self._publish = None if publish is None else gate.publish(publish)
        self._publish_ranked = None if publish_ranked is None else gate.publish_ranked(publish_ranked)
        self._job = job
        self._health = health
        self._request_bytes = request_bytes

    def ship(
        self, payloads: Sequence[Block | Event], packing: Packing = Packing.NONE, lists: set[TaughtList] | None = None
    ) -> None:
        """Publishes in order on the blocks topic, and a copy of the events on the logs topic, for people.

        packing, lists: of blocks on the way to Kafka (``encode_payloads``); where they are packed all go in one message
        whatever their priorities are, kept as long as the most important of them.
        """
        if not payloads:
            return
        events = [payload for payload in payloads if isinstance(payload, Event)]
        if self._publish is not None:
            self._send(self._publish, TOPIC_BLOCKS, payloads)
            self._send(self._publish, TOPIC_LOGS, events, is_copy=True)
        if self._publish_ranked is not None:
            is_whole = packing is not Packing.NONE
            runs = [(min(map(priority_of, payloads)), payloads)] if is_whole else runs_of_one_priority(payloads)
            for priority, run in runs:
                self._send(_ranked(self._publish_ranked, priority), TOPIC_BLOCKS, run, packing=packing, lists=lists)
            self._send(_ranked(self._publish_ranked, Priority.COPIES), TOPIC_LOGS, events, is_copy=True)
        self._health.records_sent += len(payloads)
        self._health.blocks_sent += len(payloads) - len(events)

    def send_to_people(self, topic: str, value: bytes) -> None:
        """Publishes an encoded request of spans or metrics, at the priority that is given up first."""
        if self._publish_ranked is not None:
            self._send_one(_ranked(self._publish_ranked, Priority.COPIES), topic, value)
        elif self._publish is not None:
            self._send_one(self._publish, topic, value)

    def send_evidence(self, value: bytes) -> None:
        """Publishes an encoded piece of evidence on the logs topic, at the priority that is given up last."""
        if self._publish_ranked is not None:
            self._send_one(_ranked(self._publish_ranked, Priority.EVIDENCE), TOPIC_LOGS, value)
        elif self._publish is not None:
            self._send_one(self._publish, TOPIC_LOGS, value)

    def _send(
        self,
        publish: Publish,
        topic: str,
        payloads: Iterable[Block | Event],
        *,
        is_copy: bool = False,
        packing: Packing = Packing.NONE,
        lists: set[TaughtList] | None = None,
    ) -> None:
        for value in encode_batches(payloads, self._request_bytes, is_copy=is_copy, packing=packing, lists=lists):
            self._send_one(publish, topic, value)

    def _send_one(self, publish: Publish, topic: str, value: bytes) -> None:
        try:
            publish(topic, self._job, value)
        except OSError as error:
            self._health.drop("publish_refused")
            self._health.drop("publish_refused_bytes", len(value))
            self._health.report(f"bus refused a message on {topic}: {error.strerror or error}")
        else:
            self._health.bytes_sent += len(value)


def _ranked(publish: PublishRanked, priority: Priority) -> Publish:
    return lambda topic, key, value: publish(topic, key, value, priority)
