"""Topics and their configuration by kafka-python: ``Admin`` of ``kafka_client``."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Mapping, Sequence

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import KafkaError

from .kafka_client import TopicFacts
from .kafka_python_connection import common_options, explained
from .kafka_settings import KafkaSettings


def _topic_id(given: object) -> str:
    """As Kafka's own tools write it."""
    return base64.urlsafe_b64encode(given.bytes).decode().rstrip("=") if isinstance(given, uuid.UUID) else ""


class KafkaPythonAdmin:
    """``Admin``."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        with explained(settings, "connect"):
            self._admin = KafkaAdminClient(**common_options(settings))

    def cluster_id(self) -> str:
        """The brokers' own id. Raises KafkaTrouble."""
        with explained(self._settings, "describe the cluster"):
            return str(self._admin.describe_cluster()["cluster_id"])

    def describe(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        """Topics that exist, by name; others are left out. Raises KafkaTrouble."""
        with explained(self._settings, "describe topics"):
            described = self._admin.describe_topics(list(topics))
        found = [item for item in described if not item.get("error_code") and item.get("partitions")]
        configurations = self._configurations([item["name"] for item in found])
        return {
            item["name"]: TopicFacts(
                name=item["name"],
                partitions=len(item["partitions"]),
                replication=len(item["partitions"][0]["replica_nodes"]),
                configuration=configurations.get(item["name"], {}),
                topic_id=_topic_id(item.get("topic_id")),
            )
            for item in found
        }

    def create(self, topic: TopicFacts) -> None:
        """Creates the topic, and waits for the brokers' answer. Raises KafkaTrouble, also where it is there already."""
        wanted = NewTopic(topic.name, topic.partitions, topic.replication, topic_configs=dict(topic.configuration))
        with explained(self._settings, f"create topic {topic.name}"):
            self._admin.create_topics([wanted])

    def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions until the topic has ``total``. Raises KafkaTrouble."""
        with explained(self._settings, f"add partitions to topic {topic}"):
            self._admin.create_partitions({topic: NewPartitions(total)})

    def close(self) -> None:
        """Leaves the brokers; errors in doing so are ignored."""
        with contextlib.suppress(KafkaError, OSError):
            self._admin.close()

    def _configurations(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        if not topics:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
        try:
            described = self._admin.describe_configs(resources, config_filter="all")
        except KafkaError:  # the right to see them is not given
            return {}
        return {
            name: {key: str(entry["value"]) for key, entry in entries.items()}
            for name, entries in described.get("topic", {}).items()
        }
