"""A wait is noticed early and paged late: by what the place has taken, and by what the suspect does meanwhile."""

from __future__ import annotations

import pytest

from tests.processors.job.synthetic_job import FOREVER, SECOND, MemoryContext, SyntheticJob, drive
from whichrank.processors.job.hang.urgency import Motion, ladder
from whichrank.processors.job.state.job_state import JobState
from whichrank.telemetry.records import Finding
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase, Severity

INFO, TICKET, PAGE = Severity.INFO, Severity.TICKET, Severity.PAGE
STILL, MOVES = Motion.STILL, Motion.MOVES


@pytest.mark.parametrize(
    ("longest_s", "motion", "turns"),
    [
        (0.1, STILL, [(2.9, None), (3.0, INFO), (6.9, INFO), (7.0, PAGE)]),
        (10.0, STILL, [(12.9, None), (13.0, INFO), (14.9, INFO), (15.0, PAGE)]),
        (0.1, MOVES, [(2.9, None), (3.0, INFO), (59.0, INFO), (60.0, TICKET), (899.0, TICKET), (900.0, PAGE)]),
        (100.0, MOVES, [(129.0, None), (130.0, TICKET)]),
        (0.1, Motion.IN_IO, [(2.9, None), (3.0, INFO), (59.9, INFO), (60.0, PAGE)]),
        (10.0, Motion.IN_IO, [(99.9, TICKET), (100.0, PAGE)]),
        (100.0, Motion.IN_IO, [(899.9, TICKET), (900.0, PAGE)]),
        (None, STILL, [(24.9, None), (25.0, INFO), (59.9, INFO), (60.0, PAGE)]),
        (None, MOVES, [(24.9, None), (25.0, INFO), (60.0, TICKET), (900.0, PAGE)]),
    ],
)
def test_from_which_wait_on_what_is_said(longest_s, motion, turns) -> None:  # type: ignore[no-untyped-def]
    steps = ladder(JobState(), None if longest_s is None else int(longest_s * SECOND), 1800.0)
    assert [steps.severity(int(waited_s * SECOND), motion) for waited_s, _ in turns] == [said for _, said in turns]


def test_a_page_comes_before_a_short_time_out_ends_the_job() -> None:
    steps = ladder(JobState(), None, 20.0)
    assert steps.severity(16 * SECOND, STILL) is PAGE
    assert steps.severity(16 * SECOND, MOVES) is PAGE


def late(
    seconds: float = FOREVER,
    *,
    phase: Phase = Phase.OTHER,
    after_s: float = 40.0,
    moves: bool = True,
    **settings: object,
) -> MemoryContext:
    """Rank 2 of four keeps the others waiting in step 20."""
    job = SyntheticJob(
        steps=40,
        delays=[lambda rank, step, at: seconds if (rank, step, at) == (2, 20, phase) else 0],
        at_work=frozenset({2} if moves else ()),
        after_s=after_s,
        **settings,  # type: ignore[arg-type]
    )
    return drive(job.records())


def said(context: MemoryContext) -> list[str]:
    found = [finding.body["severity"] for finding in context.findings()]
    return [one for place, one in enumerate(found) if place == 0 or one != found[place - 1]]


def last(context: MemoryContext) -> Finding:
    (finding,) = context.final().values()
    return finding


def test_a_rank_that_is_at_work_is_noticed_and_pages_nobody() -> None:
    context = late(30.0, phase=Phase.FORWARD)
    assert said(context) == ["info"]
    assert last(context).cleared


def test_one_that_does_nothing_becomes_a_page_of_the_same_finding() -> None:
    context = late(phase=Phase.FORWARD, moves=False)
    assert said(context) == ["info", "page"]
    finding = last(context)
    page = next(finding for finding in context.findings() if finding.body["severity"] == "page")
    assert 7.0 <= page.time_ns / 1e9 - page.body["times"]["onset"] <= 9.0
    assert finding.key == context.findings()[0].key
    assert [row["value"] for row in finding.body["evidence"] if row["signal"] == "process.motion"] == ["still"]


def test_one_that_moves_is_a_ticket_after_a_minute_and_a_page_when_half_of_the_time_out_is_gone() -> None:
    context = late(phase=Phase.FORWARD, after_s=75.0, timeout_s=130.0)
    assert said(context) == ["info", "ticket", "page"]
    assert [row["value"] for row in last(context).body["evidence"] if row["signal"] == "process.motion"] == ["moves"]


def test_who_raises_while_it_is_waited_for_is_told_by_what_it_raised() -> None:
    raised = {"type": "ValueError", "message": "bad", "file": "train.py", "line": 7, "phase": "forward", "step": 20}
    events = [
        (14.0, EventName.RANK_EXCEPTION, 2, raised),
        (14.1, EventName.RANK_EXIT, 2, {"exit_code": 1, "exit_state": int(ExitState.EXCEPTION), "exception": True}),
    ]
    context = late(phase=Phase.FORWARD, events=events)
    assert [finding.body["kind"] for finding in context.findings()][:1] == ["rank_not_entered"]
    finding = last(context)
    assert (finding.body["kind"], finding.body["severity"]) == ("rank_raised", "page")
    assert [item["rank"] for item in finding.body["suspects"]] == [2]


@pytest.mark.parametrize("first", [0, 2])
def test_a_hang_that_a_person_kills_is_the_hang(first: int) -> None:
    """Whoever is killed first, with whatever signal; noticed, but no page yet."""
    exits = [
        (9.0 + (0.0 if rank == first else 0.5), EventName.RANK_EXIT, rank, {"signal": 9, "exit_code": -1})
        for rank in range(4)
    ]
    context = late(phase=Phase.FORWARD, moves=False, events=exits)
    finding = last(context)
    assert (finding.body["kind"], finding.body["severity"]) == ("rank_not_entered", "page")
    assert [item["rank"] for item in finding.body["suspects"]] == [2]
