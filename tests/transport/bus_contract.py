"""What every bus promises. An implementation subclasses ``BusContract``, gives it a room to open buses in, and passes.

The embedded log passes it in ``test_bus_contract.py``, Kafka with each client in ``tests/stack/test_kafka_log.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichrank.transport.bus import TOPIC_BLOCKS, TOPIC_LOGS, Bus, Message

QUIET_S = 30.0
#: A marker of the end of what a test has appended.
LAST = b"the last one"


class Room(Protocol):
    """Where buses live: opened again under a name, a bus holds what it held."""

    def open(self, name: str) -> Bus: ...
    def append(self, bus: Bus, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> None:
        """From any thread, as the bus's writers do it."""
        ...


def read_on(bus: Bus, after: int, count: int, limit: int = 7, within_s: float = QUIET_S) -> list[Message]:
    """The next ``count`` messages or more; fails when they do not come."""
    messages: list[Message] = []
    deadline = time.monotonic() + within_s
    while len(messages) < count:
        messages += bus.read(messages[-1].position if messages else after, limit)
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
    return messages


def nothing_follows(bus: Bus, after: int) -> bool:
    """Read until the bus says that it has caught up."""
    deadline = time.monotonic() + QUIET_S
    while not (messages := bus.read(after, 7)) and not bus.caught_up():
        assert time.monotonic() < deadline, "the bus never catches up"
    return not messages


def content(messages: Sequence[Message]) -> list[tuple[str, str, bytes, dict[str, bytes]]]:
    return [(m.topic, m.key, m.value, dict(m.headers)) for m in messages]


class BusContract:
    """Give ``room`` as a fixture, and ``bus``: opened in it under the name "bus"."""

    def start(self, bus: Bus) -> int:
        """The position after which a new reader begins."""
        return 0

    def test_an_empty_bus_has_nothing_to_read(self, bus: Bus) -> None:
        assert nothing_follows(bus, self.start(bus))

    def test_messages_come_back_whole(self, room: Room, bus: Bus) -> None:
        given_in = [
            (TOPIC_BLOCKS, "job-a", b"\x00\xff" * 500, {}),
            (TOPIC_LOGS, "", b"", {"why": b"\x00binary", "": b""}),
            (TOPIC_BLOCKS, "jöb b", b"x", {"k": b"v"}),
        ]
        for topic, key, value, headers in given_in:
            room.append(bus, topic, key, value, headers)
        messages = read_on(bus, self.start(bus), 3)
        assert sorted(content(messages), key=str) == sorted(given_in, key=str)
        assert nothing_follows(bus, messages[-1].position)

    def test_the_messages_of_a_key_come_in_order(self, room: Room, bus: Bus) -> None:
        for number in range(300):
            room.append(bus, TOPIC_BLOCKS, f"job-{number % 5}", b"%d" % number)
        messages = read_on(bus, self.start(bus), 300)
        for key in range(5):
            mine = [m for m in messages if m.key == f"job-{key}"]
            assert [m.value for m in mine] == [b"%d" % number for number in range(key, 300, 5)]
            assert [m.stamp_ns for m in mine] == sorted(m.stamp_ns for m in mine)
        positions = [m.position for m in messages]
        assert positions == sorted(positions)

    def test_reading_goes_on_after_any_position(self, room: Room, bus: Bus) -> None:
        for number in range(60):
            room.append(bus, TOPIC_BLOCKS, f"k{number % 3}", b"%d" % number)
        messages = read_on(bus, self.start(bus), 60)
        for position in sorted({m.position for m in messages})[:-1][:6]:
            rest = [m for m in messages if m.position > position]
            assert read_on(bus, position, len(rest), limit=1000) == rest
        assert read_on(bus, self.start(bus), 60, limit=1000) == messages, "an earlier position, again"

    def test_what_is_appended_after_a_read_is_read_next(self, room: Room, bus: Bus) -> None:
        after = self.start(bus)
        for number in range(20):
            room.append(bus, TOPIC_BLOCKS, "k", b"%d" % number)
            (message,) = read_on(bus, after, 1)
            assert message.value == b"%d" % number
            after = message.position

    def test_now_is_about_the_stamp_the_next_append_would_get(self, room: Room, bus: Bus) -> None:
        room.append(bus, TOPIC_BLOCKS, "k", b"1")
        first = read_on(bus, self.start(bus), 1)[-1]
        before_ns = bus.now_ns()
        assert before_ns > first.stamp_ns
        room.append(bus, TOPIC_BLOCKS, "k", b"2")
        second = read_on(bus, first.position, 1)[-1]
        assert second.stamp_ns > first.stamp_ns
        assert bus.now_ns() >= before_ns, "it never goes back"

    def test_another_reader_sees_the_same_order(self, room: Room, bus: Bus) -> None:
        for number in range(200):
            room.append(bus, TOPIC_BLOCKS if number % 3 else TOPIC_LOGS, f"k{number % 7}", b"%d" % number)
        before = read_on(bus, self.start(bus), 200)
        identity = bus.identity
        bus.close()
        again = room.open("bus")
        try:
            assert again.identity == identity
            assert read_on(again, self.start(again), 200, limit=3) == before
            room.append(again, TOPIC_BLOCKS, "k", LAST)
            after = read_on(again, before[-1].position, 1)
            assert [m.value for m in after] == [LAST]
            assert after[0].stamp_ns >= before[-1].stamp_ns
        finally:
            again.close()

    def test_several_writers_lose_and_repeat_nothing(self, room: Room, bus: Bus) -> None:
        def append(name: str) -> None:
            for number in range(100):
                room.append(bus, TOPIC_BLOCKS, name, b"%d" % number)

        threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        messages = read_on(bus, self.start(bus), 400, limit=50)
        assert len(messages) == 400
        for name in "abcd":
            assert [m.value for m in messages if m.key == name] == [b"%d" % number for number in range(100)]

    def test_large_messages_pass(self, room: Room, bus: Bus) -> None:
        large = bytes(range(256)) * 3500  # 896,000 bytes
        room.append(bus, TOPIC_BLOCKS, "k", large)
        room.append(bus, TOPIC_BLOCKS, "k", large[::-1])
        assert [m.value for m in read_on(bus, self.start(bus), 2)] == [large, large[::-1]]

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(
                st.text(max_size=20),
                st.binary(max_size=300),
                # librdkafka's header names are texts of C: none holds a zero.
                st.dictionaries(
                    st.text(st.characters(codec="utf-8", min_codepoint=1), max_size=5),
                    st.binary(max_size=20),
                    max_size=3,
                ),
            ),
            min_size=1,
            max_size=12,
        )
    )
    def test_any_content_survives(
        self, room: Room, bus: Bus, messages: list[tuple[str, bytes, dict[str, bytes]]]
    ) -> None:
        after = max(self.start(bus), bus.last_position)
        while more := bus.read(after, 1000):
            after = more[-1].position
        for key, value, headers in messages:
            room.append(bus, TOPIC_BLOCKS, key, value, headers)
        found = read_on(bus, after, len(messages))
        assert sorted(content(found), key=str) == sorted([(TOPIC_BLOCKS, *message) for message in messages], key=str)
