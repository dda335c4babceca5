"""Simulated jobs on a real broker, faster than life: each message with the stamp that the simulation gives it.

Topics are made with the producer's stamps (``CreateTime``), and beats are written here, at the simulation's time, so
that a minute of jobs takes seconds, and the embedded twin judges the same messages in the same order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kafka import KafkaProducer  # our own producer leaves stamps to the broker

from tests.same_incidents.facts import facts_of, first_difference
from tests.stack.parts.kafka import Kafka
from whichrank.evaluation.simulate.judge import Judge, MemoryBus, encoded
from whichrank.simulator.clock import START_UNIX_NS, ns
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_INCIDENTS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import Client, Fetched, KafkaTrouble
from whichrank.transport.kafka_read import read_whole
from whichrank.transport.kafka_settings import KafkaSettings
from whichrank.transport.kafka_topics import TOPICS
from whichrank.transport.kafka_topics import facts_of as topic_facts
from whichrank.transport.partition_keys import murmur2

INPUTS = (TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS)
BEAT_MS = 250
#: After the last message beats go on for so long: what is held back by timers is told, then time stands still.
AFTER_MS = 12_000
PARTITIONS = 4
#: A broker answers within so long, on a machine with others at work.
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as the broker has it; at_ms: Unix. names: put into ``told`` when it is read: many jobs of one
    recorded world are kept once."""

    at_ms: int
    topic: str
    partition: int
    key: bytes
    told: bytes
    names: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def value(self) -> bytes:
        return _renamed(self.told, self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedJob:
    """One simulated world. number: tells it from others of the same scenario. after_s: when it begins."""

    scenario: str
    ranks: int
    seed: int = 3
    number: int = 0
    after_s: float = 0.0


_recorded: dict[tuple[str, int, int], list[tuple[float, str, str, bytes]]] = {}


def recorded(job: FedJob) -> list[tuple[float, str, str, bytes]]:
    """(seconds, topic, key, value) of the world's messages; simulated once per process."""
    known = (job.scenario, job.ranks, job.seed)
    if known not in _recorded:
        scenario = SCENARIOS[job.scenario]
        world = scenario.build(job.ranks, job.seed)
        _recorded[known] = [
            (message.at_s, message.topic, message.key, value)
            for _, sent in world.run(60.0 * scenario.minutes)
            for message in sent
            for value in encoded(message)
        ]
    return _recorded[known]


def messages_of(jobs: Sequence[FedJob], prefix_partitions: Mapping[str, int]) -> list[Sent]:
    """All messages in the order of the bus."""
    found: list[tuple[int, str, int, int, bytes, bytes, Mapping[bytes, bytes]]] = []
    for job in jobs:
        names = _names(job.number)
        for order, (at_s, topic, key, value) in enumerate(recorded(job)):
            new_key = _renamed(key.encode(), names)
            partition = (murmur2(new_key) & 0x7FFFFFFF) % prefix_partitions[topic]
            at_ms = (START_UNIX_NS + ns(at_s + job.after_s)) // 1_000_000
            found.append((at_ms, topic, partition, job.number << 32 | order, new_key, value, names))
    found.sort(key=lambda each: each[:4])
    return [Sent(at, topic, partition, key, value, names) for at, topic, partition, _, key, value, names in found]


def _names(number: int) -> Mapping[bytes, bytes]:
    """Other names of the same length: what is encoded stays valid."""
    return {
        b"node-0": b"n%03d-0" % number,
        b"pretrain-": b"pretr%03d-" % number,
        b"simulated": b"simul%04d" % number,
    }


def _renamed(text: bytes, names: Mapping[bytes, bytes]) -> bytes:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


class Feed:
    """Topics under a prefix; ``run`` writes messages and beats at ``speed`` times the pace of life."""

    def __init__(self, kafka: Kafka, prefix: str, *, brokers_stamps: bool = False) -> None:
        """brokers_stamps: as in life; then the job writes the beats, and ``run`` must be at the pace of life."""
        self._address, self._prefix, self._is_live = kafka.address, prefix, brokers_stamps
        self.settings = replace(KafkaSettings(brokers=kafka.address), topic_prefix=prefix)
        self.client: Client = make_client(self.settings)
        admin = self.client.admin()
        self.partitions: dict[str, int] = {}
        for plan in TOPICS:
            facts = topic_facts(plan, partitions=PARTITIONS, replication=1, max_message_bytes=1 << 20)
            if plan.name in INPUTS and not brokers_stamps:
                senders = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
                facts = replace(facts, configuration={**facts.configuration, **senders})
            admin.create(facts)
            self.partitions[plan.name] = facts.partitions
        admin.close()
        #: When the first message was written, and how much of the simulation has been.
        self.began_s = 0.0
        self.fed_ms = 0

    def run(self, messages: Sequence[Sent], speed: float) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._address,
            compression_type="zstd",
            linger_ms=20,
            delivery_timeout_ms=300_000,
            max_block_ms=300_000,
            bootstrap_timeout_ms=300_000,
        )
        self.began_s = time.monotonic()
        first_ms = beat_ms = messages[0].at_ms
        for message in [*messages, None]:
            at_ms = messages[-1].at_ms + AFTER_MS if message is None else message.at_ms
            while beat_ms + BEAT_MS < at_ms:
                beat_ms += BEAT_MS
                self.fed_ms = beat_ms - first_ms
                time.sleep(max(0.0, self.began_s + self.fed_ms / 1e3 / speed - time.monotonic()))
                if not self._is_live:
                    self._beat(producer, beat_ms)
            if message is not None:
                producer.send(
                    self._prefix + message.topic,
                    key=message.key,
                    value=message.value,
                    partition=message.partition,
                    timestamp_ms=None if self._is_live else message.at_ms,
                )
        producer.flush(120)
        producer.close()

    def _beat(self, producer: KafkaProducer, at_ms: int) -> None:
        for topic in INPUTS:
            for partition in range(self.partitions[topic]):
                producer.send(self._prefix + topic, key=b"beat", value=b"", partition=partition, timestamp_ms=at_ms)

    def incidents(self) -> list[dict[str, Any]]:
        """All committed revisions, in order."""
        return list(self._documents())

    def _documents(self) -> Iterator[dict[str, Any]]:
        for message in self._whole(TOPIC_INCIDENTS):
            for payload in decode_logs(TOPIC_INCIDENTS, message.value):
                if isinstance(payload, Incident):
                    yield dict(payload.document)

    def count(self, topic: str) -> int:
        return len(self._whole(topic))

    def _whole(self, topic: str) -> list[Fetched]:
        """A broker that is away, or slow to answer, is asked again: what is measured is the job."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return list(read_whole(self.client, topic))
            except KafkaTrouble:
                if time.monotonic() > until_s:
                    raise
                time.sleep(2.0)


def twin_of(messages: Sequence[Sent]) -> list[dict[str, Any]]:
    """All revisions of the embedded engine over the same messages, in its order."""
    bus = MemoryBus(ns=messages[0].at_ms * 1_000_000)
    judge = Judge(bus, start_unix_ns=START_UNIX_NS, input_topics=INPUTS)
    try:
        beat_ms = messages[0].at_ms
        for message in messages:
            while beat_ms + BEAT_MS < message.at_ms:
                beat_ms += BEAT_MS
                bus.advance(beat_ms * 1_000_000)
                judge.runner.drain()
            bus.advance(message.at_ms * 1_000_000)
            bus.append(message.topic, message.key.decode(), message.value)
        for _ in range(AFTER_MS // BEAT_MS):
            judge.runner.drain()
            beat_ms += BEAT_MS
            bus.advance(beat_ms * 1_000_000)
        return [dict(each.document) for each in judge.revisions]
    finally:
        judge.close()


def repeated(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Revisions that were told more than once."""
    told = Counter(f"{each['id']}/{each['revision']}" for each in documents)
    return [name for name, times in told.items() if times > 1]


def by_id(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Facts of all revisions of each incident, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in documents:
        found.setdefault(str(each["id"]), []).append(facts_of(each))
    return found


def finals(documents: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Facts of the last revision of each incident."""
    return {name: revisions[-1] for name, revisions in by_id(documents).items()}


def difference(twin: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]) -> str:
    """Where the last revisions part, "" where they do not."""
    return first_difference(finals(twin), finals(told))
