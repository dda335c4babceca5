"""Blocks and events onto the bus: encoding, size limits, and what happens when the bus refuses.

Called by the polling thread. Order is kept; a refused message (disk full) is counted and dropped, because nothing
downstream may ever slow the reading of rings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..telemetry.otlp import encode_batches
from ..telemetry.records import Block, Event
from ..transport.bus import TOPIC_BLOCKS, TOPIC_LOGS
from .health import AgentHealth

Publish = Callable[[str, str, bytes], None]


class Shipper:
    def __init__(self, publish: Publish, job: str, health: AgentHealth, request_bytes: int) -> None:
        self._publish = publish
        self._job = job
        self._health = health
        self._request_bytes = request_bytes

    def ship(self, payloads: Sequence[Block | Event]) -> None:
        """Publish in order on the blocks topic; events once more on the logs topic, for people."""
        if not payloads:
            return
        self._send(TOPIC_BLOCKS, payloads)
        events = [payload for payload in payloads if isinstance(payload, Event)]
        if events:
            self._send(TOPIC_LOGS, events)

    def _send(self, topic: str, payloads: Sequence[Block | Event]) -> None:
        for value in encode_batches(payloads, self._request_bytes):
            try:
                self._publish(topic, self._job, value)
            except OSError as error:
                self._health.drop("publish_refused")
                self._health.drop("publish_refused_bytes", len(value))
                self._health.report(f"bus refused a message on {topic}: {error.strerror or error}")
                continue
            self._health.bytes_sent += len(value)
        if topic == TOPIC_BLOCKS:
            self._health.records_sent += len(payloads)
            self._health.blocks_sent += sum(isinstance(payload, Block) for payload in payloads)
