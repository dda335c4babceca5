"""Topics under a prefix: several installations, or a naming rule, on one Kafka cluster. Nobody else of us sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .kafka_client import Admin, Client, Consumer, Fetched, Offsets, OnDone, Partition, Producer, TopicFacts


class PrefixedClient:
    """``Client`` whose topics are another client's, under a prefix; its transactional ids too."""

    def __init__(self, inner: Client, prefix: str) -> None:
        self.name = inner.name
        self._inner = inner
        self._prefix = prefix

    def producer(self, *, transactional_id: str | None = None) -> Producer:
        """The inner client's producer, with the prefix before its topics and its transactional id."""
        own = None if transactional_id is None else self._prefix + transactional_id
        return _Producer(self._inner.producer(transactional_id=own), self._prefix)

    def consumer(self, *, committed_only: bool) -> Consumer:
        """The inner client's consumer, with the prefix before its topics, which is taken off in what is read."""
        return _Consumer(self._inner.consumer(committed_only=committed_only), self._prefix)

    def admin(self) -> Admin:
        """The inner client's admin, which sees topics under the prefix only, without it in their names."""
        return _Admin(self._inner.admin(), self._prefix)


class _Producer:
    def __init__(self, inner: Producer, prefix: str) -> None:
        self._inner = inner
        self._prefix = prefix
        self.poll = inner.poll
        self.flush = inner.flush
        self.begin = inner.begin
        self.commit = inner.commit
        self.abort = inner.abort
        self.close = inner.close

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Mapping[str, bytes] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        self._inner.send(self._prefix + topic, key, value, headers, on_done)


class _Consumer:
    def __init__(self, inner: Consumer, prefix: str) -> None:
        self._inner = inner
        self._prefix = prefix
        self.close = inner.close

    @property
    def gone(self) -> int:
        return self._inner.gone

    def partitions(self, topic: str) -> Sequence[int]:
        return self._inner.partitions(self._prefix + topic)

    def assign(self, offsets: Offsets) -> None:
        self._inner.assign({self._with(partition): offset for partition, offset in offsets.items()})

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, tuple[int, int]]:
        found = self._inner.bounds([self._with(partition) for partition in partitions])
        return {(self._bare(topic), number): bounds for (topic, number), bounds in found.items()}

    def poll(self, timeout_s: float) -> Sequence[Fetched]:
        return [replace(message, topic=self._bare(message.topic)) for message in self._inner.poll(timeout_s)]

    def next_offset(self, partition: Partition) -> int:
        return self._inner.next_offset(self._with(partition))

    def end_offset(self, partition: Partition) -> int | None:
        return self._inner.end_offset(self._with(partition))

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._inner.pause([self._with(partition) for partition in partitions])

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._inner.resume([self._with(partition) for partition in partitions])

    def _with(self, partition: Partition) -> Partition:
        return self._prefix + partition[0], partition[1]

    def _bare(self, topic: str) -> str:
        return topic[len(self._prefix) :]


class _Admin:
    def __init__(self, inner: Admin, prefix: str) -> None:
        self._inner = inner
        self._prefix = prefix
        self.cluster_id = inner.cluster_id
        self.close = inner.close

    def describe(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        found = self._inner.describe([self._prefix + topic for topic in topics])
        bare = {name[len(self._prefix) :]: facts for name, facts in found.items()}
        return {name: replace(facts, name=name) for name, facts in bare.items()}

    def create(self, topic: TopicFacts) -> None:
        self._inner.create(replace(topic, name=self._prefix + topic.name))

    def add_partitions(self, topic: str, total: int) -> None:
        self._inner.add_partitions(self._prefix + topic, total)
