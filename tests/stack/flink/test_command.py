"""``whichrank process --engine flink`` as people start it: stamps of the broker, beats of the job, health."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.ports import free_ports
from tests.stack.flink.fed_jobs import Feed
from tests.stack.parts.flink import PYTHON, Flink
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import Service, answers_http, eventually
from tests.stack.test_process_command import death
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_CLOCK
from whichrank.transport.kafka_client import KafkaTrouble

WAIT_S = 240.0


def process(flink: Flink, feed: Feed, folder: Path, health: str) -> Service:
    return Service(
        "process",
        [PYTHON.with_name("whichrank"), "process", "--engine", "flink", "--health", health],
        log=folder / "process.log",
        ready=lambda: is_ready(health),
        environment={
            **flink.environment,
            "WHICHRANK_KAFKA": feed.settings.brokers,
            "WHICHRANK_KAFKA_TOPIC_PREFIX": feed.settings.topic_prefix,
            "WHICHRANK_FLINK": flink.rest,
            "WHICHRANK_FLINK_HOME": str(flink.home),
            "WHICHRANK_FLINK_PARALLELISM": "2",
        },
    )


def page(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def is_ready(health: str) -> bool:
    """False while nobody listens, too."""
    try:
        return answers_http(f"http://{health}/readyz")
    except OSError:
        return False


def send(feed: Feed, topic: str, key: str, value: bytes) -> None:
    """Once the topic, which was made a moment ago, has a leader."""
    producer = feed.client.producer()

    def is_taken() -> bool:
        try:
            producer.send(topic, key.encode(), value)
        except KafkaTrouble:
            return False
        return True

    eventually(is_taken, what=f"{topic} takes a message")
    assert producer.flush(30.0) == 0
    producer.close(1.0)


def test_a_death_becomes_an_incident_and_health_is_told(
    kafka: Kafka, flink: Flink, topic_prefix: str, tmp_path: Path
) -> None:
    feed = Feed(kafka, topic_prefix, brokers_stamps=True)
    health = f"127.0.0.1:{free_ports(1)[0]}"
    service = process(flink, feed, tmp_path, health)
    service.start(wait=False)
    try:
        eventually(lambda: is_ready(health) or not service.running, what="the job is ready", timeout_s=WAIT_S)
        assert service.running, service.output()
        send(feed, TOPIC_BLOCKS, "j1", death("j1", 1))
        eventually(lambda: bool(feed.incidents()), what=f"an incident; {flink.why()}", timeout_s=WAIT_S)
        (document,) = feed.incidents()[-1:]
        assert (document["kind"], document["job"]["id"]) == ("rank_died", "j1")
        assert "whichrank_flink_running 1.0" in page(f"{health}/metrics")
        again = process(flink, feed, tmp_path, f"127.0.0.1:{free_ports(1)[0]}")
        again.start(wait=False)
        eventually(lambda: "the job runs already" in again.output(), what="the same job", timeout_s=WAIT_S)
        again.stop()
    finally:
        service.stop()
    assert "the job goes on in Flink" in service.output()
    assert flink.job_state() == "RUNNING"
    flink.command("cancel", flink.job_id())


def test_beside_an_embedded_judge_it_is_refused(kafka: Kafka, flink: Flink, topic_prefix: str, tmp_path: Path) -> None:
    feed = Feed(kafka, topic_prefix, brokers_stamps=True)
    send(feed, TOPIC_CLOCK, "", b"")
    service = process(flink, feed, tmp_path, "")
    began_s = time.monotonic()
    service.start(wait=False)
    assert service.wait() == 2
    assert "end it first" in service.output()
    assert time.monotonic() - began_s < WAIT_S
