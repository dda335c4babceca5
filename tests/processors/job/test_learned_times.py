"""What earlier attempts took is a precedent for the next: a long restore or first step pages nobody twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.processors.job.synthetic_job import (
    FOREVER,
    Action,
    Call,
    Enter,
    MemoryContext,
    SyntheticJob,
    Work,
    drive,
)
from whichrank.processors.job.state.learned_times import SEEN_NS, LearnedTimes
from whichrank.telemetry.vocabulary import Op, Phase

EVALUATES_AT = 20
SECOND = 1_000_000_000


def evaluating(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """In step 20 rank 0 evaluates alone, while the others wait for it in the step's call."""
    actions: list[Action] = [Enter(Phase.FORWARD), Work(job.step_s)]
    if step == EVALUATES_AT and rank == 0:
        actions += [Enter(Phase.EVAL)]
    return [*actions, Enter(Phase.BACKWARD), Call("world", Op.ALL_REDUCE), Enter(Phase.OPTIMIZER)]


def lasting(length_s: float) -> Callable[[int, int, Phase], float]:
    return lambda rank, step, phase: length_s if phase is Phase.EVAL else 0.0


def attempts(*lengths_s: float) -> MemoryContext:
    """Attempts one after the other, each of which evaluates for so long; the last one alone is looked at to its end."""
    records = []
    start_s = 100.0
    for number, length_s in enumerate(lengths_s):
        is_last = number == len(lengths_s) - 1
        forever = length_s == FOREVER
        job = SyntheticJob(
            steps=30,
            program=evaluating,
            delays=[lasting(length_s)],
            attempt=f"a{number}",
            start_s=start_s,
            after_s=150.0 if is_last and forever else 1.0,
        )
        records += job.records()
        start_s += 60.0 + (0 if forever else length_s)
    return drive(records)


def severities(context: MemoryContext, attempt: str) -> list[str]:
    return [f.body["severity"] for f in context.findings() if f.identity.attempt == attempt and not f.cleared]


def test_an_evaluation_as_long_as_in_the_attempt_before_is_no_page() -> None:
    assert "page" in severities(attempts(70.0), "a0"), "without a past, a minute is a page"
    assert severities(attempts(70.0, 75.0), "a1") == []


@pytest.mark.parametrize("before_s", [0.5, 8.0])
def test_one_that_does_not_end_is_a_page_after_five_times_as_long(before_s: float) -> None:
    context = attempts(before_s, FOREVER)
    assert severities(context, "a1")[-1] == "page"
    pages = [f for f in context.findings() if f.body["severity"] == "page"]
    onset, told = pages[0].body["times"]["onset"], pages[0].time_ns / 1e9
    assert told - onset == pytest.approx(max(30.0, 5 * before_s), abs=6.0)


def test_what_is_learned_is_kept_and_moves_half_way() -> None:
    times = LearnedTimes()
    assert times.longest_ns(int(Phase.EVAL), in_first_step=False) is None
    seen = np.zeros(len(Phase), np.int64)
    seen[Phase.EVAL], seen[Phase.DATA] = 8 * SECOND, SEEN_NS - 1
    times.learn(np.zeros(len(Phase), np.int64), seen)
    seen[Phase.EVAL] = 4 * SECOND
    times.learn(np.zeros(len(Phase), np.int64), seen)
    times.learn(np.zeros(len(Phase), np.int64), np.zeros(len(Phase), np.int64))
    again = LearnedTimes.read(times.write())
    assert again.longest_ns(int(Phase.EVAL), in_first_step=False) == 6 * SECOND
    assert again.longest_ns(int(Phase.EVAL), in_first_step=True) is None
    assert again.longest_ns(int(Phase.DATA), in_first_step=False) is None
    assert LearnedTimes.read([]).write() == []
