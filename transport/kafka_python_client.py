"""The interface of ``kafka_client`` on kafka-python, the client that whichrank brings along."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from .kafka_batches import messages_passed_over
from .kafka_client import Fetched, KafkaTrouble, Offsets, OnDone, Partition, Sent
from .kafka_errors import explain, no_leader
from .kafka_python_admin import KafkaPythonAdmin
from .kafka_python_connection import common_options, explained
from .kafka_queue import QueuedBytes
from .kafka_settings import KafkaSettings

#: How long a transaction may stay open before the broker aborts it.
TRANSACTION_TIMEOUT_S = 20.0
FETCH_WAIT_S = 0.1
#: After so long partitions that were added become known.
METADATA_AGE_S = 20.0
FETCH_BYTES = 50 << 20
PARTITION_FETCH_BYTES = 8 << 20
POLL_MESSAGES = 5000
_MS = 1000.0
_MESSAGE_OVERHEAD_BYTES = 200


class KafkaPythonClient:
    """``Client``."""

    name = "kafka-python"

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def producer(self, *, transactional_id: str | None = None) -> KafkaPythonProducer:
        """A new producer. Raises KafkaTrouble when no broker answers in time.

        transactional_id None: no transactions.
        """
        return KafkaPythonProducer(self._settings, transactional_id)

    def consumer(self, *, committed_only: bool) -> KafkaPythonConsumer:
        """A new consumer. Raises KafkaTrouble when no broker answers in time.

        committed_only: messages of aborted and open transactions are not seen.
        """
        return KafkaPythonConsumer(self._settings, committed_only)

    def admin(self) -> KafkaPythonAdmin:
        """A new admin, for topics. Raises KafkaTrouble when no broker answers in time."""
        return KafkaPythonAdmin(self._settings)


class KafkaPythonProducer:
    """``Producer``."""

    def __init__(self, settings: KafkaSettings, transactional_id: str | None) -> None:
        self._settings = settings
        self._queued = QueuedBytes(settings)
        self._is_initialised = False
        options = common_options(settings) | {
            "metrics_enabled": False,
            "compression_type": "zstd",
            "linger_ms": round(settings.linger_s * _MS) if transactional_id is None else 0,
            "batch_size": 256 << 10,
            "max_request_size": settings.max_message_bytes,
            "max_block_ms": round(settings.metadata_wait_s * _MS),
            "delivery_timeout_ms": round(settings.delivery_timeout_s * _MS),
            "retry_backoff_ms": 5 if transactional_id else 50,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": round(TRANSACTION_TIMEOUT_S * _MS),
            "allow_auto_create_topics": False,
        }
        if transactional_id:
            options["max_block_ms"] = round(settings.request_timeout_s * _MS)
        with explained(settings, "connect"):
            self._producer = KafkaProducer(**options)

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Mapping[str, bytes] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Queues a message; ``on_done`` is called once with what became of it, in the library's own thread.

        Raises QueueFull, and KafkaTrouble where the library refuses the message.
        """
        size = len(key) + len(value) + _MESSAGE_OVERHEAD_BYTES
        self._queued.take(size)

        def done(metadata: Any, error: BaseException | None) -> None:
            self._queued.give_back(size)
            if on_done is None:
                return
            if error is not None:
                on_done(None, explain(error, self._settings, f"write to topic {topic}"))
            else:
                on_done(Sent(offset=metadata.offset, stamp_ns=metadata.timestamp * 1_000_000), None)

        try:
            future = self._producer.send(topic, value, key or None, list(headers.items()) if headers else None)
        except (KafkaError, OSError, AssertionError, ValueError, TypeError) as error:
            self._queued.give_back(size)
            if type(error).__name__ == "KafkaTimeoutError":
                raise KafkaTrouble(no_leader(self._settings, topic)) from error
            raise explain(error, self._settings, f"write to topic {topic}") from error
        future.add_callback(lambda metadata: done(metadata, None))
        future.add_errback(lambda error: done(None, error))

    def poll(self) -> None:
        """Does nothing: the library calls back from a thread of its own."""

    def flush(self, timeout_s: float) -> int:
        """Waits until all messages are answered, for ``timeout_s`` at most; how many are not."""
        with contextlib.suppress(KafkaError):
            self._producer.flush(timeout_s)
        return self._queued.messages

    def begin(self) -> None:
        """Begins a transaction; the first one also takes the transactional id over. Raises Fenced and KafkaTrouble."""
        with explained(self._settings, "begin a transaction"):
            if not self._is_initialised:
                self._producer.init_transactions()
                self._is_initialised = True
            self._producer.begin_transaction()

    def commit(self, timeout_s: float) -> None:
        """Commits the transaction. Raises Fenced and KafkaTrouble, also when it takes longer than ``timeout_s``."""
        self._within(timeout_s, self._producer.commit_transaction, "commit a transaction")

    def abort(self, timeout_s: float) -> None:
        """Gives the transaction up. Raises Fenced and KafkaTrouble, also when it takes longer than ``timeout_s``."""
        self._within(timeout_s, self._producer.abort_transaction, "abort a transaction")

    def close(self, timeout_s: float) -> None:
        """Waits for answers for ``timeout_s``, then ends the library's producer; errors are ignored."""
        with contextlib.suppress(KafkaError, OSError):
            self._producer.close(timeout=timeout_s)

    def _within(self, timeout_s: float, action: Callable[[], None], what: str) -> None:
        """The library waits without limit for the end of a transaction."""
        outcome: list[BaseException | None] = []

        def act() -> None:
            try:
                action()
                outcome.append(None)
            except BaseException as error:  # handed to the thread that waits
                outcome.append(error)

        thread = threading.Thread(target=act, name=what, daemon=True)
        thread.start()
        thread.join(timeout_s)
        if not outcome:
            raise KafkaTrouble(f"Kafka at {self._settings.brokers}: no answer to {what} within {timeout_s:.0f} s")
        if outcome[0] is not None:
            raise explain(outcome[0], self._settings, what) from outcome[0]


class KafkaPythonConsumer:
    """``Consumer``."""

    def __init__(self, settings: KafkaSettings, committed_only: bool) -> None:
        self._settings = settings
        self._assigned: set[Partition] = set()
        self._expected: dict[Partition, int] = {}
        self._gone = 0
        self._passed_over_before = messages_passed_over()
        options = common_options(settings) | {
            "metrics_enabled": False,
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed" if committed_only else "read_uncommitted",
            "fetch_max_wait_ms": round(FETCH_WAIT_S * _MS),
            "fetch_max_bytes": FETCH_BYTES,
            "max_partition_fetch_bytes": PARTITION_FETCH_BYTES,
            "max_poll_records": POLL_MESSAGES,
            "allow_auto_create_topics": False,
            "retry_backoff_ms": 50,
            "metadata_max_age_ms": round(METADATA_AGE_S * _MS),
        }
        with explained(settings, "connect"):
            self._consumer = KafkaConsumer(**options)

    @property
    def gone(self) -> int:
        """How many messages retention had deleted before they were read, or lay in batches that were passed over."""
        return self._gone + messages_passed_over() - self._passed_over_before

    def partitions(self, topic: str) -> Sequence[int]:
        """Numbers of the topic's partitions, sorted. Raises KafkaTrouble for a topic that is not there."""
        with explained(self._settings, f"read topic {topic}"):
            found = self._consumer.partitions_for_topic(topic)
        if not found:
            raise KafkaTrouble(
                f"Kafka at {self._settings.brokers}: topic {topic} is not there, or may not be read; make it with: "
                "whichrank topics",
                lasting=True,
            )
        return sorted(found)

    def assign(self, offsets: Offsets) -> None:
        """Reads these partitions alone, from these offsets on; those read already go on where they are.

        Raises KafkaTrouble.
        """
        wanted = set(offsets)
        keep = {partition: self.next_offset(partition) for partition in self._assigned & wanted}
        with explained(self._settings, "read"):
            self._consumer.assign([TopicPartition(*partition) for partition in sorted(wanted)])
            for partition, offset in {**offsets, **keep}.items():
                self._consumer.seek(TopicPartition(*partition), offset)
                self._expected[partition] = offset
        self._assigned = wanted

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """By partition the first kept offset and the one after the last, asked all at once. Raises KafkaTrouble."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        with explained(self._settings, "ask for the bounds of partitions"):
            first = self._consumer.beginning_offsets(wanted)
            last = self._consumer.end_offsets(wanted)
        return {(tp.topic, tp.partition): (first[tp], last[tp]) for tp in wanted}

    def poll(self, timeout_s: float) -> Sequence[Fetched]:
        """Messages that have come within ``timeout_s``. Raises KafkaTrouble.

        A gap in the offsets is looked into: what retention deleted counts as ``gone``.
        """
        with explained(self._settings, "read"):
            batches = self._consumer.poll(timeout_ms=timeout_s * _MS)
        fetched: list[Fetched] = []
        for tp, records in batches.items():
            partition = (tp.topic, tp.partition)
            if records[0].offset > self._expected[partition]:
                self._note_gap(partition, records[0].offset)
            self._expected[partition] = records[-1].offset + 1
            fetched += [
                Fetched(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=record.offset,
                    key=record.key or b"",
                    value=record.value or b"",
                    stamp_ns=record.timestamp * 1_000_000,
                    appended_by_broker=record.timestamp_type == 1,
                    headers=dict(record.headers) if record.headers else {},
                )
                for record in records
            ]
        return fetched

    def next_offset(self, partition: Partition) -> int:
        """The offset that the next ``poll`` continues with, beyond markers of transactions, which are no messages."""
        expected, end = self._expected[partition], self.end_offset(partition)
        if end is not None and expected >= end:  # asked in every turn, of every partition: the library looks further
            return expected
        with explained(self._settings, "read"):
            position = self._consumer.position(TopicPartition(*partition), timeout_ms=0)
        return self._expected[partition] if position is None else int(position)

    def end_offset(self, partition: Partition) -> int | None:
        """The partition's end as of the last answer; None before the first."""
        end = self._consumer.highwater(TopicPartition(*partition))
        return None if end is None else int(end)

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Fetches nothing of these partitions until ``resume``."""
        self._consumer.pause(*[TopicPartition(*partition) for partition in partitions])

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Fetches paused partitions again."""
        self._consumer.resume(*[TopicPartition(*partition) for partition in partitions])

    def close(self) -> None:
        """Leaves the brokers; offsets are never committed, errors are ignored."""
        with contextlib.suppress(KafkaError, OSError):
            self._consumer.close(autocommit=False)

    def _note_gap(self, partition: Partition, offset: int) -> None:
        """A gap is retention's work, or only a transaction's mark: the beginning of the partition tells."""
        with contextlib.suppress(KafkaTrouble):
            first, _ = self.bounds([partition])[partition]
            self._gone += max(0, min(first, offset) - self._expected[partition])
