"""The level falls and rises in a running job, on each rank at its own moment: whoever cannot be seen is not blamed."""

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
from whichrank.telemetry.vocabulary import Level, Op, Phase


def switched(*times: tuple[float, Level], apart_s: float = 0.23) -> dict[str, object]:
    """times: (seconds, level from then on) as asked for; each rank takes it ``apart_s`` after the one before it."""

    def level(rank: int, at: float) -> Level:
        now = Level.EVENTS
        for since, value in times:
            if at >= since + rank * apart_s:
                now = value
        return now

    return {"level": level}


def sleeps(rank: int, step: int, phase: Phase) -> object:
    return lambda r, s, p: FOREVER if (r, s, p) == (rank, step, phase) else 0.0


def names(context: MemoryContext) -> list[tuple[str, list[int]]]:
    return [
        (finding.body["kind"], [item["rank"] for item in finding.body["suspects"]])
        for finding in context.final().values()
    ]


@pytest.mark.parametrize("low", [Level.OFF, Level.STATUS])
@pytest.mark.parametrize("apart_s", [0.0, 0.07, 0.31])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_job_is_silent(low: Level, apart_s: float, seed: int) -> None:
    times = ((3.03, low), (6.07, Level.EVENTS), (8.01, Level.STATUS), (9.0, low), (13.02, Level.EVENTS))
    job = SyntheticJob(steps=100, seed=seed, **switched(*times, apart_s=apart_s))  # type: ignore[arg-type]
    assert names(drive(job.records())) == []


def pipeline(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """One stage works while the other stands in its receive, in turn."""
    work = Work(0.4 * job.step_s)
    there, back = Call("pp", Op.SEND, peer=1 - rank), Call("pp", Op.RECV, peer=1 - rank)
    turns: list[Action] = [work, there, back] if rank == 0 else [back, work, there]
    return [Enter(Phase.DATA), Work(0.1 * job.step_s), Enter(Phase.FORWARD), *turns, Enter(Phase.OPTIMIZER)]


def test_a_stage_that_lowers_its_level_is_not_slow() -> None:
    """What it waits is no longer told from what it works."""
    job = SyntheticJob(
        ranks=2,
        steps=150,
        program=pipeline,
        groups={"pp": [0, 1]},
        level=lambda rank, at: Level.STATUS if rank == 1 and at > 12 else Level.EVENTS,
    )
    assert names(drive(job.records())) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_rank_that_lowers_its_level_for_good_is_not_slow(ranks: int) -> None:
    """As the limit of cost does: what it waits is no longer told from what it works."""
    job = SyntheticJob(
        ranks=ranks,
        steps=120,
        slow=lambda rank, step: 1.4 if step % ranks == rank else 1.0,  # in turn, so that all wait
        transfer_s=lambda step: 0.03,
        level=lambda rank, at: Level.STATUS if rank == 1 and at > 9 else Level.EVENTS,
    )
    assert all(1 not in suspects for _, suspects in names(drive(job.records())))


def test_a_hang_after_the_level_is_back_is_named() -> None:
    job = SyntheticJob(
        steps=60,
        delays=[sleeps(2, 50, Phase.FORWARD)],  # type: ignore[list-item]
        after_s=15.0,
        **switched((2.0, Level.OFF), (6.0, Level.EVENTS)),  # type: ignore[arg-type]
    )
    assert names(drive(job.records())) == [("rank_not_entered", [2])]


def test_a_straggler_after_the_level_is_back_is_named() -> None:
    job = SyntheticJob(
        steps=200,
        slow=lambda rank, step: 1.6 if rank == 1 and step >= 100 else 1.0,
        **switched((2.0, Level.OFF), (6.0, Level.EVENTS)),  # type: ignore[arg-type]
    )
    assert names(drive(job.records())) == [("rank_slow", [1])]


@pytest.mark.parametrize("apart_s", [0.0, 0.07, 0.31])
@pytest.mark.parametrize("off_s", [8.5, 9.4, 9.9, 10.3, 12.0])
@pytest.mark.parametrize("guilty", [0, 3])
def test_a_hang_while_the_level_is_off_names_no_innocent(off_s: float, apart_s: float, guilty: int) -> None:
    """Rank ``guilty`` sleeps from about 10 s on; the level is back 5 s later."""
    job = SyntheticJob(
        steps=80,
        delays=[sleeps(guilty, 48, Phase.FORWARD)],  # type: ignore[list-item]
        after_s=45.0,
        **switched((off_s, Level.OFF), (15.0, Level.EVENTS), apart_s=apart_s),  # type: ignore[arg-type]
    )
    found = names(drive(job.records()))
    assert len(found) <= 1
    assert all(kind == "rank_not_entered" and suspects in ([], [guilty]) for kind, suspects in found)
    # Phases and numbers are kept at every level: once they are shown again, the others' rows suffice.
    assert found == [("rank_not_entered", [guilty])]


def test_a_hang_that_is_known_outlives_the_level() -> None:
    job = SyntheticJob(
        steps=60,
        delays=[sleeps(1, 30, Phase.FORWARD)],  # type: ignore[list-item]
        after_s=25.0,
        **switched((14.0, Level.OFF), (20.0, Level.EVENTS)),  # type: ignore[arg-type]
    )
    context = drive(job.records())
    (finding,) = context.final().values()
    assert [item["rank"] for item in finding.body["suspects"]] == [1]
    assert not finding.cleared
    assert len({item.key for item in context.findings()}) == 1
