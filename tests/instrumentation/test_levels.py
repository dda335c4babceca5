"""Levels: the file in the ring directory, the environment, and our own cost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whichrank.instrumentation import levels
from whichrank.telemetry.ring_layout import LEVEL_FILE
from whichrank.telemetry.vocabulary import Level

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("off", Level.OFF),
        (" Status\n", Level.STATUS),
        ("events", Level.EVENTS),
        ("", Level.EVENTS),
        ("x", Level.EVENTS),
    ],
)
def test_level_of_environment(text: str, level: Level) -> None:
    assert levels.level_of_environment({"WHICHRANK_LEVEL": text}) is level


def test_the_file_switches_back_and_forth(tmp_path: Path) -> None:
    switch = levels.LevelFile(tmp_path)
    file = tmp_path / LEVEL_FILE
    assert switch.look() is None
    file.write_text("status\n")
    assert switch.look() is Level.STATUS
    file.write_text("off")
    os.utime(file, ns=(1, 1))  # two writes within one tick of the file system's clock
    assert switch.look() is Level.OFF
    file.write_text("nonsense")
    assert switch.look() is None
    file.unlink()
    assert switch.look() is None


def test_an_unreadable_level_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / LEVEL_FILE).mkdir()
    assert levels.LevelFile(tmp_path).look() is None


def run_windows(limit: levels.CostLimit, *, cost_share: float, step_s: float, seconds: int) -> list[bool]:
    return [
        limit.exceeded(second * SECOND, int(second * SECOND * cost_share), int(second / step_s))
        for second in range(seconds)
    ]


def test_cost_above_the_limit_is_found_after_one_window() -> None:
    found = run_windows(levels.CostLimit(0.01), cost_share=0.02, step_s=0.05, seconds=30)
    assert found.index(True) == levels.COST_WINDOW_NS // SECOND


def test_cost_below_the_limit_is_never_found() -> None:
    assert not any(run_windows(levels.CostLimit(0.01), cost_share=0.009, step_s=0.05, seconds=100))


def test_without_steps_there_is_nothing_to_compare_with() -> None:
    assert not any(run_windows(levels.CostLimit(0.01), cost_share=0.5, step_s=1e9, seconds=100))


def test_no_limit() -> None:
    assert levels.cost_limit_of_environment({"WHICHRANK_COST_LIMIT": "0"}) == 0
    assert not any(run_windows(levels.CostLimit(0), cost_share=0.5, step_s=0.05, seconds=100))


def test_limit_of_environment() -> None:
    assert levels.cost_limit_of_environment({}) == levels.COST_LIMIT
    assert levels.cost_limit_of_environment({"WHICHRANK_COST_LIMIT": "2.5"}) == 0.025
    assert levels.cost_limit_of_environment({"WHICHRANK_COST_LIMIT": "much"}) == levels.COST_LIMIT
