"""The publisher's threads against a client that does what a test tells it: nobody waits, and all is counted."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from whichrank.agents.base.priority import Priority, priority_of, runs_of_one_priority
from whichrank.agents.publish.kafka_publisher import KafkaPublisher, describe_stats
from whichrank.agents.publish.outbox import OutboxSettings
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka_client import KafkaTrouble, OnDone, QueueFull, Sent, TooLarge


class Client:
    """A producer: takes everything and answers at once, unless told otherwise."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes, bytes]] = []
        self.silent = False
        self.held: list[tuple[tuple[str, bytes, bytes], OnDone]] = []
        self.trouble: Callable[[str, bytes], KafkaTrouble | None] = lambda topic, value: None
        self.refuse_send: Callable[[str], KafkaTrouble | None] = lambda topic: None
        self.closed = False

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Mapping[str, bytes] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        refusal = self.refuse_send(topic)
        if refusal is not None:
            raise refusal
        assert on_done is not None
        if self.silent:
            self.held.append(((topic, key, value), on_done))
            return
        self._answer((topic, key, value), on_done)

    def _answer(self, message: tuple[str, bytes, bytes], on_done: OnDone) -> None:
        trouble = self.trouble(message[0], message[2])
        if trouble is None:
            self.received.append(message)
            on_done(Sent(offset=len(self.received), stamp_ns=1), None)
        else:
            on_done(None, trouble)

    def speak(self) -> None:
        self.silent = False
        held, self.held = self.held, []
        for message, on_done in held:
            self._answer(message, on_done)

    def values(self, topic: str = "blocks") -> list[int]:
        return [int(value) for where, _, value in self.received if where == topic]

    def poll(self) -> None: ...

    def flush(self, timeout_s: float) -> int:
        return len(self.held)

    def begin(self) -> None: ...
    def commit(self, timeout_s: float) -> None: ...
    def abort(self, timeout_s: float) -> None: ...

    def close(self, timeout_s: float) -> None:
        self.closed = True


class Rig:
    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.client = Client()
        self.connect: Callable[[], Any] = lambda: self.client
        self.said: list[str] = []
        self.made: list[KafkaPublisher] = []

    def start(self, **bounds: Any) -> KafkaPublisher:
        publisher = KafkaPublisher(
            lambda: self.connect(),
            spool_directory=self.directory,
            spool_bytes=1 << 20,
            settings=OutboxSettings(**{"spool_after_s": 0.2, **bounds}),
            report=self.said.append,
        )
        publisher.start()
        self.made.append(publisher)
        return publisher


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "spool")
    yield rig
    for publisher in rig.made:
        publisher.close(0.0)


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.01)


def dropped(publisher: KafkaPublisher) -> int:
    return sum(int(count) for name, count in publisher.stats.items() if name.startswith("kafka.dropped."))


def put(publisher: KafkaPublisher, *numbers: int, topic: str = "blocks") -> None:
    for number in numbers:
        publisher.publish(topic, "job", b"%d" % number, Priority.PROGRESS)


def test_all_goes_out_in_order_and_is_counted(rig: Rig) -> None:
    publisher = rig.start()
    put(publisher, *range(500))
    until(lambda: publisher.stats["kafka.sent"] == 500)
    assert rig.client.values() == list(range(500))
    assert (publisher.stats["kafka.unsent"], publisher.stats["spool.bytes"]) == (0, 0)
    publisher.close(5.0)
    assert rig.client.closed
    assert describe_stats(publisher.stats) == "500 messages to Kafka"
    assert rig.said == []


def test_without_kafka_it_starts_spools_and_says_so_once(rig: Rig) -> None:
    def nobody() -> Any:
        raise KafkaTrouble("Kafka at here:1 does not answer")

    rig.connect = nobody
    publisher = rig.start()
    put(publisher, *range(50))
    until(lambda: publisher.stats.get("spool.records") == 50)
    put(publisher, *range(50, 60))
    until(lambda: publisher.stats["kafka.troubles"] >= 2)
    publisher.close(0.0)
    assert rig.said == ["Kafka at here:1 does not answer"]
    assert describe_stats(publisher.stats) == "0 messages to Kafka; 60 not taken by it (60 of them in the spool)"
    rig.connect = lambda: rig.client
    again = rig.start()
    put(again, *range(60, 70))
    until(lambda: again.stats["kafka.sent"] == 70)
    assert rig.client.values() == list(range(70))


def test_a_silent_client_makes_nobody_wait(rig: Rig) -> None:
    rig.client.silent = True
    publisher = rig.start(window_messages=10)
    put(publisher, *range(100))
    until(lambda: publisher.stats.get("spool.written") == 100)
    assert publisher.stats["kafka.in_flight"] == 10
    rig.client.speak()
    until(lambda: publisher.stats["kafka.sent"] == 100)
    assert rig.client.values() == list(range(100))
    until(lambda: publisher.stats["spool.bytes"] == 0)


def test_what_the_client_gave_up_goes_out_again_in_order(rig: Rig) -> None:
    failing = threading.Event()
    failing.set()
    rig.client.trouble = lambda topic, value: KafkaTrouble("no answer in time") if failing.is_set() else None
    publisher = rig.start()
    put(publisher, *range(20))
    until(lambda: publisher.stats["kafka.given_back"])
    failing.clear()
    put(publisher, *range(20, 30))
    until(lambda: publisher.stats["kafka.sent"] == 30)
    assert rig.client.values() == list(range(30))
    assert rig.said == ["no answer in time"]


def test_what_is_too_large_is_dropped_and_the_rest_goes_on(rig: Rig) -> None:
    rig.client.trouble = lambda topic, value: TooLarge("the message is too large") if value == b"3" else None
    publisher = rig.start()
    put(publisher, *range(6))
    until(lambda: publisher.stats["kafka.sent"] == 5)
    assert rig.client.values() == [0, 1, 2, 4, 5]
    assert publisher.stats["kafka.dropped.progress.too_large"] == 1
    assert rig.said == ["the message is too large"]
    assert "dropped 1 progress, too_large" in describe_stats(publisher.stats)


def test_a_topic_that_is_not_there_holds_up_nobody_else_and_loses_nothing(rig: Rig) -> None:
    missing = threading.Event()
    missing.set()
    rig.client.refuse_send = lambda topic: (
        KafkaTrouble("topic otlp_logs is not there") if topic == "otlp_logs" and missing.is_set() else None
    )
    publisher = rig.start()
    put(publisher, *range(5), topic="otlp_logs")
    put(publisher, *range(50))
    until(lambda: rig.client.values() == list(range(50)))
    missing.clear()
    until(lambda: rig.client.values("otlp_logs") == list(range(5)))
    assert rig.said == ["topic otlp_logs is not there"]


def test_after_a_lasting_refusal_a_new_client_is_made(rig: Rig) -> None:
    bad, good = rig.client, Client()
    bad.trouble = lambda topic, value: KafkaTrouble("an ACL is missing", lasting=True)
    clients = iter([bad, good])
    rig.connect = lambda: next(clients)
    publisher = rig.start()
    put(publisher, *range(10))
    until(lambda: publisher.stats["kafka.sent"] == 10)
    assert good.values() == list(range(10))
    until(lambda: bad.closed)


def test_a_full_client_is_asked_again(rig: Rig) -> None:
    full = threading.Event()
    full.set()
    rig.client.refuse_send = lambda topic: QueueFull("full") if full.is_set() else None
    publisher = rig.start()
    put(publisher, *range(10))
    until(lambda: publisher.stats.get("spool.written") == 10)
    full.clear()
    until(lambda: rig.client.values() == list(range(10)))
    assert rig.said == []


def test_a_client_library_that_fails_in_its_own_way_ends_nothing(rig: Rig) -> None:
    broken = threading.Event()
    broken.set()

    def send(topic: str) -> KafkaTrouble | None:
        if broken.is_set():
            raise AssertionError("a bug of the library")
        return None

    rig.client.refuse_send = send
    publisher = rig.start()
    put(publisher, *range(10))
    until(lambda: publisher.stats["kafka.troubles"])
    broken.clear()
    until(lambda: rig.client.values() == list(range(10)))
    assert any("a bug of the library" in line for line in rig.said)


def test_a_disk_that_refuses_leaves_memory_bounded_and_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig.client.silent = True
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        publisher = rig.start(memory_bytes=20_000, window_messages=1)
        put(publisher, *range(200))
        until(lambda: dropped(publisher))
        until(lambda: any("No space left" in line for line in rig.said))
        assert int(publisher.stats["kafka.memory_bytes"]) <= 20_000
    rig.client.speak()
    until(lambda: not publisher.stats["kafka.unsent"])
    assert int(publisher.stats["kafka.sent"]) + dropped(publisher) == 200
    assert rig.client.values() == sorted(rig.client.values())


def test_at_the_end_a_disk_that_refused_is_asked_once_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig.client.silent = True
    publisher = rig.start()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        put(publisher, *range(20))
        until(lambda: any("No space left" in line for line in rig.said))
    publisher.close(0.0)
    assert publisher.stats["spool.written"] == 20
    rig.client = Client()
    again = rig.start()
    until(lambda: again.stats["kafka.sent"] == 20)
    assert rig.client.values() == list(range(20))


def test_without_a_folder_for_the_spool_it_works_from_memory(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rig.directory = tmp_path / "file" / "spool"
    publisher = rig.start()
    put(publisher, *range(10))
    until(lambda: publisher.stats["kafka.sent"] == 10)
    (line,) = rig.said
    assert line.startswith("no spool: ")
    assert "records are kept in memory only" in line


def test_priorities_of_a_flush_keep_its_order() -> None:
    def event(name: EventName) -> Event:
        return Event(name=name, identity=Identity(), time_ns=1)

    flush = [event(EventName.GROUP_DEFINED), event(EventName.RANK_EXIT), event(EventName.AGENT_HEALTH)]
    assert [(priority, len(run)) for priority, run in runs_of_one_priority(flush)] == [
        (Priority.RANK_EVENTS, 2),
        (Priority.PROGRESS, 1),
    ]
    assert priority_of(event(EventName.RANK_EXCEPTION)) < priority_of(event(EventName.AGENT_HEALTH))
