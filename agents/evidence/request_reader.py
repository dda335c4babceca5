"""Requests for evidence from Kafka: those for this node, from now on, never old ones.

A thread that reads the requests topic from its end and hands on what is meant for this node. Kafka may be away, come
late and come back; what was asked meanwhile is old, and nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...telemetry.otlp import decode_logs
from ...telemetry.records import Event
from ...telemetry.topics import TOPIC_REQUESTS
from ...telemetry.vocabulary import EventName
from ...transport.kafka_client import Consumer, KafkaTrouble

logger = logging.getLogger("whichrank.agents")

_POLL_S = 0.5
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0


class RequestReader(threading.Thread):
    """``take`` is called in this thread, with requests whose node is this one."""

    def __init__(
        self,
        connect: Callable[[], Consumer],
        node: str,
        take: Callable[[Event], None],
        *,
        lifetime_s: float,
        report: Callable[[str], None] = logger.warning,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``connect`` makes a consumer, takes as long as it likes and raises KafkaTrouble."""
        super().__init__(name="whichrank-requests", daemon=True)
        self._connect = connect
        self._node = node
        self._take = take
        self._lifetime_ns = int(lifetime_s * 1e9)
        self._report = report
        self._wall_ns = wall_ns
        self._said: set[str] = set()
        self._ended = threading.Event()
        self._retry_s = _FIRST_RETRY_S
        #: Set while the topic is being read.
        self.reads = threading.Event()
        self.taken = 0
        self.too_old = 0

    def run(self) -> None:
        """The thread: reads until ``close``. After an error it says so once per kind and tries again."""
        while not self._ended.is_set():
            try:
                self._read()
            except Exception as error:  # edge: a client library; KafkaTrouble says what to do, anything else is named
                words = str(error) if isinstance(error, KafkaTrouble) else f"{type(error).__name__}: {error}"
                if words not in self._said:
                    self._said.add(words)
                    self._report(f"no requests for evidence are taken: {words}")
            self.reads.clear()
            self._ended.wait(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    def close(self, patience_s: float) -> None:
        """Ends the thread; waits for it no longer than ``patience_s`` seconds."""
        self._ended.set()
        if self.is_alive():
            self.join(patience_s)

    def _read(self) -> None:
        """From the topic's end on, until something breaks."""
        consumer = self._connect()
        try:
            partitions = [(TOPIC_REQUESTS, number) for number in consumer.partitions(TOPIC_REQUESTS)]
            ends = consumer.bounds(partitions)
            consumer.assign({partition: ends[partition][1] for partition in partitions})
            self.reads.set()
            while not self._ended.is_set():
                for message in consumer.poll(_POLL_S):
                    self._retry_s = _FIRST_RETRY_S
                    # Without a node it is for whoever has that rank.
                    if message.key.decode("utf-8", "replace") in ("", self._node):
                        self._hear(message.value, message.stamp_ns)
        finally:
            consumer.close()

    def _hear(self, value: bytes, stamp_ns: int) -> None:
        for payload in decode_logs(TOPIC_REQUESTS, value):
            if not isinstance(payload, Event) or payload.name is not EventName.EVIDENCE_REQUEST:
                continue
            if payload.attributes.get("node") not in (None, "", self._node):
                continue
            if stamp_ns and self._wall_ns() - stamp_ns > self._lifetime_ns:
                self.too_old += 1  # it lay in Kafka while we were cut off
                continue
            self.taken += 1
            self._take(payload)
