"""Topics on the shared broker, under a prefix per name: where tests open KafkaLogs, and see what was published."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.stack.parts.kafka import Kafka
from whichrank.telemetry.topics import (
    TOPIC_BLOCKS,
    TOPIC_CLOCK,
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_REQUESTS,
)
from whichrank.transport.bus import Bus
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import Client, KafkaTrouble, Producer, TopicFacts
from whichrank.transport.kafka_log import KafkaLog
from whichrank.transport.kafka_read import read_whole
from whichrank.transport.kafka_settings import KafkaSettings
from whichrank.transport.kafka_topics import APPEND_TIME

INPUTS = {TOPIC_BLOCKS: 4, TOPIC_LOGS: 2}
OTHERS = {TOPIC_CLOCK: 1, TOPIC_INCIDENTS: 1, TOPIC_FINDINGS: 1, TOPIC_REQUESTS: 1, TOPIC_DLQ: 1}
ANSWER_S = 30.0


class KafkaRoom:
    """Topics under a prefix per name, on the shared broker."""

    def __init__(self, kafka: Kafka, prefix: str, client: str) -> None:
        self._settings = kafka.settings(client=client)
        self._prefix = prefix
        self._made: set[str] = set()
        self._producers: dict[str, Producer] = {}
        self._logs: dict[int, str] = {}
        self._opened = 0
        #: By topic: what it takes at most, where not a MiB. Before the topics are made.
        self.largest_bytes: dict[str, int] = {}

    def open(self, name: str) -> Bus:
        log = self.follow(name)
        log.claim()
        return log

    def follow(self, name: str, instance: str = "", report: Callable[[str], None] = lambda line: None) -> KafkaLog:
        """One that proposes nothing."""
        self.make(name)
        self._opened += 1
        log = KafkaLog(
            self.client(name),
            list(INPUTS),
            instance=instance or f"instance {self._opened}",
            transactional_id="processors",
            identity=f"{self._prefix}{name}",
            report=report,
        )
        self._logs[id(log)] = name
        return log

    def append(self, bus: Bus, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> None:
        self.send(self._logs[id(bus)], topic, key, value, headers)

    def send(self, name: str, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> None:
        answered = threading.Event()
        troubles: list[KafkaTrouble] = []

        def done(sent: object, trouble: KafkaTrouble | None) -> None:
            troubles.extend([trouble] if trouble else [])
            answered.set()

        producer = self.producer(name)
        producer.send(topic, key.encode(), value, headers, done)
        producer.flush(ANSWER_S)
        assert answered.wait(ANSWER_S)
        assert not troubles

    def settings(self, name: str) -> KafkaSettings:
        return replace(self._settings, topic_prefix=f"{self._prefix}{name}.")

    def client(self, name: str) -> Client:
        return make_client(self.settings(name))

    def make(self, name: str) -> None:
        """The topics, unless they are there."""
        if name not in self._made:
            self._make_topics(name)

    def producer(self, name: str) -> Producer:
        if name not in self._producers:
            self._producers[name] = self.client(name).producer()
        return self._producers[name]

    def consume(self, name: str, topic: str) -> list[bytes]:
        """All committed values of a topic."""
        return [message.value for message in read_whole(self.client(name), topic, within_s=ANSWER_S)]

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close(1.0)

    def _make_topics(self, name: str) -> None:
        admin = self.client(name).admin()
        for topic, partitions in {**INPUTS, **OTHERS}.items():
            largest = self.largest_bytes.get(topic, 1 << 20)
            configuration = {"message.timestamp.type": APPEND_TIME, "max.message.bytes": str(largest)}
            admin.create(TopicFacts(name=topic, partitions=partitions, replication=1, configuration=configuration))
        deadline = time.monotonic() + ANSWER_S
        while len(admin.describe([*INPUTS, *OTHERS])) < len(INPUTS) + len(OTHERS):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        admin.close()
        self._made.add(name)
        self.producer(name)
