"""What the service tells people and when: by role, and where Kafka takes nothing. The real one is in tests/stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agents.people_messages import points_of
from tests.processors.runner_examples import Clock, open_bus
from whichrank.commands.services.observability_feed import RETRY_S, ObservabilityFeed
from whichrank.processors.cluster.case import Case
from whichrank.processors.cluster.case_row import pack_case
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_service import Role, ServiceHealth
from whichrank.telemetry import attributes as names
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.topics import TOPIC_METRICS
from whichrank.transport.kafka_client import Admin, Consumer, KafkaTrouble, OnDone, Producer, QueueFull


class Refusing:
    """A client whose producer takes messages, or not; everything else of it is not used."""

    name = "refusing"

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.no_connection = self.is_full = self.fails_later = False
        self.connections = 0

    def producer(self, *, transactional_id: str | None = None) -> Producer:
        if self.no_connection:
            raise KafkaTrouble("no broker answers")
        self.connections += 1
        return _Producer(self)

    def consumer(self, *, committed_only: bool) -> Consumer:
        raise NotImplementedError

    def admin(self) -> Admin:
        raise NotImplementedError


class _Producer:
    def __init__(self, client: Refusing) -> None:
        self._client = client

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Mapping[str, bytes] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        if self._client.is_full:
            raise QueueFull("no room")
        self._client.sent.append((topic, value))
        if on_done is not None:
            on_done(None, KafkaTrouble("too late") if self._client.fails_later else None)

    def poll(self) -> None: ...
    def flush(self, timeout_s: float) -> int:
        return 0

    def begin(self) -> None: ...
    def commit(self, timeout_s: float) -> None: ...
    def abort(self, timeout_s: float) -> None: ...
    def close(self, timeout_s: float) -> None: ...


def health(role: Role = Role.LEADER) -> ServiceHealth:
    return ServiceHealth(
        role=role,
        caught_up=True,
        lag_s=0.5,
        trouble=None,
        idle_s=0.0,
        messages=7,
        records=70,
        unreadable=0,
        nameless=0,
        published=3,
        outbox=0,
        missed=0,
        too_large=0,
        failed_commits=0,
        rows=5,
        timers=1,
        timers_late_s=0.0,
    )


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[EmbeddedRunner]:
    bus = open_bus(tmp_path / "bus", Clock())
    made = EmbeddedRunner(bus, None, [], lambda record: None, live=False)
    yield made
    made.close()
    bus.close()


def keep_incident(runner: EmbeddedRunner, identifier: str, state: str = "open") -> None:
    """As ClusterOperator has it in its state."""
    document: dict[str, Any] = {"id": identifier, "state": state, "severity": "page", "job": {"id": "job-7"}}
    case = Case(id=identifier, cluster="lab", run="", job="job-7", attempt="a", document=read_incident(document))
    runner._state.open_table(("cluster", "lab", "incidents")).put(identifier, pack_case(case))  # noqa: SLF001


def shown(client: Refusing) -> dict[str, int]:
    """Gauges of incidents in what was sent since the last call."""
    values = [value for topic, value in client.sent if topic == TOPIC_METRICS]
    client.sent.clear()
    return {
        words[names.INCIDENT_ID]: point.as_int
        for _, name, words, point in points_of(values)
        if name == names.METRIC_INCIDENT_ACTIVE
    }


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the feed's clocks."""
    times = {"s": 1_700_000_000.0}
    clocks = SimpleNamespace(time_ns=lambda: int(times["s"] * 1e9), monotonic=lambda: times["s"])
    monkeypatch.setattr("whichrank.commands.services.observability_feed.time", clocks)

    def pass_time(seconds: float) -> None:
        times["s"] += seconds

    return pass_time


def test_only_the_leader_tells_of_incidents(runner: EmbeddedRunner, now: Callable[[float], None]) -> None:
    client = Refusing()
    feed = ObservabilityFeed(client, cluster="lab", instance="a")
    keep_incident(runner, "1")
    for role in (Role.STARTING, Role.STANDBY, Role.SHADOW):
        feed.turn(role, runner, lambda: health(Role.STANDBY))
        assert shown(client) == {}
        now(11)
    feed.turn(Role.LEADER, runner, health)
    assert shown(client) == {"1": 1}
    now(11)
    feed.turn(Role.STANDBY, runner, health)
    assert shown(client) == {}, "another one leads now"
    keep_incident(runner, "1", "resolved")
    keep_incident(runner, "2")
    now(11)
    feed.turn(Role.LEADER, runner, health)
    assert shown(client) == {"2": 1}, "as the state has it by now"
    feed.close()


def test_what_kafka_does_not_take_is_counted_and_the_feed_goes_on(
    runner: EmbeddedRunner, now: Callable[[float], None]
) -> None:
    client = Refusing()
    feed = ObservabilityFeed(client, cluster="lab", instance="a")
    client.no_connection = True
    feed.turn(Role.LEADER, runner, health)
    assert feed.dropped == 1
    client.no_connection, client.is_full = False, True
    now(RETRY_S)
    feed.turn(Role.LEADER, runner, health)
    assert feed.dropped == 2
    client.is_full, client.fails_later = False, True
    now(RETRY_S)
    feed.turn(Role.LEADER, runner, health)
    assert (feed.dropped, client.connections) == (3, 2)
    client.fails_later = False
    now(RETRY_S)
    feed.turn(Role.LEADER, runner, health)
    assert (feed.dropped, client.connections) == (3, 3), "a client that was refused once is not trusted again"
    drops = {
        words[names.DROP_REASON]: point.as_int
        for _, name, words, point in points_of([client.sent[-1][1]])
        if name == names.METRIC_PIPELINE_DROPS
    }
    assert drops["kafka"] == 3
    feed.close()
