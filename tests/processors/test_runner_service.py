"""A service while Kafka is away: it waits, says so once, and nothing that it asks for its own figures ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.processors.runner_examples import Clock, make_operators, open_bus
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_service import FIRST_PAUSE_S, LOOK_S, Role, Service
from whichrank.transport.kafka_client import KafkaTrouble


class AwayLog:
    """A log whose brokers stop answering, and answer again."""

    leads = is_overtaken = False
    missed = too_large = 0
    other = ""

    def __init__(self) -> None:
        self.away = False

    def _ask(self) -> bool:
        if self.away:
            raise KafkaTrouble("Kafka at x does not answer")
        return True

    def clock_is_read(self) -> bool:
        return self._ask()

    def caught_up(self) -> bool:
        return self._ask()

    def silence_s(self) -> float:
        return 0.0

    def say_alive(self) -> None:
        self._ask()

    def lag_s(self) -> float:
        return 0.0

    def now_ns(self) -> int:
        return 1


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[EmbeddedRunner]:
    bus = open_bus(tmp_path, Clock())
    made = EmbeddedRunner(bus, None, make_operators(), lambda record: None, live=False)
    yield made
    made.close()
    bus.close()


def test_a_service_outlives_kafka_s_absence_and_says_it_once(runner: EmbeddedRunner) -> None:
    said: list[str] = []
    log, now = AwayLog(), [0.0]
    service = Service(runner, cast(Any, log), shadow=False, report=said.append, monotonic_s=lambda: now[0])
    log.away = True
    pauses = []
    for _ in range(4):
        now[0] += 2 * LOOK_S
        pauses.append(service.turn())
    assert pauses == [FIRST_PAUSE_S * 2**turn for turn in range(4)]
    assert said == ["Kafka at x does not answer; trying again"]
    assert service.health().trouble == "Kafka at x does not answer"
    log.away = False
    for _ in range(3):
        now[0] += 2 * LOOK_S
        service.turn()
    assert said[-2:] == ["Kafka answers again after: Kafka at x does not answer", " leads; standing by"]
    assert (service.health().trouble, service.role) == (None, Role.STANDBY)
