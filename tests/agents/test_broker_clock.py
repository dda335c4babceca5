"""A node whose wall clock is wrong, seen from the brokers' stamps."""

from __future__ import annotations

import random

import pytest

from whichrank.agents.publish.broker_clock import BrokerClock

SECOND, MS = 1_000_000_000, 1_000_000
EPOCH_NS = 1_795_000_000 * SECOND


class Room:
    """A broker with the right time, and a node. Monotonic time begins at 1000 s."""

    def __init__(self, ahead_s: float) -> None:
        self.monotonic_ns = 1000 * SECOND
        self.ahead_ns = int(ahead_s * SECOND)
        self.broker_wrong_ns = 0
        self.clock = BrokerClock(lambda: self.monotonic_ns, lambda: self.truth_ns + self.ahead_ns)

    @property
    def truth_ns(self) -> int:
        return EPOCH_NS + self.monotonic_ns

    def send(self, there_ns: int, back_ns: int) -> None:
        handed_ns = self.monotonic_ns
        self.monotonic_ns += there_ns
        stamp_ns = (self.truth_ns + self.broker_wrong_ns) // MS * MS
        self.monotonic_ns += back_ns
        self.clock.hear(handed_ns=handed_ns, answered_ns=self.monotonic_ns, stamp_ns=stamp_ns)

    @property
    def wrong_ns(self) -> int:
        return self.clock.now_ns() - self.truth_ns


def test_before_the_first_answer_the_wall_clock_is_all_there_is() -> None:
    room = Room(5.0)
    assert room.wrong_ns == 5 * SECOND
    assert room.clock.wrong_by_ns == 0


@pytest.mark.parametrize("ahead_s", [-5.0, -0.2, 0.2, 5.0, 86400.0])
def test_a_wrong_clock_is_put_right_within_the_way_there_and_back(ahead_s: float) -> None:
    room, chance = Room(ahead_s), random.Random(1)
    for _ in range(200):
        room.send(int(chance.uniform(1, 60) * MS), int(chance.uniform(1, 60) * MS))
        room.monotonic_ns += 2 * SECOND
        assert abs(room.wrong_ns) <= 62 * MS
    assert abs(room.wrong_ns) <= 5 * MS, "the shortest way counts"
    assert room.clock.wrong_by_ns == pytest.approx(room.ahead_ns, abs=5 * MS)


def test_a_good_clock_is_believed_to_the_nanosecond() -> None:
    room, chance = Room(0.0), random.Random(2)
    for _ in range(200):
        room.send(int(chance.uniform(1, 60) * MS), int(chance.uniform(1, 60) * MS))
        assert room.wrong_ns == 0


def test_a_message_that_was_under_way_for_long_moves_nothing() -> None:
    room = Room(5.0)
    room.send(5 * MS, 5 * MS)
    before_ns = room.wrong_ns
    room.send(600 * SECOND // 10, 5 * MS)
    assert room.wrong_ns == before_ns


def test_a_clock_that_somebody_sets_changes_nothing() -> None:
    room = Room(0.0)
    room.send(5 * MS, 5 * MS)
    room.ahead_ns = -5 * SECOND
    assert abs(room.wrong_ns) <= 12 * MS


def test_another_broker_with_another_time_is_followed() -> None:
    """Nodes that talk to one broker agree with each other, whatever the time is."""
    room = Room(0.0)
    room.send(5 * MS, 5 * MS)
    room.broker_wrong_ns = SECOND
    room.send(5 * MS, 5 * MS)
    assert abs(room.wrong_ns - SECOND) <= 12 * MS


def test_drift_is_forgotten() -> None:
    """A clock that is right when the bounds are set, and drifts: bounds of long ago must not hold it."""
    room = Room(0.0)
    for _ in range(1000):
        room.send(2 * MS, 2 * MS)
        room.monotonic_ns += 10 * SECOND
        room.broker_wrong_ns += 500_000  # 50 ppm
        assert abs(room.wrong_ns - room.broker_wrong_ns) <= 20 * MS
