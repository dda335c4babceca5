"""Ranks that the others wait for before there is a process group."""

from __future__ import annotations

from typing import Any

from tests.processors.job.synthetic_job import (
    FOREVER,
    Action,
    Call,
    Enter,
    MemoryContext,
    SyntheticJob,
    Work,
    ddp_step,
    drive,
)
from whichrank.telemetry.records import Event, Finding
from whichrank.telemetry.vocabulary import EventName, Op, Phase


def start(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """The first step begins in init, and with everybody."""
    first: list[Action] = [Enter(Phase.INIT), Call("world", Op.BARRIER)] if step == 0 else []
    return [*first, Work(0.01), *ddp_step(job, rank, step)]


def joins(at: float, rank: int, *, joined: bool = False, timeout_s: float = 1800.0) -> Any:
    values = {"joined": joined, "timeout_s": timeout_s, "pid": 4000 + rank}
    return (at, EventName.RANK_JOINING, rank, values)


def run(
    late: int = 2, *events: Any, delay: float = FOREVER, timeout_s: float = 1800.0, **settings: Any
) -> MemoryContext:
    """Four ranks of which one stands in its own start-up for ``delay`` seconds."""
    job = SyntheticJob(
        ranks=4,
        steps=5,
        program=start,
        delays=[lambda rank, step, phase: delay if (rank, step, phase) == (late, 0, Phase.INIT) else 0],
        events=[*(joins(0.5 + rank / 10, rank, timeout_s=timeout_s) for rank in range(4) if rank != late), *events],
        after_s=45.0,
        **settings,
    )
    return drive(job.records())


def seen(context: MemoryContext) -> list[tuple[float, Finding]]:
    """Findings with the seconds of the job at which each was emitted."""
    return [(finding.time_ns / 1e9 - 1_790_000_100, finding) for finding in context.findings()]


def suspects(finding: Finding) -> list[int]:
    return [item["rank"] for item in finding.body["suspects"]]


def test_a_rank_that_stands_before_init_process_group_is_told_and_those_in_it_are_not() -> None:
    context = run()
    (at, finding), *rest = seen(context)
    assert (finding.body["kind"], finding.body["severity"], suspects(finding)) == ("rank_never_joined", "info", [2])
    assert 25.0 <= at - 0.5 <= 30.0
    assert not rest
    assert "rank 2 has not called init_process_group, in which ranks 0-1,3 wait" in finding.body["evidence"][0]["shows"]
    assert finding.body["ruled_out"][0]["who"] == "ranks 0-1,3"
    requests = [record.payload for record in context.emitted if isinstance(record.payload, Event)]
    assert [request.attributes["rank"] for request in requests] == [2]


def test_it_becomes_a_page_when_most_of_the_time_out_is_gone() -> None:
    told = seen(run(timeout_s=40.0))
    assert [finding.body["severity"] for _, finding in told] == ["info", "page"]
    assert len({finding.key for _, finding in told}) == 1
    assert 32.0 <= told[1][0] - 0.5 <= 34.0
    (at, finding), *_ = seen(run(timeout_s=10.0))
    assert finding.body["severity"] == "page"
    assert 8.0 <= at - 0.5 <= 10.0


def test_a_rank_that_comes_late_ends_what_was_told() -> None:
    context = run(2, joins(28.0, 2), delay=27.5)
    _, finding = seen(context)[-1]
    assert finding.cleared
    assert finding.body["evidence"][-1]["shows"] == "rank 2 has come"


def test_a_start_of_twenty_seconds_is_nobodys_affair() -> None:
    assert not run(2, joins(20.0, 2), delay=19.5).findings()


def test_a_wait_for_a_rank_in_init_is_noticed_after_25_seconds_and_pages_nobody_when_it_ends() -> None:
    """All have come; a start may take its time."""
    assert not run(2, joins(0.8, 2), delay=24.0).findings()
    found = [finding for _, finding in seen(run(2, joins(0.8, 2), delay=40.0))]
    assert {(finding.body["kind"], finding.body["severity"]) for finding in found} == {("rank_not_entered", "info")}
    assert [suspects(finding) for finding in found] == [[2], [2]]
    assert found[-1].cleared
