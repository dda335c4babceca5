"""An error in the accounting costs knowledge of seconds, told as such, and never a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.processors.job.synthetic_job import SECOND, WALL_NS, MemoryContext, drive
from tests.processors.job.test_accounting import account, two_attempts
from whichrank.processors.job.accounting import accounting, checkpoint_progress
from whichrank.processors.job.state.state_rows import load_job
from whichrank.telemetry.vocabulary import TimeBucket

FAILED = "KeyError: 'as nobody expects'"


def fails(
    monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[int], bool], module: Any = accounting
) -> list[int]:
    """The numbers of the calls that failed."""
    real, calls, failed = getattr(module, name), [0], list[int]()

    def act(*args: Any, **named: Any) -> None:
        calls[0] += 1
        if when(calls[0]):
            failed.append(calls[0])
            raise KeyError("as nobody expects")
        real(*args, **named)

    monkeypatch.setattr(module, name, act)
    return failed


def findings(context: MemoryContext) -> list[Any]:
    return [(each.key, each.time_ns, each.cleared, each.body) for each in context.findings()]


def problems(context: MemoryContext) -> list[str]:
    return [each.problem for each in context.intervals() if each.problem]


@pytest.fixture(scope="module")
def as_it_is() -> MemoryContext:
    return drive(two_attempts())


@pytest.mark.parametrize("name", ["take_steps", "judge_slow", "begin_attempt", "finish"])
def test_attribution_goes_on_unchanged_where_the_accounting_fails_always(
    monkeypatch: pytest.MonkeyPatch, as_it_is: MemoryContext, name: str
) -> None:
    failed = fails(monkeypatch, name, lambda number: True)
    context = drive(two_attempts())
    assert failed
    assert findings(context) == findings(as_it_is)
    job = load_job(context.tables["job"])
    assert job is not None
    assert job.ledger.errors == len(failed)


def test_what_fails_once_is_unknown_from_there_to_the_next_step_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = account(drive(two_attempts()))
    failed = fails(monkeypatch, "take_steps", lambda number: number == 2)
    context = drive(two_attempts())
    assert failed == [2]
    found = account(context)
    assert problems(context)[0] == f"error 1 of the accounting: {FAILED}"
    assert found.wall_ns == whole.wall_ns
    assert 0 < found.ns[TimeBucket.UNKNOWN] < 10 * SECOND
    assert found.ns[TimeBucket.PRODUCTIVE] > 0.7 * whole.ns[TimeBucket.PRODUCTIVE]


def test_what_fails_for_ever_is_told_each_minute_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "take_steps", lambda number: True)
    context = drive(two_attempts(gap_s=200.0))
    told = [each for each in context.intervals() if each.of(TimeBucket.UNKNOWN)]
    assert told
    assert told[0].begin_ns >= WALL_NS
    assert all(each.problem for each in told)
    account(context)


def test_a_checkpoint_that_cannot_be_read_from_progress_is_an_error_of_the_accounting_only(
    monkeypatch: pytest.MonkeyPatch, as_it_is: MemoryContext
) -> None:
    assert fails(monkeypatch, "note_saves", lambda number: number % 2 == 0, checkpoint_progress) is not None
    context = drive(two_attempts())
    assert findings(context) == findings(as_it_is)
    assert problems(context)
