"""Runners as services on a real broker: killed, doubled, robbed of their state; everything is published once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.processors.runner_examples import encode_events, rank_event
from tests.stack.kafka_room import KafkaRoom
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_INCIDENTS
from whichrank.telemetry.vocabulary import EventName

ROOT = Path(__file__).parents[2]
NAME = "job"
READY_S = 90.0


class Processor:
    """One ``small_service`` process."""

    def __init__(self, room: KafkaRoom, folder: Path, instance: str) -> None:
        self._log = (folder / f"{instance}.log").open("ab+")
        settings = json.dumps({**asdict(room.settings(NAME)), "tls_ca": None})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stack.small_service", settings, folder / f"{instance}.sqlite", instance],
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def wait_until_ready(self) -> None:
        before = self.said().count("ready as")
        eventually(
            lambda: self.said().count("ready as") > before or "ready as" in self.said(), what="ready", timeout_s=READY_S
        )

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        self.signal(signal.SIGTERM)
        return self._process.wait(timeout=60)


@pytest.fixture
def room(kafka: Kafka, topic_prefix: str) -> Iterator[KafkaRoom]:
    made = KafkaRoom(kafka, topic_prefix, "kafka-python")
    made.make(NAME)
    yield made
    made.close()


@pytest.fixture
def processors() -> Iterator[list[Processor]]:
    started: list[Processor] = []
    yield started
    for processor in started:
        processor.kill()


def exit_of(room: KafkaRoom, rank: int) -> None:
    events = encode_events(
        rank_event(rank, job=f"j{rank % 3}"), rank_event(rank, EventName.RANK_EXIT, job=f"j{rank % 3}")
    )
    room.send(NAME, TOPIC_BLOCKS, f"j{rank % 3}", events)


def published(room: KafkaRoom) -> Counter[tuple[str, int]]:
    """(id, revision) of every committed incident message."""
    found: Counter[tuple[str, int]] = Counter()
    for value in room.consume(NAME, TOPIC_INCIDENTS):
        for payload in decode_logs(TOPIC_INCIDENTS, value):
            assert isinstance(payload, Incident)
            found[str(payload.document["id"]), int(payload.document["revision"])] += 1
    return found


def expected(ranks: int) -> Counter[tuple[str, int]]:
    return Counter({(f"j{rank % 3} exit {rank}", 1): 1 for rank in range(ranks)})


def without_silence(found: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """But for what is said of the input itself."""
    return Counter({key: count for key, count in found.items() if key[0] != "input silent"})


def wait_for(room: KafkaRoom, ranks: int) -> None:
    eventually(lambda: len(without_silence(published(room))) >= ranks, what=f"{ranks} incidents", timeout_s=READY_S)


def test_a_fault_is_published_once(room: KafkaRoom, tmp_path: Path, processors: list[Processor]) -> None:
    processors.append(Processor(room, tmp_path, "one"))
    processors[0].wait_until_ready()
    exit_of(room, 0)
    wait_for(room, 1)
    assert without_silence(published(room)) == expected(1)
    assert processors[0].end() == 0


def test_killed_at_any_moment_everything_is_published_once(
    room: KafkaRoom, tmp_path: Path, processors: list[Processor]
) -> None:
    drawn = random.Random(5)
    rank = 0
    for _ in range(8):
        processor = Processor(room, tmp_path, "one")
        processors.append(processor)
        until = time.monotonic() + drawn.uniform(1.0, 4.0)
        while time.monotonic() < until:
            exit_of(room, rank)
            rank += 1
            time.sleep(drawn.uniform(0.0, 0.1))
        processor.kill()
    processors.append(Processor(room, tmp_path, "one"))
    wait_for(room, rank)
    assert without_silence(published(room)) == expected(rank)


def test_a_standby_takes_over_and_repeats_nothing(room: KafkaRoom, tmp_path: Path, processors: list[Processor]) -> None:
    processors.append(Processor(room, tmp_path, "one"))
    processors[0].wait_until_ready()
    processors.append(Processor(room, tmp_path, "two"))
    processors[1].wait_until_ready()
    assert "one leads; standing by" in processors[1].said()
    for rank in range(10):
        exit_of(room, rank)
    processors[0].kill()
    for rank in range(10, 20):
        exit_of(room, rank)
    wait_for(room, 20)
    assert without_silence(published(room)) == expected(20)
    assert "taking over" in processors[1].said()
    processors.append(Processor(room, tmp_path, "one"))
    eventually(lambda: "two leads; standing by" in processors[2].said(), what="a standby", timeout_s=READY_S)


def test_a_lost_state_is_rebuilt_and_nothing_is_published_again(
    room: KafkaRoom, tmp_path: Path, processors: list[Processor]
) -> None:
    processors.append(Processor(room, tmp_path, "one"))
    for rank in range(10):
        exit_of(room, rank)
    wait_for(room, 10)
    processors[0].kill()
    for file in tmp_path.glob("one.sqlite*"):
        file.unlink()
    exit_of(room, 10)
    processors.append(Processor(room, tmp_path, "one"))
    wait_for(room, 11)
    exit_of(room, 11)
    wait_for(room, 12)
    assert without_silence(published(room)) == expected(12)


def test_two_leaders_never_both_publish(room: KafkaRoom, tmp_path: Path, processors: list[Processor]) -> None:
    """One that was stopped (a suspended machine) comes back and still believes that it leads."""
    processors.append(Processor(room, tmp_path, "one"))
    processors[0].wait_until_ready()
    processors.append(Processor(room, tmp_path, "two"))
    processors[1].wait_until_ready()
    exit_of(room, 0)
    wait_for(room, 1)
    processors[0].signal(signal.SIGSTOP)
    exit_of(room, 1)
    wait_for(room, 2)
    processors[0].signal(signal.SIGCONT)
    for rank in range(2, 30):
        exit_of(room, rank)
        time.sleep(0.02)
    wait_for(room, 30)
    assert without_silence(published(room)) == expected(30)
    eventually(
        lambda: "standby" in processors[0].said() or "standing by" in processors[0].said(),
        what="the old one stands by",
        timeout_s=READY_S,
    )
