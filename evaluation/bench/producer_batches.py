"""What was handed out for Kafka, and how many bytes it is there: batches as the producer makes them, and no broker.

The library's own batch (format 2, idempotent, zstd) of what comes to a partition within the linger time, and its own
produce request around it, one batch in each as where every topic has another leader. Not counted: answers, TLS, TCP.
Used by ``wire`` and, in benchmarks/, ``people_telemetry`` and ``cost_sheet``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from ...agents.base.priority import Priority
from ...transport.kafka_settings import KafkaSettings

#: As ``kafka_python_client`` makes its producers: size of a batch before compression, format, zstd.
BATCH_BYTES = 256 << 10
_FORMAT, _ZSTD, _MAX_VERSION = 2, 4, 9
#: Like the id that a broker gives: its size is always the same.
_PRODUCER_ID = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedBatches:
    """at_s: by the clock of ``Wire``."""

    at_s: float
    topic: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """plain: values before compression. stored: batches as brokers keep them. wire: requests that carry them."""

    messages: int = 0
    plain: int = 0
    stored: int = 0
    wire: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            messages=self.messages + other.messages,
            plain=self.plain + other.plain,
            stored=self.stored + other.stored,
            wire=self.wire + other.wire,
        )


class Wire:
    """What one producer was given: ``publish`` is an agent's ``publish_ranked``. now_s: what time it is."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        settings = KafkaSettings(brokers="unused:9092")
        self.linger_s, self._client_id = settings.linger_s, settings.client_id
        self._now_s = now_s
        self.published: list[ProducedBatches] = []

    def publish(self, topic: str, key: str, value: bytes, priority: Priority = Priority.COPIES) -> None:
        self.published.append(ProducedBatches(at_s=self._now_s(), topic=topic, key=key, value=value))

    def between(self, since_s: float, until_s: float = float("inf")) -> list[ProducedBatches]:
        return [each for each in self.published if since_s <= each.at_s < until_s]

    def sizes(self, since_s: float, until_s: float = float("inf")) -> Mapping[str, Size]:
        """By topic, of what was handed out in this time."""
        by_topic: dict[str, list[ProducedBatches]] = defaultdict(list)
        for each in self.between(since_s, until_s):
            by_topic[each.topic].append(each)
        return {topic: self._size(topic, messages) for topic, messages in by_topic.items()}

    def _size(self, topic: str, messages: list[ProducedBatches]) -> Size:
        by_key: dict[str, list[ProducedBatches]] = defaultdict(list)  # a key has one partition
        for each in messages:
            by_key[each.key].append(each)
        stored = wire = 0
        for of_key in by_key.values():
            for batch in batches(of_key, self.linger_s):
                stored += len(batch)
                wire += len(_request(topic, batch, self._client_id))
        return Size(messages=len(messages), plain=sum(len(each.value) for each in messages), stored=stored, wire=wire)


def batches(messages: Iterable[ProducedBatches], linger_s: float) -> Iterator[bytes]:
    """Of one partition, in the order in which they were handed out."""
    builder: MemoryRecordsBuilder | None = None
    begun_s = 0.0
    for each in messages:
        stamp_ms, key = round(each.at_s * 1000), each.key.encode()
        if builder is not None and each.at_s - begun_s > linger_s:
            yield _closed(builder)
            builder = None
        if builder is not None and builder.append(stamp_ms, key, each.value) is None:
            yield _closed(builder)  # full
            builder = None
        elif builder is not None:
            continue
        builder, begun_s = _new_batch(), each.at_s
        builder.append(stamp_ms, key, each.value)
    if builder is not None:
        yield _closed(builder)


def _new_batch() -> MemoryRecordsBuilder:
    return MemoryRecordsBuilder(
        _FORMAT, _ZSTD, BATCH_BYTES, producer_id=_PRODUCER_ID, producer_epoch=0, base_sequence=0
    )


def _closed(builder: MemoryRecordsBuilder) -> bytes:
    builder.close()
    return bytes(builder.buffer())


def _request(topic: str, batch: bytes, client_id: str) -> bytes:
    of_topic = ProduceRequest.TopicProduceData
    part = of_topic.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[of_topic(name=topic, partition_data=[part])],
        max_version=_MAX_VERSION,
    )
    request.with_header(correlation_id=1, client_id=client_id)
    encoded: bytes = request.encode(version=_MAX_VERSION, header=True, framed=True)
    return encoded
