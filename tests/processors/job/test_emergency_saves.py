"""An emergency save counts as made when all ranks have saved; who has not, and why, is an incident of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processors.job.synthetic_job import SyntheticJob, drive
from tests.processors.job.test_accounting import finished_at, merged, started_at
from tests.processors.job.test_save_states import Happening
from whichrank.processors.job.state.emergency_save import EmergencySave
from whichrank.telemetry.vocabulary import EventName

KIND = "emergency_save_missed"
RANKS = range(4)


def told(at_s: float, rank: int, state: str, request: int = 0, **values: Any) -> Happening:
    """What one rank tells of the request."""
    attributes = {"request": request, "state": state, "reason": "SIGTERM", **values}
    return at_s, EventName.CHECKPOINT_EMERGENCY, rank, attributes


def asked(at_s: float = 10.0, **values: Any) -> tuple[Happening, ...]:
    """All ranks hear of it."""
    return tuple(told(at_s, rank, "asked", seconds_left=20.0, **values) for rank in RANKS)


def saved(*ranks: int, at_s: float = 11.0, **values: Any) -> tuple[Happening, ...]:
    """These ranks have saved."""
    return tuple(told(at_s, rank, "saved", step=22, seconds=0.5, **values) for rank in ranks)


def findings(*events: Happening, end_s: float = 165.0, steps: int = 100) -> list[Any]:
    """What is open or was opened about it in a job of four ranks."""
    job = SyntheticJob(steps=steps, step_s=0.5, events=sorted(events, key=lambda event: event[0]))
    context = drive(merged([started_at(99.0)], job.records(), [finished_at(end_s)]))
    return [finding for finding in context.final().values() if finding.body["kind"] == KIND]


def test_whole_is_no_incident() -> None:
    assert not findings(*asked(), *saved(*RANKS))


@pytest.mark.parametrize(
    ("outcome", "suspects", "severity", "words"),
    [
        ((*saved(0, 1, 2), told(11.0, 3, "failed", error="OSError: no room")), [3], "ticket", "OSError: no room"),
        ((*saved(0, 1, 2),), [3], "ticket", "ranks 0-2 saved step 22"),
        (tuple(told(30.0, rank, "missed", why="not_reached") for rank in RANKS), [], "page", "in time"),
        ((), [], "page", "no rank saved"),
    ],
    ids=["raised", "silent", "not reached", "nobody"],
)
def test_who_did_not_save_is_said(
    outcome: tuple[Happening, ...], suspects: list[int], severity: str, words: str
) -> None:
    (found,) = findings(*asked(), *outcome)
    assert [each["rank"] for each in found.body["suspects"]] == suspects
    assert found.body["severity"] == severity
    assert any(words in row["shows"] for row in found.body["evidence"])


def test_a_later_request_does_not_hide_an_earlier_one() -> None:
    (found,) = findings(*asked(), *saved(0, 1), *asked(40.0, request=1), *saved(*RANKS, at_s=41.0, request=1))
    assert found.key.endswith("request 0")


def test_what_is_remembered_comes_back_from_its_row() -> None:
    save = EmergencySave(request=3, asked_ns=5, asked={0, 1}, saved={0}, missed={1: "ended"}, is_judged=True)
    assert EmergencySave.of_row(save.as_row()) == save
    assert EmergencySave.of_row(None) is None
