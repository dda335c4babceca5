"""The interface of ``kafka_client`` on confluent-kafka (librdkafka): the faster client, an extra.

Its callbacks run where ``poll`` or ``flush`` is called.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from .confluent_admin import ConfluentAdmin
from .confluent_connection import Heard, common_options, explained, reach
from .kafka_client import Fetched, KafkaTrouble, Offsets, OnDone, Partition, Sent
from .kafka_errors import no_leader
from .kafka_queue import QueuedBytes
from .kafka_settings import KafkaSettings

TRANSACTION_TIMEOUT_S = 20.0
FETCH_WAIT_S = 0.1
PARTITION_FETCH_BYTES = 8 << 20
POLL_MESSAGES = 5000
_MS = 1000.0
_APPENDED_BY_BROKER = 2  # TIMESTAMP_LOG_APPEND_TIME


class ConfluentClient:
    """``Client``."""

    name = "confluent-kafka"

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def producer(self, *, transactional_id: str | None = None) -> ConfluentProducer:
        """A new producer. Raises KafkaTrouble when no broker answers in time.

        transactional_id None: no transactions.
        """
        return ConfluentProducer(self._settings, transactional_id)

    def consumer(self, *, committed_only: bool) -> ConfluentConsumer:
        """A new consumer. Raises KafkaTrouble when no broker answers in time.

        committed_only: messages of aborted and open transactions are not seen.
        """
        return ConfluentConsumer(self._settings, committed_only)

    def admin(self) -> ConfluentAdmin:
        """A new admin, for topics. Raises KafkaTrouble when no broker answers in time."""
        return ConfluentAdmin(self._settings)


class ConfluentProducer:
    """``Producer``."""

    def __init__(self, settings: KafkaSettings, transactional_id: str | None) -> None:
        self._settings = settings
        self._heard = Heard(settings)
        self._queued = QueuedBytes(settings)
        self._known_topics: set[str] = set()
        self._is_initialised = False
        options = common_options(settings, self._heard) | {
            "enable.idempotence": True,
            # librdkafka's own default spreads keys otherwise than every other client.
            "partitioner": "murmur2_random",
            "compression.type": "zstd",
            "linger.ms": settings.linger_s * _MS if transactional_id is None else 0,
            "message.max.bytes": settings.max_message_bytes,
            "queue.buffering.max.kbytes": max(1, settings.queue_bytes >> 10) * 2,
            "delivery.timeout.ms": round(settings.delivery_timeout_s * _MS),
        }
        if transactional_id:
            options["transactional.id"] = transactional_id
            options["transaction.timeout.ms"] = round(TRANSACTION_TIMEOUT_S * _MS)
            options["delivery.timeout.ms"] = round(min(TRANSACTION_TIMEOUT_S, settings.delivery_timeout_s) * _MS)
        with explained(self._heard, "connect"):
            self._producer = Producer(options)
            reach(self._producer, settings.request_timeout_s)

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Mapping[str, bytes] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Queues a message; ``on_done`` is called once with what became of it, in ``poll`` or ``flush``.

        Raises QueueFull, and KafkaTrouble where the topic is not known in time.
        """
        self._know(topic)
        size = len(key) + len(value)
        self._queued.take(size)

        def done(error: KafkaError | None, message: Message) -> None:
            self._queued.give_back(size)
            if on_done is None:
                return
            if error is not None:
                on_done(None, self._heard.trouble(KafkaException(error), f"write to topic {topic}"))
            else:
                on_done(Sent(offset=message.offset() or 0, stamp_ns=message.timestamp()[1] * 1_000_000), None)

        try:
            self._producer.produce(
                topic, value, key or None, headers=list(headers.items()) if headers else None, on_delivery=done
            )
        except BufferError as error:
            self._queued.give_back(size)
            raise self._queued.full() from error
        except (KafkaException, ValueError) as error:
            self._queued.give_back(size)
            raise self._heard.trouble(error, f"write to topic {topic}") from error

    def poll(self) -> None:
        """Runs callbacks of messages that were answered, in the caller's thread; never waits."""
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> int:
        """Waits until all messages are answered, for ``timeout_s`` at most; how many are not."""
        return int(self._producer.flush(timeout_s))

    def begin(self) -> None:
        """Begins a transaction; the first one also takes the transactional id over. Raises Fenced and KafkaTrouble."""
        with explained(self._heard, "begin a transaction"):
            if not self._is_initialised:
                self._producer.init_transactions(self._settings.request_timeout_s)
                self._is_initialised = True
            self._producer.begin_transaction()

    def commit(self, timeout_s: float) -> None:
        """Commits the transaction. Raises Fenced and KafkaTrouble; then it is not known whether it took place."""
        with explained(self._heard, "commit a transaction"):
            self._producer.commit_transaction(timeout_s)

    def abort(self, timeout_s: float) -> None:
        """Gives the transaction up. Raises Fenced and KafkaTrouble."""
        with explained(self._heard, "abort a transaction"):
            self._producer.abort_transaction(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Waits for answers for ``timeout_s``; what has none then is thrown away, and its callbacks hear of it."""
        self._producer.flush(timeout_s)
        self._producer.purge()
        self._producer.poll(0)

    def _know(self, topic: str) -> None:
        """An unknown topic is told when the message is given, not after its delivery time-out."""
        if topic in self._known_topics:
            return
        try:
            found = self._producer.list_topics(topic, timeout=self._settings.metadata_wait_s).topics.get(topic)
        except KafkaException as error:
            raise KafkaTrouble(no_leader(self._settings, topic)) from error
        if found is None or found.error is not None or not found.partitions:
            if found is not None and found.error is not None:
                raise self._heard.trouble(KafkaException(found.error), f"write to topic {topic}")
            raise KafkaTrouble(no_leader(self._settings, topic))
        self._known_topics.add(topic)


class ConfluentConsumer:
    """``Consumer``."""

    def __init__(self, settings: KafkaSettings, committed_only: bool) -> None:
        self._settings = settings
        self._heard = Heard(settings)
        self._next: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._gone = 0
        options = common_options(settings, self._heard) | {
            "group.id": settings.client_id,  # asked for by the library; no group is joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
            "fetch.wait.max.ms": round(FETCH_WAIT_S * _MS),
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            "fetch.message.max.bytes": PARTITION_FETCH_BYTES,
            "queued.max.messages.kbytes": 64 << 10,
            # Tells where a partition ends, past the marks of transactions too.
            "enable.partition.eof": True,
        }
        with explained(self._heard, "connect"):
            self._consumer = Consumer(options)
            reach(self._consumer, settings.request_timeout_s)

    @property
    def gone(self) -> int:
        """How many messages retention had deleted before they were read."""
        return self._gone

    def partitions(self, topic: str) -> Sequence[int]:
        """Numbers of the topic's partitions, sorted. Raises KafkaTrouble for a topic that is not there."""
        with explained(self._heard, f"read topic {topic}"):
            found = self._consumer.list_topics(topic, timeout=self._settings.request_timeout_s).topics.get(topic)
        if found is None or found.error is not None or not found.partitions:
            raise KafkaTrouble(
                f"Kafka at {self._settings.brokers}: topic {topic} is not there, or may not be read; make it with: "
                "whichrank topics",
                lasting=True,
            )
        return sorted(found.partitions)

    def assign(self, offsets: Offsets) -> None:
        """Reads these partitions alone, from these offsets on; those read already go on where they are.

        Raises KafkaTrouble.
        """
        wanted = {partition: self._next.get(partition, offset) for partition, offset in offsets.items()}
        with explained(self._heard, "read"):
            self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in wanted.items()])
        self._next = wanted
        self._ends = {partition: end for partition, end in self._ends.items() if partition in wanted}

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """By partition the first kept offset and the one after the last, asked one by one. Raises KafkaTrouble."""
        found = {}
        with explained(self._heard, "ask for the bounds of partitions"):
            for partition in partitions:
                first, last = self._consumer.get_watermark_offsets(
                    TopicPartition(*partition), timeout=self._settings.request_timeout_s
                )
                found[partition] = (first, last)
        return found

    def poll(self, timeout_s: float) -> Sequence[Fetched]:
        """Messages that have come; waits ``timeout_s`` at most, and for the first one only. Raises KafkaTrouble."""
        fetched: list[Fetched] = []
        deadline = time.monotonic() + timeout_s
        while not fetched:
            left_s = max(0.0, deadline - time.monotonic())
            with explained(self._heard, "read"):
                first = self._consumer.poll(left_s)
                messages = [] if first is None else [first, *self._consumer.consume(POLL_MESSAGES, 0)]
            for message in messages:
                self._take(message, fetched)
            if first is None or time.monotonic() >= deadline:
                break
        return fetched

    def next_offset(self, partition: Partition) -> int:
        """The offset that the next ``poll`` continues with."""
        return self._next[partition]

    def end_offset(self, partition: Partition) -> int | None:
        """The partition's end: the higher of what the library has cached and what reading has shown; None: neither."""
        _, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        known = self._ends.get(partition)
        if high is None or high == OFFSET_INVALID or high < 0:
            return known
        return high if known is None else max(high, known)

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Fetches nothing of these partitions until ``resume``."""
        self._consumer.pause([TopicPartition(*partition) for partition in partitions])

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Fetches paused partitions again."""
        self._consumer.resume([TopicPartition(*partition) for partition in partitions])

    def close(self) -> None:
        """Leaves the brokers; offsets are never committed."""
        self._consumer.close()

    def _take(self, message: Message, fetched: list[Fetched]) -> None:
        partition = (message.topic() or "", message.partition() or 0)
        error = message.error()
        if error is not None:
            if error.name() == "_PARTITION_EOF":
                end = message.offset() or 0
                self._next[partition] = max(self._next.get(partition, 0), end)
                self._ends[partition] = end
            elif not error.retriable():
                raise self._heard.trouble(KafkaException(error), f"read topic {partition[0]}")
            return
        offset = message.offset() or 0
        expected = self._next.get(partition, offset)
        if offset > expected:
            self._note_gap(partition, expected, offset)
        self._next[partition] = offset + 1
        sort, stamp_ms = message.timestamp()
        fetched.append(
            Fetched(
                topic=partition[0],
                partition=partition[1],
                offset=offset,
                key=message.key() or b"",
                value=message.value() or b"",
                stamp_ns=stamp_ms * 1_000_000,
                appended_by_broker=sort == _APPENDED_BY_BROKER,
                headers=_headers(message),
            )
        )

    def _note_gap(self, partition: Partition, expected: int, offset: int) -> None:
        """A gap is retention's work, or only a transaction's mark: the beginning of the partition tells."""
        with contextlib.suppress(KafkaTrouble):
            first, _ = self.bounds([partition])[partition]
            self._gone += max(0, min(first, offset) - expected)


def _headers(message: Message) -> dict[str, bytes]:
    pairs = message.headers()
    if not pairs:
        return {}
    items = pairs.items() if isinstance(pairs, dict) else pairs
    return {name: content.encode() if isinstance(content, str) else content or b"" for name, content in items}
