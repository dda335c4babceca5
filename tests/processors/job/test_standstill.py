"""Ranks that wait for each other where nobody can see it: in shared memory, on files, on flags."""

from __future__ import annotations

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
from whichrank.telemetry.vocabulary import Op, Phase


def exchange(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """Gradients meet in a file that all ranks map; the flags beside them are looked at again and again."""
    return [
        Enter(Phase.DATA),
        Work(0.1 * job.step_s),
        Enter(Phase.FORWARD),
        Work(0.5 * job.step_s),
        Enter(Phase.BACKWARD),
        Work(0.3 * job.step_s),
        Enter(Phase.OTHER),
        Call("flags", Op.BARRIER),
        Enter(Phase.OPTIMIZER),
        Work(0.1 * job.step_s),
    ]


def run(
    guilty: dict[int, Phase],
    *,
    ranks: int = 4,
    seconds: float = FOREVER,
    after_s: float = 40.0,
    begins: int = 30,
    step_s: float = 0.2,
    at_work: frozenset[int] = frozenset(),
) -> MemoryContext:
    """guilty: who stands still, and where, from step ``begins`` on."""
    job = SyntheticJob(
        ranks=ranks,
        steps=40,
        step_s=step_s,
        program=exchange,
        groups={"flags": list(range(ranks))},
        unseen=("flags",),
        delays=[lambda rank, step, phase: seconds if step == begins and guilty.get(rank) is phase else 0],
        after_s=after_s,
        at_work=at_work,
    )
    return drive(job.records())


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.FORWARD, Phase.BACKWARD])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_rank_that_alone_is_behind_is_named(phase: Phase, ranks: int) -> None:
    (finding,) = run({1: phase}, ranks=ranks).final().values()
    assert (finding.body["kind"], finding.body["bucket"]) == ("rank_not_entered", "communication_hang")
    assert [item["rank"] for item in finding.body["suspects"]] == [1]
    assert finding.body["suspects"][0]["where"]["phase"] == phase.name.lower()
    assert "no collective is open" in finding.body["evidence"][0]["shows"]
    assert finding.body["severity"] == "page"
    assert 7.0 <= finding.body["times"]["detected"] - finding.body["times"]["onset"] <= 9.5


@pytest.mark.parametrize("begins", [2, 3, 4])
def test_after_the_first_few_steps_too(begins: int) -> None:
    """Before it is known how long a step usually takes: by the longest that its phases have taken."""
    (finding,) = run({1: Phase.FORWARD}, begins=begins, step_s=1.9).final().values()
    assert [item["rank"] for item in finding.body["suspects"]] == [1]
    assert finding.body["times"]["detected"] - finding.body["times"]["onset"] <= 16.0


def test_where_all_stand_at_one_place_nobody_is_named() -> None:
    """Processes that all do nothing within a step are a hang; between steps they may do what they like for a while."""
    assert not run({1: Phase.OTHER}).findings()
    (finding,) = run(dict.fromkeys(range(4), Phase.FORWARD)).final().values()
    assert (finding.body["kind"], finding.body["severity"]) == ("rank_not_entered", "page")
    assert (finding.body["suspects"], finding.body["scope"]) == ([], "job")
    threshold = next(item for item in finding.body["evidence"] if item["signal"] == "progress.threshold")
    assert threshold["shows"] == "that all stand at such a place is a page from 7.0 s on"


def test_between_steps_it_is_a_page_after_a_minute_since_no_time_out_will_end_it() -> None:
    (finding,) = run({1: Phase.OTHER}, after_s=90.0).final().values()
    assert (finding.body["severity"], finding.body["suspects"]) == ("page", [])
    assert 60.0 <= finding.body["times"]["detected"] - finding.body["times"]["onset"] <= 62.0
    (working,) = run({1: Phase.OTHER}, after_s=90.0, at_work=frozenset({1})).final().values()
    assert working.body["severity"] == "ticket"


def test_where_all_are_at_work_it_is_a_ticket_after_a_minute() -> None:
    at_work = frozenset(range(4))
    assert not run(dict.fromkeys(range(4), Phase.FORWARD), at_work=at_work).findings()
    found = run(dict.fromkeys(range(4), Phase.FORWARD), at_work=at_work, after_s=90.0).findings()
    assert [finding.body["severity"] for finding in found] == ["ticket"]


def test_two_behind_are_not_told_apart() -> None:
    assert not run({1: Phase.FORWARD, 2: Phase.DATA}).findings()


def test_a_pause_of_nine_seconds_of_a_rank_at_work_is_no_incident() -> None:
    assert not run({1: Phase.FORWARD}, seconds=9.0, at_work=frozenset({1})).findings()
    assert not run({1: Phase.FORWARD}, seconds=6.0).findings()


def test_it_is_over_when_the_ranks_go_on() -> None:
    (finding,) = run({1: Phase.FORWARD}, seconds=20.0).final().values()
    assert finding.cleared
