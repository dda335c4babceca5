"""What a ring says of an emergency save: every value is checked, for the program writes its ring."""

from __future__ import annotations

from typing import Any

import pytest

from whichrank.agents.ranks.emergency_events import emergency_told

GOOD: dict[str, Any] = {"request": 2, "state": "missed", "reason": "SIGTERM", "time_ns": 5, "why": "ended", "step": 7}


def test_what_fits_is_told() -> None:
    told = emergency_told(GOOD | {"seconds": 0.5, "missing": "1-2", "seconds_left": 3}, 10)
    expected = {"request": 2, "state": "missed", "reason": "SIGTERM", "why": "ended", "step": 7}
    assert told == (5, expected | {"seconds": 0.5, "missing": "1-2", "seconds_left": 3.0})


@pytest.mark.parametrize(
    "change", [{"request": True}, {"request": -1}, {"request": "1"}, {"state": "gone"}, {"state": []}, {"state": None}]
)
def test_what_is_none_is_dropped(change: dict[str, Any]) -> None:
    assert emergency_told(GOOD | change, 10) is None


@pytest.mark.parametrize(
    "change",
    [{"why": {}}, {"why": "else"}, {"step": -1}, {"step": 1.5}, {"reason": 3}, {"seconds": float("nan")}],
)
def test_values_that_do_not_fit_are_left_out(change: dict[str, Any]) -> None:
    told = emergency_told(GOOD | change, 10)
    assert told is not None
    assert not change.keys() & told[1].keys()


def test_times_of_the_future_and_long_texts_are_cut() -> None:
    told = emergency_told(GOOD | {"time_ns": 99, "error": "\x1b[31m" + "x" * 5000}, 10)
    assert told is not None
    assert told[0] == 10
    assert len(told[1]["error"]) <= 500
    assert "\x1b" not in told[1]["error"]
