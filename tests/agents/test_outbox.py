"""Whatever happens between the agent and Kafka, in any order: what arrived and what is counted as dropped is what was
sent, per priority, and each key's messages keep their order.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from whichrank.agents.base.priority import Priority
from whichrank.agents.publish.outbox import Outbox, OutboxSettings
from whichrank.agents.publish.spool import Outgoing, Spool

SECOND = 1_000_000_000
TOPICS = ("whichrank.blocks", "otlp_logs")
KEYS = ("job-a", "job-b")


class Disk:
    """The real disk, but for what it refuses."""

    def __init__(self) -> None:
        self.full = False
        self.real = os.write

    def write(self, fd: int, data: Any) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(fd, data)


class Kafka:
    """The client and the broker: a queue per topic; what fails takes along what is queued behind it."""

    def __init__(self) -> None:
        self.queued: dict[str, deque[Outgoing]] = {topic: deque() for topic in TOPICS}
        self.received: dict[str, list[Outgoing]] = {topic: [] for topic in TOPICS}
        self.too_large: set[int] = set()

    def append(self, message: Outgoing) -> bool:
        """False: it is too large, today as ever."""
        if message.number in self.too_large:
            return False
        self.received[message.topic].append(message)
        return True

    def numbers(self) -> set[int]:
        return {message.number for messages in self.received.values() for message in messages}


class Deliveries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-"))
        self.disk = Disk()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "write", self.disk.write)
        self.kafka = Kafka()
        self.now_ns = SECOND
        self.number = 0
        self.sent: dict[int, Outgoing] = {}
        self.lost_in_memory: set[int] = set()
        self.maybe_counted: set[int] = set()  # received, but the agent does not know, or did not note it in time
        self.uncounted: Counter[Priority] = Counter()  # drops that a killed agent had not yet noted
        self.unanswered = 0  # arrived, and the client said that it failed
        self.killed = False
        self.start()

    def start(self) -> None:
        self.said: list[str] = []
        self.spool = Spool(self.directory, 12_000, self.said.append)
        bounds = OutboxSettings(memory_bytes=6_000, window_messages=4, window_bytes=2_000, spool_after_s=1.0)
        self.box = Outbox(bounds, self.spool)
        self.number = max(self.number, self.spool.last_number)

    @rule(
        priority=st.sampled_from(list(Priority)),
        topic=st.sampled_from(TOPICS),
        key=st.sampled_from(KEYS),
        size=st.integers(0, 400),
    )
    def put(self, priority: Priority, topic: str, key: str, size: int) -> None:
        self.number += 1
        message = Outgoing(
            number=self.number, priority=priority, topic=topic, key=key, value=b"x" * size, stamp_ns=self.number
        )
        self.sent[self.number] = message
        self.box.put(message, self.now_ns)

    @rule(count=st.integers(1, 6))
    def hand_over(self, count: int) -> None:
        for _ in range(count):
            message = self.box.next(self.now_ns)
            if message is None:
                return
            self.kafka.queued[message.topic].append(message)

    @rule()
    def client_is_full(self) -> None:
        message = self.box.next(self.now_ns)
        if message is not None:
            self.box.take_back(message)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 4))
    def accept(self, topic: str, count: int) -> None:
        queued = self.kafka.queued[topic]
        for _ in range(min(count, len(queued))):
            message = queued.popleft()
            if self.kafka.append(message):
                self.box.sent_well(message)
            else:
                self.box.refused(message, "too_large")

    @rule(topic=st.sampled_from(TOPICS), arrived=st.booleans())
    def fail(self, topic: str, arrived: bool) -> None:
        """The client gives up on all that it has; the first may have arrived without an answer."""
        queued = self.kafka.queued[topic]
        if queued and arrived and self.kafka.append(queued[0]):
            self.maybe_counted.add(queued[0].number)
            self.unanswered += 1
        while queued:
            self.box.given_back(queued.popleft(), self.now_ns)

    @rule(topic=st.sampled_from(TOPICS))
    def too_large(self, topic: str) -> None:
        if self.kafka.queued[topic]:
            self.kafka.too_large.add(self.kafka.queued[topic][0].number)
            self.accept(topic, 1)

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)
        self.box.tidy(self.now_ns)

    @rule()
    def disk_changes(self) -> None:
        self.disk.full = not self.disk.full

    @rule()
    def note(self) -> None:
        self.spool.write_ledger()

    @precondition(lambda self: not self.disk.full)
    @rule()
    def restart(self) -> None:
        """SIGTERM: what Kafka has not answered for is saved."""
        self.now_ns += 11 * SECOND  # a disk that refused is tried again
        for queued in self.kafka.queued.values():
            queued.clear()
        assert self.box.save(self.now_ns)
        assert not list(self.box.in_memory)
        self.box.tidy(self.now_ns)
        self.spool.close()
        self.start()

    @rule()
    def kill(self) -> None:
        """kill -9: memory is gone, and what the client had may have arrived or not."""
        self.killed = True
        self.lost_in_memory |= {message.number for message in self.box.in_memory}
        self.lost_in_memory -= self.kafka.numbers()
        for queued in self.kafka.queued.values():
            if queued:
                self.kafka.append(queued.popleft())
            queued.clear()
        self.maybe_counted |= self.kafka.numbers() | self.kafka.too_large
        self.uncounted += self.drops()
        os.close(self.spool._lock_fd)  # noqa: SLF001
        self.start()
        self.uncounted -= self.drops()

    def drops(self) -> Counter[Priority]:
        by_priority: Counter[Priority] = Counter()
        for (priority, _), count in self.box.dropped.items():
            by_priority[priority] += count
        return by_priority

    @invariant()
    def bounds_hold(self) -> None:
        assert self.spool.bytes <= 12_000
        waiting = sum(lane.waiting.size for lane in self.box._lanes.values())  # noqa: SLF001
        assert self.box.memory_bytes <= 6_000 or not waiting

    def teardown(self) -> None:
        try:
            self.deliver_all()
            self.check()
        finally:
            self.spool.close()
            self.patch.undo()
            shutil.rmtree(self.directory)

    def deliver_all(self) -> None:
        self.disk.full = False
        for _ in range(10_000):
            self.now_ns += 11 * SECOND
            self.hand_over(6)
            for topic in TOPICS:
                self.accept(topic, 6)
            self.box.tidy(self.now_ns)
            if not self.box.unsent:
                return
        raise AssertionError(f"{self.box.unsent} messages never go out")

    def check(self) -> None:
        assert self.spool.bytes == 0
        received = self.kafka.numbers()
        for priority in Priority:
            of_it = {n for n, message in self.sent.items() if message.priority is priority}
            missing = of_it - received - self.lost_in_memory
            counted, uncounted = self.drops()[priority], self.uncounted[priority]
            most = len(of_it - received) + len(self.maybe_counted & of_it)
            assert len(missing) - uncounted <= counted <= most
        for topic, messages in self.kafka.received.items():
            assert all(message == self.sent[message.number] for message in messages)
            for key in KEYS:
                first = list(dict.fromkeys(m.number for m in messages if m.key == key))
                assert first == sorted(first), f"{topic} {key}: {first}"
        if not self.killed:
            again = Counter(m.number for messages in self.kafka.received.values() for m in messages)
            assert again.total() - len(again) <= self.unanswered  # nothing is sent twice on purpose


Deliveries.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDeliveries = Deliveries.TestCase


def outgoing(number: int, priority: Priority = Priority.PROGRESS, size: int = 100) -> Outgoing:
    return Outgoing(number=number, priority=priority, topic="blocks", key="job", value=b"x" * size, stamp_ns=number)


def test_without_a_spool_the_least_goes_first_when_memory_is_full() -> None:
    box = Outbox(OutboxSettings(memory_bytes=4 * outgoing(1).size))
    for number, priority in enumerate([4, 0, 3, 4, 1, 2], start=1):
        box.put(outgoing(number, Priority(priority)), SECOND)
    assert [message.number for message in iter(lambda: box.next(SECOND), None)] == [2, 3, 5, 6]
    assert box.dropped == {(Priority.COPIES, "memory_full"): 2}


def test_a_fast_kafka_leaves_the_disk_alone_and_a_slow_one_does_not(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, print)
    box = Outbox(OutboxSettings(), spool)
    for number in range(1, 11):
        box.put(outgoing(number), number * SECOND)
        message = box.next(number * SECOND)
        assert message is not None
        box.tidy(number * SECOND + SECOND // 2)
        box.sent_well(message)
    assert spool.written == 0
    box.put(outgoing(11), 20 * SECOND)
    box.put(outgoing(12), 20 * SECOND)
    assert box.next(20 * SECOND) == outgoing(11)  # in the client's hands, unanswered
    box.tidy(20 * SECOND + SECOND // 2)
    assert (spool.written, len(list(box.in_memory))) == (0, 2)
    box.tidy(22 * SECOND)
    assert (spool.written, len(list(box.in_memory))) == (2, 0)
    box.sent_well(outgoing(11))
    assert box.next(22 * SECOND) == outgoing(12)
    box.sent_well(outgoing(12))
    box.tidy(22 * SECOND)
    assert spool.bytes == 0
    spool.close()


def test_nothing_overtakes_what_failed_while_its_fate_is_open() -> None:
    box = Outbox(OutboxSettings())
    for number in (1, 2, 3, 4):
        box.put(outgoing(number), SECOND)
    first, second = box.next(SECOND), box.next(SECOND)
    assert first is not None
    assert second is not None
    box.given_back(first, SECOND)
    assert box.next(90 * SECOND) is None  # the second is under way
    box.given_back(second, 90 * SECOND)
    assert [message.number for message in iter(lambda: box.next(99 * SECOND), None)] == [1, 2, 3, 4]


def test_what_was_overtaken_all_the_same_is_sent_and_counted() -> None:
    box = Outbox(OutboxSettings())
    for number in (1, 2):
        box.put(outgoing(number), SECOND)
    first, second = box.next(SECOND), box.next(SECOND)
    assert first is not None
    assert second is not None
    box.given_back(first, SECOND)
    box.sent_well(second)
    again = box.next(9 * SECOND)
    assert again == first
    box.sent_well(first)
    assert (box.sent, box.sent_late, box.failed) == (2, 1, 1)


def test_a_topic_that_refuses_holds_nobody_else_up() -> None:
    box = Outbox(OutboxSettings())
    bad = Outgoing(number=1, priority=Priority.COPIES, topic="otlp_logs", key="job", value=b"", stamp_ns=1)
    box.put(bad, SECOND)
    box.put(outgoing(2), SECOND)
    given = [box.next(SECOND), box.next(SECOND)]
    assert bad in given
    box.take_back(bad)
    box.hold("otlp_logs", SECOND)
    box.sent_well(outgoing(2))
    box.put(outgoing(3), SECOND)
    assert box.next(SECOND) == outgoing(3)
    assert box.next(SECOND) is None
    assert box.next(2 * SECOND) == bad
