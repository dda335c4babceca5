"""The embedded log keeps what every bus promises, and more: one strict order, limits, reopening."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.transport.bus_contract import BusContract
from whichrank.transport.bus import TOPIC_BLOCKS, TOPIC_LOGS, Bus, Message
from whichrank.transport.embedded import EmbeddedBus


def embedded(directory: Path) -> EmbeddedBus:
    return EmbeddedBus(directory)


def embedded_without_memory(directory: Path) -> EmbeddedBus:
    """Every read but that of the newest message comes from the files."""
    return EmbeddedBus(directory, memory_bytes=0, segment_bytes=2000)


OpenBus = Callable[[Path], EmbeddedBus]
BUSES: dict[str, OpenBus] = {"embedded": embedded, "embedded, from files": embedded_without_memory}


class EmbeddedRoom:
    """Folders."""

    def __init__(self, open_bus: OpenBus, folder: Path) -> None:
        self._open_bus = open_bus
        self._folder = folder

    def open(self, name: str) -> Bus:
        return self._open_bus(self._folder / name)

    def append(self, bus: Bus, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> None:
        bus.append(topic, key, value, headers)


@pytest.fixture(params=BUSES)
def open_bus(request: pytest.FixtureRequest) -> OpenBus:
    return BUSES[request.param]


@pytest.fixture
def room(open_bus: OpenBus, tmp_path: Path) -> EmbeddedRoom:
    return EmbeddedRoom(open_bus, tmp_path)


@pytest.fixture
def bus(room: EmbeddedRoom) -> Iterator[Bus]:
    opened = room.open("bus")
    yield opened
    opened.close()


class TestEmbedded(BusContract):
    """The suite itself."""


def read_all(bus: Bus, limit: int = 7) -> list[Message]:
    messages: list[Message] = []
    while batch := bus.read(messages[-1].position if messages else 0, limit):
        assert len(batch) <= limit
        messages.extend(batch)
    return messages


class TestStricterThanTheContract:
    def test_an_empty_bus_has_position_zero(self, bus: Bus) -> None:
        assert bus.last_position == 0

    def test_positions_and_stamps_strictly_increase(self, bus: Bus) -> None:
        positions = [bus.append(TOPIC_BLOCKS, "k", b"%d" % number) for number in range(300)]
        messages = read_all(bus)
        assert [m.value for m in messages] == [b"%d" % number for number in range(300)]
        assert [m.position for m in messages] == positions
        for before, after in itertools.pairwise(messages):
            assert after.position > before.position
            assert after.stamp_ns > before.stamp_ns

    def test_a_read_begins_after_the_position_given_and_obeys_the_limit(self, bus: Bus) -> None:
        positions = [bus.append(TOPIC_LOGS, "k", b"%d" % number) or 0 for number in range(50)]
        assert [m.position for m in bus.read(positions[9], 5)] == positions[10:15]
        assert [m.position for m in bus.read(positions[3], 5)] == positions[4:9], "an earlier position, again"
        assert list(bus.read(positions[-1], 5)) == []
        assert list(bus.read(0, 0)) == []

    def test_now_is_the_stamp_the_next_append_would_get(self, bus: Bus) -> None:
        bus.append(TOPIC_BLOCKS, "k", b"1")
        before = bus.now_ns()
        bus.append(TOPIC_BLOCKS, "k", b"2")
        first, second = read_all(bus)
        assert first.stamp_ns < before <= second.stamp_ns <= bus.now_ns()

    def test_two_buses_are_told_apart(self, room: EmbeddedRoom) -> None:
        first, second = room.open("1"), room.open("2")
        assert first.identity != second.identity
        first.close()
        second.close()
