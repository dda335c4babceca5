"""What compose starts of whichrank itself, in its order, on a broker with TLS, users and the least rights."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack.parts.kafka import PLAIN, Kafka, Security
from tests.stack.parts.own_service import OwnService
from tests.stack.parts.service import eventually
from tests.stack.parts.whole_stack import Stack
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import make_client

LOCKED = Security(tls=True, sasl=True)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[OwnService]]:
    """Put here what has been started; it is ended."""
    services: list[OwnService] = []
    yield services
    for service in services:
        service.service.kill()


@pytest.mark.parametrize("security", [PLAIN, LOCKED], ids=["plain", "locked"])
def test_topics_are_made_and_a_processor_becomes_healthy_and_reads(
    fresh_kafka: Callable[..., Kafka], tmp_path: Path, started: list[OwnService], security: Security
) -> None:
    kafka = fresh_kafka(security)
    if security.sasl:
        kafka.grant()
    topics = OwnService("topic-init", tmp_path / "topics", kafka)
    topics.service.start(wait=False)
    assert topics.service.wait() == 0, topics.service.output()
    assert TOPIC_BLOCKS in kafka.tool("kafka-topics.sh", "--list").split()

    processor = OwnService("processor", tmp_path / "processor", kafka)
    started.append(processor)
    processor.service.start()
    assert figure(processor, "whichrank_process_state_rows") == 0
    publish_an_event(kafka)
    eventually(lambda: figure(processor, "whichrank_process_state_rows") > 0, what="the processor knows of the job")
    assert health(processor)["role"] == "leader", processor.service.output()
    assert processor.service.stop() == 0, processor.service.output()
    assert (tmp_path / "processor" / "state" / "state.sqlite").is_file()


def publish_an_event(kafka: Kafka) -> None:
    identity = Identity(job="job-7", attempt="a", node="node-02", rank=3)
    event = Event(name=EventName.RANK_STARTED, identity=identity, time_ns=1, attributes={"pid": 1, "world_size": 4})
    producer = make_client(kafka.settings("agent")).producer()
    producer.send(TOPIC_BLOCKS, b"job-7", encode_payloads([event]))
    assert producer.flush(60.0) == 0
    producer.close(5.0)


def health(processor: OwnService) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{processor.health_address}/readyz", timeout=10) as answer:
        return dict(json.load(answer))


def figure(processor: OwnService, name: str) -> float:
    with urllib.request.urlopen(f"http://{processor.health_address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_prometheus_sees_the_processor(stack: Stack, tmp_path: Path, started: list[OwnService]) -> None:
    topics = OwnService("topic-init", tmp_path / "topics", stack.kafka)
    topics.service.start(wait=False)
    assert topics.service.wait() == 0, topics.service.output()
    processor = OwnService("processor", tmp_path / "processor", stack.kafka, stack.processor_port)
    started.append(processor)
    processor.service.start()
    eventually(
        lambda: [row["value"][1] for row in stack.prometheus.query('up{job="processor"}')] == ["1"],
        what="Prometheus scrapes the processor",
    )
