"""Where what an agent tells goes: to Kafka, to the user's OpenTelemetry endpoint, or to both. Any thread; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...agents.base.priority import Priority
from ...agents.publish.kafka_publisher import KafkaPublisher, describe_stats
from ...agents.publish.spool import OWN
from ...telemetry.topics import TOPIC_LOGS
from ..otlp_out.otlp_sender import OtlpSender


class AgentWays:
    """Both are started and closed here. kafka: None without brokers: then the endpoint alone gets anything."""

    def __init__(self, kafka: KafkaPublisher | None, otlp: OtlpSender) -> None:
        self._kafka, self._otlp = kafka, otlp

    def start(self) -> None:
        """Starts the way to Kafka; the other one starts with its first request."""
        if self._kafka is not None:
            self._kafka.start()

    def publish(self, topic: str, key: str, value: bytes, priority: Priority, *, owner: int = OWN) -> None:
        """Queues a message for each of the two that takes its topic. owner: uid of whose job it is of."""
        if self._kafka is not None:
            self._kafka.publish(topic, key, value, priority, owner=owner)
        # On the logs' topic are pieces of evidence, too: those are asked for over Kafka, and no log records of people.
        if topic != TOPIC_LOGS or priority is Priority.COPIES:
            self._otlp.send(topic, value)

    def of_owner(self, uid: int) -> Callable[[str, str, bytes, Priority], None]:
        """``publish`` for the jobs of one owner."""

        def publish(topic: str, key: str, value: bytes, priority: Priority) -> None:
            self.publish(topic, key, value, priority, owner=uid)

        return publish

    def told_to(self, brokers: str) -> str:
        """In words, where to. brokers: as the settings name them."""
        ways = [f"publishes to Kafka at {brokers}"] if self._kafka is not None else []
        if signals := sorted(signal.lower() for signal in self._otlp.signals):
            ways.append(f"sends {', '.join(signals)} to an OpenTelemetry endpoint")
        return " and ".join(ways) or "publishes nothing"

    @property
    def stats(self) -> Mapping[str, int]:
        """Counters by name, of both."""
        return {**(self._kafka.stats if self._kafka is not None else {}), **self._otlp.stats}

    def close(self, patience_s: float) -> str:
        """Sends what waits for so long at most; what became of it, in a line."""
        self._otlp.finish()
        said = []
        if self._kafka is not None:
            self._kafka.close(patience_s)
            said.append(describe_stats(self._kafka.stats))
        self._otlp.close(patience_s if self._kafka is None else 0.0)
        if self._otlp.signals:
            said.append(f"OpenTelemetry: {self._otlp.delivered} requests delivered, {self._otlp.dropped} dropped")
        return "; ".join(said)
