"""What whichrank asks of a Kafka client library: the least that kafka-python and confluent-kafka both can do.

Nothing here knows what is sent. Errors come as ``KafkaTrouble`` with one line that says what to do (``kafka_errors``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Partition = tuple[str, int]
#: Next offset to read, per partition.
Offsets = Mapping[Partition, int]


class KafkaTrouble(OSError):
    """Something that Kafka or the way to it refuses; the text is one line with its remedy.

    An OSError, as every bus raises when its storage refuses.
    lasting: trying again cannot help (wrong password, unknown topic, message too large).
    """

    def __init__(self, line: str, *, lasting: bool = False) -> None:
        super().__init__(line)
        self.lasting = lasting


class Fenced(KafkaTrouble):
    """Another instance has taken over the transactional id."""

    def __init__(self, line: str) -> None:
        super().__init__(line, lasting=True)


class TooLarge(KafkaTrouble):
    """No broker takes this message, whatever is tried; others are not concerned."""

    def __init__(self, line: str) -> None:
        super().__init__(line, lasting=True)


class QueueFull(KafkaTrouble):
    """The client's own queue has no room; the message was not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One message as it lies in a partition. ``stamp_ns`` is the broker's (``appended_by_broker``) or the sender's."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    stamp_ns: int
    appended_by_broker: bool
    headers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where a message was appended."""

    offset: int
    stamp_ns: int


#: Called in a thread of the client's choice, with one of the two. It must be quick and never raise.
OnDone = Callable[[Sent | None, KafkaTrouble | None], None]


class Producer(Protocol):
    """Thread-safe. Order is kept per partition; a message is in its partition once at most (idempotent producer)."""

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Mapping[str, bytes] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Queue a message; ``on_done`` is called once for each. Partition by murmur2 of the key, none for an empty key.

        Raises QueueFull, and KafkaTrouble when the topic's partitions are not known in time (see settings).
        """
        ...

    def poll(self) -> None:
        """Runs callbacks that wait for a thread. Cheap."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait until all is answered; the number of messages that are not."""
        ...

    def begin(self) -> None:
        """Begin a transaction (of a producer with a transactional id). The first one fences older owners of the id.

        Raises Fenced and KafkaTrouble, as the following do.
        """
        ...

    def commit(self, timeout_s: float) -> None:
        """Ends the transaction: readers of committed messages see it whole. Raises Fenced and KafkaTrouble."""

    def abort(self, timeout_s: float) -> None:
        """Gives the transaction up: readers of committed messages see none of it. Raises Fenced and KafkaTrouble."""

    def close(self, timeout_s: float) -> None:
        """Waits for answers for ``timeout_s``, then lets go of what has none."""


class Consumer(Protocol):
    """Reads partitions that it is told, from offsets that it is told; commits nothing. One thread."""

    def partitions(self, topic: str) -> Sequence[int]:
        """Numbers of the topic's partitions. Raises KafkaTrouble for a topic that is not there."""
        ...

    def assign(self, offsets: Offsets) -> None:
        """Reads these partitions alone, from these offsets on; those that are assigned already keep their place."""
        ...

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """By partition the first offset that is kept and the one after the last, asked of the brokers."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Fetched]:
        """Messages that have come, in order per partition; waits up to ``timeout_s`` for something.

        Raises KafkaTrouble; offsets that are gone by retention are skipped and counted in ``gone``.
        """
        ...

    def next_offset(self, partition: Partition) -> int:
        """The offset that the next ``poll`` continues with."""
        ...

    def end_offset(self, partition: Partition) -> int | None:
        """The partition's end as of the last answer that spoke of it; None: none has."""
        ...

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Fetches nothing of these partitions until ``resume``; they keep their place."""

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Fetches paused partitions again."""

    @property
    def gone(self) -> int:
        """How many messages retention had deleted before they were read."""
        ...

    def close(self) -> None:
        """Leaves the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the brokers have it, or are to have it."""

    name: str
    partitions: int
    replication: int
    configuration: Mapping[str, str]
    #: Another one after it was deleted and made again; empty where the brokers do not tell.
    topic_id: str = ""


class Admin(Protocol):
    """Raises KafkaTrouble."""

    def cluster_id(self) -> str:
        """The cluster's own id, by which two addresses of it are recognised."""

    def describe(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        """Those of the topics that exist, by name.

        ``configuration`` is empty where the rights to see it are missing.
        """
        ...

    def create(self, topic: TopicFacts) -> None:
        """Creates a topic, which must not be there yet."""

    def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions until the topic has ``total``; keys may go to other partitions from then on."""

    def close(self) -> None:
        """Leaves the brokers."""


class Client(Protocol):
    """A library with one configuration; makes the three above. ``name`` is what people configure."""

    name: str

    def producer(self, *, transactional_id: str | None = None) -> Producer:
        """A new producer. transactional_id None: without transactions. Raises KafkaTrouble where no broker answers."""

    def consumer(self, *, committed_only: bool) -> Consumer:
        """A new consumer. committed_only: messages of aborted and open transactions are not seen."""

    def admin(self) -> Admin:
        """A new admin, for topics and their configuration."""
