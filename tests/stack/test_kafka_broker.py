"""The broker as compose configures it: it keeps what it took, knows its users, and lets each do the least it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.service import eventually
from whichrank.telemetry.topics import (
    TOPIC_BLOCKS,
    TOPIC_CLOCK,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_REQUESTS,
    TOPIC_WORDS,
)
from whichrank.transport.kafka import CLIENTS, make_client
from whichrank.transport.kafka_client import KafkaTrouble, Sent, TopicFacts

ANSWER_S = 60.0
LOCKED = Security(tls=True, sasl=True)


def make_topic(kafka: Kafka, name: str, partitions: int = 1, **configuration: str) -> None:
    admin = make_client(kafka.settings()).admin()
    admin.create(TopicFacts(name=name, partitions=partitions, replication=1, configuration=configuration))
    admin.close()


def send(
    kafka: Kafka, topic: str, values: list[bytes], user: str = "admin", client: str = "kafka-python"
) -> list[Sent]:
    """Send and wait for the broker's answers. Raises the KafkaTrouble of the first that was refused."""
    answers: list[Sent | KafkaTrouble | None] = []
    producer = make_client(kafka.settings(user, client=client)).producer()
    try:
        for value in values:
            producer.send(topic, b"key", value, on_done=lambda sent, trouble: answers.append(sent or trouble))
        producer.flush(ANSWER_S)
        eventually(lambda: len(answers) == len(values), what="an answer for each message", timeout_s=ANSWER_S)
    finally:
        producer.close(5.0)
    for answer in answers:
        if isinstance(answer, KafkaTrouble):
            raise answer
    return [answer for answer in answers if isinstance(answer, Sent)]


def receive(kafka: Kafka, topic: str, count: int, user: str = "admin", client: str = "kafka-python") -> list[bytes]:
    consumer = make_client(kafka.settings(user, client=client)).consumer(committed_only=True)
    values: list[bytes] = []

    def enough() -> bool:
        values.extend(message.value for message in consumer.poll(0.5))
        return len(values) >= count

    try:
        consumer.assign({(topic, partition): 0 for partition in consumer.partitions(topic)})
        eventually(enough, what=f"{count} messages in {topic}", timeout_s=ANSWER_S)
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("security", [Security(tls=True), Security(sasl=True), LOCKED], ids=["tls", "sasl", "both"])
def test_a_message_goes_through_every_overlay(
    fresh_kafka: Callable[..., Kafka], security: Security, client: str
) -> None:
    kafka = fresh_kafka(security)
    make_topic(kafka, "greetings")
    assert [sent.offset for sent in send(kafka, "greetings", [b"one", b"two"], client=client)] == [0, 1]
    assert receive(kafka, "greetings", 2, client=client) == [b"one", b"two"]


def test_a_killed_broker_comes_back_with_what_it_took(fresh_kafka: Callable[..., Kafka]) -> None:
    kafka = fresh_kafka()
    make_topic(kafka, "kept")
    send(kafka, "kept", [b"before"])
    kafka.kill()
    kafka.start()
    send(kafka, "kept", [b"after"])
    assert receive(kafka, "kept", 2) == [b"before", b"after"]
    kafka.stop()
    kafka.start()
    assert receive(kafka, "kept", 2) == [b"before", b"after"]


def test_the_stamp_is_the_brokers_and_no_topic_makes_itself(kafka: Kafka, topic_prefix: str) -> None:
    topic = f"{topic_prefix}stamped"
    with pytest.raises(KafkaTrouble, match="topic"):
        send(kafka, topic, [b"nowhere"])
    make_topic(kafka, topic)
    send(kafka, topic, [b"here"])
    consumer = make_client(kafka.settings()).consumer(committed_only=True)
    consumer.assign({(topic, 0): 0})
    messages = list(consumer.poll(ANSWER_S))
    consumer.close()
    assert [(message.value, message.appended_by_broker) for message in messages] == [(b"here", True)]


TOPICS = (TOPIC_LOGS, TOPIC_BLOCKS, TOPIC_REQUESTS, TOPIC_INCIDENTS, TOPIC_CLOCK, TOPIC_WORDS)


@pytest.fixture(scope="module")
def locked_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """TLS, users, and the rights that acls.sh grants."""
    broker = Kafka(tmp_path_factory.mktemp("locked"), security=LOCKED)
    try:
        broker.start()
        broker.grant()
        for topic in TOPICS:
            make_topic(broker, topic)
            send(broker, topic, [b"something"])
        yield broker
    finally:
        broker.kill()


@pytest.mark.parametrize(
    ("user", "writes", "reads"),
    [
        ("agent", {TOPIC_LOGS, TOPIC_BLOCKS}, {TOPIC_REQUESTS}),
        ("processor", {TOPIC_LOGS, TOPIC_CLOCK, TOPIC_INCIDENTS, TOPIC_REQUESTS}, set(TOPICS)),
        ("collector", set(), {TOPIC_LOGS}),
        ("intake", {TOPIC_LOGS}, set()),
        ("operator", {TOPIC_WORDS}, {TOPIC_LOGS, TOPIC_INCIDENTS, TOPIC_WORDS}),
    ],
)
def test_each_user_may_do_the_least_it_must(locked_kafka: Kafka, user: str, writes: set[str], reads: set[str]) -> None:
    assert {topic for topic in TOPICS if allowed(partial(send, locked_kafka, topic, [b"x"], user))} == writes
    assert {topic for topic in TOPICS if allowed(partial(receive, locked_kafka, topic, 1, user))} == reads


def allowed(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except KafkaTrouble:
        return False
    return True


def test_a_processor_may_use_its_transactional_id_and_no_other(locked_kafka: Kafka) -> None:
    client = make_client(locked_kafka.settings("processor"))
    producer = client.producer(transactional_id="whichrank-test")
    producer.begin()
    producer.send(TOPIC_INCIDENTS, b"id", b"{}")
    producer.commit(ANSWER_S)
    producer.close(5.0)
    assert not allowed(lambda: client.producer(transactional_id="somebody-else").begin())
