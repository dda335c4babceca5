"""What every bus promises. A new implementation adds itself to ``BUSES`` and passes the same suite."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichrank.transport.bus import TOPIC_BLOCKS, TOPIC_LOGS, Bus, Message
from whichrank.transport.embedded import EmbeddedBus


def embedded(directory: Path) -> Bus:
    return EmbeddedBus(directory)


def embedded_without_memory(directory: Path) -> Bus:
    """Every read but that of the newest message comes from the files."""
    return EmbeddedBus(directory, memory_bytes=0, segment_bytes=2000)


OpenBus = Callable[[Path], Bus]
BUSES: dict[str, OpenBus] = {"embedded": embedded, "embedded, from files": embedded_without_memory}


def read_all(bus: Bus, limit: int = 7) -> list[Message]:
    messages: list[Message] = []
    while batch := bus.read(messages[-1].position if messages else 0, limit):
        assert len(batch) <= limit
        messages.extend(batch)
    return messages


@pytest.fixture(params=BUSES)
def open_bus(request: pytest.FixtureRequest) -> OpenBus:
    return BUSES[request.param]


@pytest.fixture
def bus(open_bus: OpenBus, tmp_path: Path) -> Iterator[Bus]:
    opened = open_bus(tmp_path / "bus")
    yield opened
    opened.close()


class TestBusContract:
    def test_an_empty_bus_has_nothing_to_read(self, bus: Bus) -> None:
        assert list(bus.read(0, 10)) == []
        assert bus.last_position == 0

    def test_messages_come_back_whole_and_in_order(self, bus: Bus) -> None:
        positions = [
            bus.append(TOPIC_BLOCKS, "job-a", b"\x00\xff" * 500),
            bus.append(TOPIC_LOGS, "", b"", {"why": b"\x00binary", "": b""}),
            bus.append(TOPIC_BLOCKS, "jöb b", b"x"),
        ]
        messages = read_all(bus)
        assert [message.position for message in messages] == positions
        assert bus.last_position == positions[-1]
        assert [(m.topic, m.key, m.value) for m in messages] == [
            (TOPIC_BLOCKS, "job-a", b"\x00\xff" * 500),
            (TOPIC_LOGS, "", b""),
            (TOPIC_BLOCKS, "jöb b", b"x"),
        ]
        assert dict(messages[1].headers) == {"why": b"\x00binary", "": b""}

    def test_positions_and_stamps_strictly_increase(self, bus: Bus) -> None:
        for number in range(300):
            bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
        messages = read_all(bus)
        assert [m.value for m in messages] == [b"%d" % number for number in range(300)]
        for before, after in itertools.pairwise(messages):
            assert after.position > before.position
            assert after.stamp_ns > before.stamp_ns

    def test_a_read_begins_after_the_position_given_and_obeys_the_limit(self, bus: Bus) -> None:
        positions = [bus.append(TOPIC_BLOCKS, "k", b"%d" % number) for number in range(50)]
        assert [m.position for m in bus.read(positions[9], 5)] == positions[10:15]
        assert [m.position for m in bus.read(positions[3], 5)] == positions[4:9], "an earlier position, again"
        assert list(bus.read(positions[-1], 5)) == []
        assert list(bus.read(0, 0)) == []

    def test_what_is_appended_after_a_read_is_read_next(self, bus: Bus) -> None:
        after = 0
        for number in range(100):
            bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
            (message,) = bus.read(after, 10)
            assert message.value == b"%d" % number
            after = message.position

    def test_now_is_the_stamp_the_next_append_would_get(self, bus: Bus) -> None:
        bus.append(TOPIC_BLOCKS, "k", b"1")
        before = bus.now_ns()
        bus.append(TOPIC_BLOCKS, "k", b"2")
        first, second = read_all(bus)
        assert first.stamp_ns < before <= second.stamp_ns <= bus.now_ns()

    def test_reopening_goes_on_where_it_stopped(self, open_bus: OpenBus, tmp_path: Path) -> None:
        bus = open_bus(tmp_path / "again")
        for number in range(20):
            bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
        identity, before = bus.identity, read_all(bus)
        bus.close()
        bus = open_bus(tmp_path / "again")
        assert bus.identity == identity
        assert bus.last_position == before[-1].position
        assert read_all(bus) == before
        bus.append(TOPIC_BLOCKS, "k", b"new")
        after = read_all(bus)
        assert after[:-1] == before
        assert after[-1].position > before[-1].position
        assert after[-1].stamp_ns > before[-1].stamp_ns
        bus.close()

    def test_several_threads_may_append(self, bus: Bus) -> None:
        def append(name: str) -> None:
            for number in range(100):
                bus.append(TOPIC_BLOCKS, name, b"%d" % number)

        threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        messages = read_all(bus, limit=50)
        assert len({m.position for m in messages}) == len({m.stamp_ns for m in messages}) == 400
        for name in "abcd":
            assert [m.value for m in messages if m.key == name] == [b"%d" % number for number in range(100)]

    def test_two_buses_are_told_apart(self, open_bus: OpenBus, tmp_path: Path) -> None:
        first, second = open_bus(tmp_path / "1"), open_bus(tmp_path / "2")
        assert first.identity != second.identity
        first.close()
        second.close()

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.tuples(
                st.text(max_size=20),
                st.binary(max_size=300),
                st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=20), max_size=3),
            ),
            max_size=20,
        ),
        st.integers(1, 30),
    )
    def test_any_content_survives_a_reopen(
        self,
        open_bus: OpenBus,
        tmp_path_factory: pytest.TempPathFactory,
        content: list[tuple[str, bytes, dict[str, bytes]]],
        limit: int,
    ) -> None:
        directory = tmp_path_factory.mktemp("content")
        bus = open_bus(directory)
        for key, value, headers in content:
            bus.append(TOPIC_BLOCKS, key, value, headers)
        before = read_all(bus, limit)
        bus.close()
        bus = open_bus(directory)
        after = read_all(bus, limit)
        bus.close()
        assert [(m.value, dict(m.headers)) for m in before] == [(value, headers) for _, value, headers in content]
        assert after == before
