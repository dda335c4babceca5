"""What every command that publishes to Kafka sets up alike."""

from __future__ import annotations

from pathlib import Path

from ...agents.publish.broker_clock import BrokerClock
from ...agents.publish.kafka_publisher import KafkaPublisher
from ...transport.kafka import make_client
from ...transport.kafka_client import Client
from ..settings.settings import KafkaOptions

#: The client keeps trying that long by itself, in order and once; what is given back sooner could be overtaken.
DELIVERY_S = 3600.0


def make_publisher(
    options: KafkaOptions, name: str, spool_directory: Path, spool_bytes: int, clock: BrokerClock | None = None
) -> tuple[KafkaPublisher, Client]:
    """A publisher, not started, and the client that it uses; nothing is connected yet.

    name: of this instance, in the brokers' logs. Raises KafkaTrouble for a client library that is not there.
    """
    client = make_client(options.kafka_settings(client_id=name, delivery_timeout_s=DELIVERY_S))
    publisher = KafkaPublisher(client.producer, spool_directory=spool_directory, spool_bytes=spool_bytes, clock=clock)
    return publisher, client
