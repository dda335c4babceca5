"""Collectors that have nothing to do are passed over, and say the same as if they were not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.sensors import NodeSensors
from whichrank.simulator.sent import SentMessage

SECONDS = 150.0


def messages(scenario: str) -> list[SentMessage]:
    world = SCENARIOS[scenario].build(ranks=16, seed=3)
    return [message for _, sent in world.run(SECONDS) for message in sent if message.value]


@pytest.mark.parametrize("scenario", ["gpu_memory_error", "nvlink_down", "process_killed"])
def test_nothing_is_missed_where_nothing_is_due(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed_over = messages(scenario)
    tick = NodeSensors.tick

    def always(self: NodeSensors, *args: Any) -> None:
        self.look_again()
        tick(self, *args)

    monkeypatch.setattr(NodeSensors, "tick", always)
    assert messages(scenario) == passed_over


def test_most_windows_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()
    for name in ("tick", "_place_node"):
        wrapped = getattr(NodeSensors, name)

        def call(self: NodeSensors, *args: Any, name: str = name, wrapped: Any = wrapped) -> None:
            counted[name] += 1
            wrapped(self, *args)

        monkeypatch.setattr(NodeSensors, name, call)
    messages("healthy")
    assert 0 < counted["_place_node"] < 0.4 * counted["tick"]
