"""Calls that are waited for a step later: who runs ahead works meanwhile, and only who stands in wait() waits."""

from __future__ import annotations

import pytest

from tests.processors.job.synthetic_job import (
    Action,
    Call,
    Enter,
    MemoryContext,
    SyntheticJob,
    WaitEarlier,
    Work,
    drive,
)
from whichrank.telemetry.vocabulary import Phase


def late_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """Forward, backward, a wait for what was called in the step before, two asynchronous calls, the optimizer."""
    return [
        Enter(Phase.FORWARD),
        Work(0.7 * job.step_s),
        Enter(Phase.BACKWARD),
        Work(0.25 * job.step_s),
        WaitEarlier(),
        Enter(Phase.OTHER),
        Call("world", bytes=4000, asynchronous=True),
        Call("world", bytes=80, asynchronous=True),
        Enter(Phase.OPTIMIZER),
        Work(0.05 * job.step_s),
    ]


def called_early(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """The same with the calls in the middle of the step."""
    actions = late_step(job, rank, step)
    calls = [action for action in actions if isinstance(action, Call)]
    rest = [action for action in actions if not isinstance(action, Call)]
    return [*rest[:-2], Enter(Phase.OTHER), *calls, Work(0.5 * job.step_s), *rest[-2:]]


def verdicts(context: MemoryContext) -> list[tuple[str, list[int | None]]]:
    return [(found.body["kind"], [who["rank"] for who in found.body["suspects"]]) for found in context.final().values()]


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("program", [late_step, called_early])
def test_ranks_that_run_ahead_of_each_other_are_all_healthy(program, seed: int) -> None:  # type: ignore[no-untyped-def]
    job = SyntheticJob(ranks=5, steps=200, jitter=0.05, seed=seed, program=program, transfer_s=lambda _: 0.01)
    assert verdicts(drive(job.records(), batches=[3])) == []


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("skew_ns", [0, 3_000_000_000])
def test_the_straggler_is_told_and_those_who_wait_for_it_late_are_not(seed: int, skew_ns: int) -> None:
    job = SyntheticJob(
        ranks=4,
        steps=110,
        step_s=0.2,
        jitter=0.05,
        seed=seed,
        program=late_step,
        slow=lambda rank, step: 1.3 if rank == 2 and step >= 60 else 1.0,
        node_of=lambda rank: f"node-{rank // 2}" if skew_ns else "node-0",
        clock_skew_ns=lambda node: skew_ns if node == "node-1" else 0,
    )
    context = drive(job.records(), batches=[5, 1])
    assert verdicts(context) == [("rank_slow", [2])]
    found = next(iter(context.final().values()))
    assert 58 <= found.body["first_bad"]["step"] <= 62
    assert found.body["suspects"][0]["where"]["phase"] in ("forward", "backward")


def test_where_batches_end_does_not_matter() -> None:
    job = SyntheticJob(steps=90, step_s=0.2, program=late_step, slow=lambda rank, step: 1.4 if rank == 1 else 1.0)
    records = job.records()
    one, other = drive(records, batches=[1]), drive(records, batches=[7, 2], fresh_each_time=True)
    assert one.findings() == other.findings() != []
