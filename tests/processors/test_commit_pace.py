"""Commits are as frequent as their cost allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processors.runner_examples import Clock, encode_events, make_operators, open_bus, rank_event
from whichrank.processors.commit_pace import LEAST_S, MOST_S, SHARE, CommitPace
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.records import Record
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName


class Times:
    """Two clocks by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.spent_s = 0.0

    def pace(self) -> CommitPace:
        return CommitPace(clock_s=lambda: self.now_s, cost_s=lambda: self.spent_s)

    def commit(self, pace: CommitPace, cost_s: float) -> None:
        def spend() -> None:
            self.spent_s += cost_s

        pace.commit(spend)

    def interval_s(self, pace: CommitPace) -> float:
        """Until the next one is due."""
        began_s = self.now_s
        while not pace.is_due():
            self.now_s += 0.01
        return self.now_s - began_s


@pytest.mark.parametrize(
    ("cost_s", "interval_s"),
    [(0.0, LEAST_S), (0.001, LEAST_S), (0.1, 0.1 / SHARE), (3.0, MOST_S)],
    ids=["none", "little", "much", "more than can be"],
)
def test_the_next_comes_when_the_last_has_been_paid_for(cost_s: float, interval_s: float) -> None:
    times = Times()
    pace = times.pace()
    times.commit(pace, cost_s)
    assert times.interval_s(pace) == pytest.approx(interval_s, abs=0.02)
    times.commit(pace, 0.0)
    assert times.interval_s(pace) == pytest.approx(LEAST_S, abs=0.02)


def test_what_is_concluded_waits_for_no_pace(tmp_path: Path) -> None:
    heard: list[Record] = []
    bus = open_bus(tmp_path, Clock())
    dear = CommitPace(1e9, 1e9)
    runner = EmbeddedRunner(bus, tmp_path / "state.sqlite", make_operators(), heard.append, live=True, pace=dear)
    bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(0)))
    runner.drain()
    assert not heard
    bus.append(TOPIC_BLOCKS, "j", encode_events(rank_event(0, EventName.RANK_EXIT)))
    runner.drain()
    assert heard
    runner.close()
    bus.close()
