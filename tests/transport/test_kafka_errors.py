"""What a Kafka client raises becomes the kind of trouble that its caller acts on."""

from __future__ import annotations

from typing import ClassVar

from whichrank.transport.kafka_client import Fenced
from whichrank.transport.kafka_errors import explain
from whichrank.transport.kafka_settings import KafkaSettings


class KafkaError(Exception):
    """As kafka-python's: the protocol's name of the first error is in its words alone."""

    retriable: ClassVar[bool] = False


def test_a_producer_that_was_fenced_in_the_background_says_so_at_its_next_call() -> None:
    words = "Cannot execute transactional method because we are in an error state: [Error 90] ProducerFencedError"
    trouble = explain(KafkaError(f"KafkaError: {words}"), KafkaSettings(brokers="b:9092"), "commit a transaction")
    assert isinstance(trouble, Fenced)


def test_a_producer_stopped_by_something_else_is_no_standby() -> None:
    words = (
        "Cannot execute transactional method because we are in an error state: [Error 3] UnknownTopicOrPartitionError"
    )
    trouble = explain(KafkaError(words), KafkaSettings(brokers="b:9092"), "commit a transaction")
    assert not isinstance(trouble, Fenced)
    assert "whichrank topics" in str(trouble)
