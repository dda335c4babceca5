"""Which line called what: of ranks that parted, of ranks that wait, and of what nobody can read nothing is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.processors.job.synthetic_job import FOREVER, Action, Call, MemoryContext, SyntheticJob, drive
from whichrank.processors.job.findings.call_sites import SIGNAL
from whichrank.telemetry.records import Event
from whichrank.telemetry.vocabulary import EventName, Op, Phase

TRAIN, CHECK = "/job/train.py\t40\ttrain\n", "/job/train.py\t12\tcheck\n"


def calls(seqs: tuple[Any, ...], sites: str, **more: Any) -> dict[str, Any]:
    return {"group": "a1-world", "point_to_point": False, "seqs": seqs, "sites": sites, **more}


def asked(context: MemoryContext) -> list[int]:
    events = [record.payload for record in context.emitted if isinstance(record.payload, Event)]
    return [int(event.attributes["rank"]) for event in events if event.attributes.get("action") == "calls"]


def said(context: MemoryContext) -> list[str]:
    (finding,) = context.final().values()
    return [item["shows"] for item in finding.body["evidence"] if item["signal"] == SIGNAL]


def extra_call(rank: int, step: int, actions: list[Action]) -> list[Action]:
    """Rank 2 calls one more barrier in step 20, before its first all_reduce."""
    if (rank, step) != (2, 20):
        return actions
    place = next(place for place, action in enumerate(actions) if isinstance(action, Call))
    return [*actions[:place], Call("world", Op.BARRIER, 0), *actions[place:]]


def parted(events: list[tuple[float, EventName, int, dict[str, Any]]]) -> tuple[MemoryContext, int]:
    """The drawn desync with these events, and the number of the call that differs."""
    job = SyntheticJob(steps=30, edit=extra_call)
    (finding,) = drive(job.records()).final().values()
    seq = int(finding.body["first_bad"]["sequence"])
    told = [
        (at, name, rank, {**values, "seqs": tuple(seq + n for n in values["seqs"])})
        for at, name, rank, values in events
    ]
    return drive(replace(job, events=told).records()), seq


def test_of_ranks_that_parted_each_line_is_told_and_the_guilty_one_stands_at_its_own() -> None:
    others = [(9.5, EventName.RANK_CALLS, rank, calls((-1, 0), TRAIN * 2)) for rank in (0, 1, 3)]
    context, seq = parted([*others, (9.6, EventName.RANK_CALLS, 2, calls((-1, 0), TRAIN + CHECK))])
    assert 2 in asked(context)
    assert len(asked(context)) >= 2
    (finding,) = context.final().values()
    where = finding.body["suspects"][0]["where"]
    assert (where["file"], where["line"]) == ("/job/train.py", 12)
    (shows,) = said(context)
    assert f"collective {seq} of group world" in shows
    assert "rank 2 at /job/train.py:12 in check" in shows
    assert "/job/train.py:40 in train" in shows


def test_where_calls_look_alike_the_first_other_line_tells_where_ranks_parted() -> None:
    """The mismatch shows two calls after the one that was too many."""
    others = [(9.5, EventName.RANK_CALLS, rank, calls((-2, -1, 0), TRAIN * 3)) for rank in (0, 1, 3)]
    context, seq = parted([*others, (9.6, EventName.RANK_CALLS, 2, calls((-2, -1, 0), CHECK + TRAIN * 2))])
    (shows,) = said(context)
    assert f"collective {seq - 2} of group world" in shows


def test_those_who_wait_tell_in_which_line() -> None:
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 20, Phase.FORWARD) else 0],
    )
    context = drive(job.records())
    (finding,) = context.final().values()
    waiting = asked(context)
    assert waiting
    assert 2 not in waiting
    seq = int(finding.body["first_bad"]["sequence"])
    told = [(9.0, EventName.RANK_CALLS, rank, calls((seq,), TRAIN)) for rank in waiting]
    (shows,) = said(drive(replace(job, events=told).records()))
    assert "at /job/train.py:40 in train" in shows


@pytest.mark.parametrize(
    "values",
    [
        calls((0,), TRAIN * 2),
        calls((0,), "no line\n"),
        calls(("x",), TRAIN),
        {**calls((0,), TRAIN), "group": "another"},
        {},
        {"group": "a1-world", "seqs": 5, "sites": 7},
    ],
)
def test_what_cannot_be_read_says_nothing(values: dict[str, Any]) -> None:
    job = SyntheticJob(steps=30, edit=extra_call)
    context = drive(replace(job, events=[(9.5, EventName.RANK_CALLS, 2, values)]).records())
    assert said(context) == []
