"""Topics and their configuration by confluent-kafka: ``Admin`` of ``kafka_client``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import (
    KafkaException,
    TopicCollection,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from .confluent_connection import Heard, common_options, explained, reach
from .kafka_client import TopicFacts
from .kafka_settings import KafkaSettings


class ConfluentAdmin:
    """``Admin``."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._heard = Heard(settings)
        options = common_options(settings, self._heard)
        with explained(self._heard, "connect"):
            self._admin = AdminClient(options)
            reach(self._admin, settings.request_timeout_s)

    def cluster_id(self) -> str:
        """The brokers' own id. Raises KafkaTrouble."""
        with explained(self._heard, "describe the cluster"):
            return str(self._admin.list_topics(timeout=self._settings.request_timeout_s).cluster_id)

    def describe(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        """Topics that exist, by name; others are left out. Raises KafkaTrouble."""
        with explained(self._heard, "describe topics"):
            known = self._admin.list_topics(timeout=self._settings.request_timeout_s).topics
        found = {name: known[name] for name in topics if name in known and known[name].partitions}
        ids = self._ids(list(found))
        return {
            name: TopicFacts(
                name=name,
                partitions=len(topic.partitions),
                replication=len(next(iter(topic.partitions.values())).replicas),
                configuration=self._configuration(name),
                topic_id=ids.get(name, ""),
            )
            for name, topic in found.items()
        }

    def create(self, topic: TopicFacts) -> None:
        """Creates the topic, and waits for the brokers' answer. Raises KafkaTrouble, also where it is there already."""
        wanted = NewTopic(
            topic.name, topic.partitions, topic.replication, config={k: str(v) for k, v in topic.configuration.items()}
        )
        with explained(self._heard, f"create topic {topic.name}"):
            self._admin.create_topics([wanted])[topic.name].result(self._settings.request_timeout_s)

    def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions until the topic has ``total``. Raises KafkaTrouble."""
        with explained(self._heard, f"add partitions to topic {topic}"):
            self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(self._settings.request_timeout_s)

    def close(self) -> None:
        """Does nothing: the library has nothing to close here."""

    def _ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        if not topics:
            return {}
        try:
            described = self._admin.describe_topics(TopicCollection(list(topics)))
            return {
                name: str(future.result(self._settings.request_timeout_s).topic_id)
                for name, future in described.items()
            }
        except KafkaException:  # older brokers do not tell
            return {}

    def _configuration(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            entries = self._admin.describe_configs([resource])[resource].result(self._settings.request_timeout_s)
        except KafkaException:  # the right to see them is not given
            return {}
        return {name: str(entry.value) for name, entry in entries.items()}
