"""The first loss that is not finite in a loop without steps: by calls, not by clocks; steps that tell it go first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.job.synthetic_job import MemoryContext, SyntheticJob, drive
from whichrank.telemetry.vocabulary import EventName


def told(at_s: float, rank: int, calls: int, value: str = "NaN") -> tuple[float, EventName, int, dict[str, Any]]:
    return at_s, EventName.RANK_BAD_LOSS, rank, {"value": value, "calls": calls, "step": 3, "phase": "other", "pid": 1}


def numeric(context: MemoryContext) -> list[Mapping[str, Any]]:
    return [item.body for item in context.final().values() if item.body["bucket"] == "numeric"]


@pytest.mark.parametrize("order", [(2, 0, 1, 3), (0, 1, 3, 2)])
def test_who_had_issued_the_fewest_calls_is_the_first_in_whatever_order_they_say_so(order: tuple[int, ...]) -> None:
    events = [told(4.0 + 0.1 * place, rank, 150 if rank == 2 else 152) for place, rank in enumerate(order)]
    context = drive(SyntheticJob(steps=40, events=events).records())
    (body,) = numeric(context)
    assert (body["kind"], [item["rank"] for item in body["suspects"]]) == ("numeric_first_rank", [2])
    assert "the loss of rank 2 is NaN after 150 calls" in body["evidence"][0]["shows"]


def test_of_all_at_once_nobody_is_named() -> None:
    context = drive(SyntheticJob(steps=40, events=[told(4.0, rank, 150, "infinity") for rank in range(4)]).records())
    (body,) = numeric(context)
    assert (body["kind"], body["suspects"]) == ("numeric_all", [])


def test_a_step_that_tells_it_needs_no_second_word() -> None:
    job = SyntheticJob(
        steps=40,
        numbers=lambda rank, step: (math.nan if step >= 20 else 1.0, 1.0),
        events=[told(6.0 + 0.01 * rank, rank, 150) for rank in range(4)],
    )
    assert len(numeric(drive(job.records()))) == 1
