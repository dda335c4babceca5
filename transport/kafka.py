"""Which client library speaks to Kafka: kafka-python, unless the settings ask for the other."""

from __future__ import annotations

from ..telemetry.missing_packages import in_words
from .kafka_client import Client, KafkaTrouble
from .kafka_prefix import PrefixedClient
from .kafka_settings import KafkaSettings

CLIENTS = ("kafka-python", "confluent-kafka")


def make_client(settings: KafkaSettings) -> Client:
    """A client of the library that the settings name; it connects to nothing yet.

    Raises KafkaTrouble for a library that is unknown or not installed.
    """
    client = _library(settings)
    return PrefixedClient(client, settings.topic_prefix) if settings.topic_prefix else client


def _library(settings: KafkaSettings) -> Client:
    try:
        if settings.client == "kafka-python":
            from .kafka_python_client import KafkaPythonClient

            return KafkaPythonClient(settings)
        if settings.client == "confluent-kafka":
            from .confluent_client import ConfluentClient

            return ConfluentClient(settings)
    except ImportError as error:
        # The agent's extra has it too: who lacks it has neither.
        extra = "confluent" if settings.client == "confluent-kafka" else "processors"
        raise KafkaTrouble(in_words(error, extra), lasting=True) from error
    raise KafkaTrouble(f"kafka_client {settings.client!r} is none of {', '.join(CLIENTS)}", lasting=True)
