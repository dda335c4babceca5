"""Every second of a job has one bucket: exact sums, whatever happens, and the truth where it is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.processors.job.synthetic_job import (
    FOREVER,
    SECOND,
    WALL_NS,
    Action,
    Enter,
    MemoryContext,
    SyntheticJob,
    Work,
    ddp_step,
    drive,
)
from whichrank.diagnosis.goodput.account import RunAccount, account_of
from whichrank.diagnosis.goodput.interval import Interval
from whichrank.diagnosis.goodput.run_intervals import runs_of
from whichrank.processors.job.state.state_rows import load_job, save_job
from whichrank.telemetry.records import Event, Identity, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase, TimeBucket

B = TimeBucket
DEAD = {"signal": 9, "exit_state": int(ExitState.RUNNING)}
TAKEN_DOWN = {"signal": 15, "exit_state": int(ExitState.RUNNING)}


def saving_every(steps: int, save_s: float) -> Any:
    """A DDP step; before every so manieth, all ranks save."""

    def program(job: SyntheticJob, rank: int, step: int) -> list[Action]:
        saves: list[Action] = [Enter(Phase.CHECKPOINT), Work(save_s)] if step and step % steps == 0 else []
        return [*saves, *ddp_step(job, rank, step)]

    return program


def told(name: EventName, at_s: float, **attributes: Any) -> Record:
    """What ``whichrank run`` says of its command."""
    time_ns = int(at_s * SECOND) + WALL_NS
    identity = Identity(cluster="lab", run="run-1", job="job-1", node="node-0")
    event = Event(name=name, identity=identity, time_ns=time_ns, attributes=attributes)
    return Record(topic="whichrank.blocks", key="job-1", stamp_ns=time_ns, payload=event)


def finished_at(at_s: float, exit_code: int = 0) -> Record:
    return told(EventName.JOB_FINISHED, at_s, exit_code=exit_code)


def started_at(at_s: float) -> Record:
    return told(EventName.JOB_STARTED, at_s)


def stuck_at(step: int, seconds: float) -> Callable[[int, int, Phase], float]:
    """Rank 2 stands so long in the forward pass of a step."""
    return lambda rank, at, phase: seconds if (rank, at, phase) == (2, step, Phase.FORWARD) else 0.0


def merged(*streams: Sequence[Record]) -> list[Record]:
    return sorted((record for stream in streams for record in stream), key=lambda record: record.stamp_ns)


def account(context: MemoryContext) -> RunAccount:
    runs = runs_of(context.intervals())
    assert list(runs) == ["run-1"]
    found = account_of("run-1", runs["run-1"])
    assert sum(found.ns.values()) == found.wall_ns == found.end_ns - found.begin_ns
    assert_contiguous(context.intervals())
    return found


def assert_contiguous(intervals: Sequence[Interval]) -> None:
    """One world's intervals follow each other without a gap, under numbers without one."""
    ordered = sorted(intervals, key=lambda interval: interval.number)
    assert [interval.number for interval in ordered] == list(range(len(ordered)))
    assert all(one.end_ns == other.begin_ns for one, other in itertools.pairwise(ordered))


def seconds(found: RunAccount) -> dict[TimeBucket, float]:
    return {bucket: ns / SECOND for bucket, ns in found.ns.items() if ns}


def dies(at_s: float, start_s: float, attempt: str, **values: Any) -> SyntheticJob:
    """Rank 2 is killed; the launcher takes the others down within half a second."""
    others = {rank: at_s + 0.3 + 0.05 * rank for rank in (0, 1, 3)}
    return SyntheticJob(
        attempt=attempt,
        start_s=start_s,
        ends={2: at_s, **others},
        events=[
            (at_s, EventName.RANK_EXIT, 2, DEAD),
            *[(at, EventName.RANK_EXIT, rank, TAKEN_DOWN) for rank, at in others.items()],
        ],
        **{"steps": 400, "after_s": 0.5, **values},
    )


def test_a_job_that_runs_well_is_productive_but_for_its_saves_and_its_data() -> None:
    job = SyntheticJob(steps=400, step_s=0.5, program=saving_every(100, 1.0), after_s=0.5)
    context = drive(merged([started_at(98.0)], job.records(), [finished_at(98.0 + 220)]))
    found = account(context)
    said = seconds(found)
    assert said[B.CHECKPOINT_SAVE] == pytest.approx(3.0, rel=0.05)
    assert said[B.DATA_STALL] == pytest.approx(400 * 0.05, rel=0.1)
    assert said[B.STARTING] == pytest.approx(2.0, abs=0.2)
    assert B.REWORK not in said
    assert B.UNKNOWN not in said
    assert found.steps == 400
    assert found.goodput is not None
    assert found.goodput == pytest.approx(400 * 0.465 / 220, rel=0.02)
    assert len(context.intervals()) <= 10, "about one a minute, cut at checkpoints"


def two_attempts(gap_s: float = 5.0) -> list[Record]:
    """Saved before step 20, killed in step 22 or 23; the second attempt goes on from step 20."""
    first = dies(12.2, 100.0, "a1", step_s=0.5, program=saving_every(20, 0.4))
    second = SyntheticJob(steps=40, attempt="a2", start_s=112.7 + gap_s, step_s=0.5, after_s=0.5)
    return merged([started_at(99.0)], first.records(), second.records(), [finished_at(139.0)])


def test_what_was_lost_is_relabelled_back_to_the_checkpoint() -> None:
    context = drive(two_attempts())
    found = account(context)
    said = seconds(found)
    lost = [each for each in context.intervals() if each.of(B.REWORK)]
    assert {each.first_step for each in lost if each.steps} == {20}
    done = found.steps - 20 - 40
    per_step = 0.5 * 0.95  # data stays what it was
    assert said[B.REWORK] == pytest.approx(done * per_step, abs=0.6)
    (finding,) = context.final().values()
    told_s = finding.body["times"]["detected"] - finding.body["times"]["onset"]
    assert said[B.FAULT_BEFORE_DETECTION] == pytest.approx(told_s, abs=0.02)
    assert said[B.RESTARTING] == pytest.approx(5.0, abs=0.3)
    assert said[B.PRODUCTIVE] == pytest.approx(60 * 0.465, rel=0.02)
    (down,) = found.interruptions
    assert down.went_on
    assert "rank_died" in down.cause
    parts = found.downtime
    assert parts.total_ns == sum(
        (parts.checkpoint_overhead_ns, parts.detection_ns, parts.lost_work_ns, parts.shutdown_ns, parts.restart_ns)
    )
    assert parts.lost_work_ns == found.ns[B.REWORK]


def test_what_passes_between_a_supervised_end_and_start_is_no_queue() -> None:
    """The command ends at 113 s and is started again at once; its ranks need five seconds to come."""
    records = two_attempts()
    again = told(EventName.JOB_STARTED, 113.2, supervised=1, restarted=1)
    said = seconds(account(drive(merged(records, [finished_at(113.0, exit_code=1), again]))))
    assert B.QUEUED not in said
    assert said[B.RESTARTING] == pytest.approx(5.0, abs=0.3)
    by_hand = merged(records, [finished_at(113.0, exit_code=1), started_at(113.2)])
    assert seconds(account(drive(by_hand)))[B.QUEUED] == pytest.approx(4.7, abs=0.3)


def test_a_restart_of_which_nobody_told_is_seen_by_the_attempt_alone() -> None:
    """The ends of the first attempt and the starts of the second are lost on the way."""
    kept = [
        record
        for record in two_attempts()
        if not (
            isinstance(record.payload, Event)
            and record.payload.name in (EventName.RANK_STARTED, EventName.RANK_EXIT)
            and record.stamp_ns > WALL_NS + 105 * SECOND
        )
    ]
    found = account(drive(kept))
    said = seconds(found)
    assert said[B.PRODUCTIVE] == pytest.approx(60 * 0.465, rel=0.02)
    assert said[B.RESTARTING] == pytest.approx(5.5, abs=0.1)
    (down,) = found.interruptions
    assert down.ns[B.REWORK] == found.ns[B.REWORK] > SECOND
    assert said.get(B.UNKNOWN, 0.0) < 0.01 * found.wall_ns / SECOND


def test_a_hang_is_a_fault_before_and_after_it_is_told() -> None:
    hang = SyntheticJob(
        steps=30,
        step_s=0.2,
        delays=[stuck_at(20, FOREVER)],
        after_s=200.0,
        attempt="a1",
    )
    context = drive([*hang.records()])
    (finding,) = context.final().values()
    detected = finding.body["times"]["detected"] - finding.body["times"]["onset"]
    intervals = context.intervals()
    before = sum(each.of(B.FAULT_BEFORE_DETECTION) for each in intervals) / SECOND
    after = sum(each.of(B.FAULT_AFTER_DETECTION) for each in intervals) / SECOND
    assert before == pytest.approx(detected, abs=0.01)
    assert 100 < after < 200, "told while it lasts"
    assert {part.cause for each in intervals for part in each.parts if "fault" in part.bucket.value} == {finding.key}


def test_a_hang_that_passes_costs_what_the_step_took_too_long() -> None:
    held = SyntheticJob(
        steps=40,
        step_s=0.2,
        delays=[stuck_at(20, 12.0)],
        after_s=0.5,
    )
    said = seconds(account(drive(merged(held.records(), [finished_at(125.0)]))))
    assert said[B.FAULT_BEFORE_DETECTION] + said[B.FAULT_AFTER_DETECTION] == pytest.approx(12.0, abs=0.3)
    assert said[B.PRODUCTIVE] == pytest.approx(40 * 0.18, rel=0.1)


def test_a_slow_rank_is_charged_from_its_first_slow_step() -> None:
    slow = SyntheticJob(steps=300, step_s=0.5, slow=lambda r, s: 1.4 if r == 1 and 100 <= s < 200 else 1.0, after_s=0.5)
    context = drive(merged(slow.records(), [finished_at(300.0)]))
    said = seconds(account(context))
    # The slowest of four ranks takes 0.465 s where none is slow, jitter being what it is.
    assert said[B.STRAGGLER_LOSS] == pytest.approx(100 * (1.4 * 0.5 * 0.9 - 0.465), rel=0.05)
    causes = {part.cause for each in context.intervals() for part in each.parts if part.bucket is B.STRAGGLER_LOSS}
    assert causes == set(context.final())


def test_a_stop_that_was_asked_for_is_planned_until_the_next_start() -> None:
    first = SyntheticJob(
        steps=400,
        step_s=0.5,
        program=saving_every(20, 0.2),
        ends=dict.fromkeys(range(4), 11.4),
        events=[
            (11.0, EventName.JOB_SIGNALLED, -1, {"signal": 15, "origin": "user"}),
            *[(11.4, EventName.RANK_EXIT, rank, TAKEN_DOWN) for rank in range(4)],
        ],
        after_s=0.2,
    )
    second = SyntheticJob(steps=20, attempt="a2", start_s=141.0, step_s=0.5, after_s=0.5)
    found = account(drive(merged(first.records(), second.records(), [finished_at(152.0)])))
    said = seconds(found)
    assert said[B.PLANNED] == pytest.approx(29.6, abs=0.3)
    assert said[B.SHUTDOWN] >= 0.3
    assert B.FAULT_BEFORE_DETECTION not in said
    assert found.mttf.failures == 0
    assert all(each.planned for each in found.interruptions)


def test_what_the_scheduler_gave_and_no_rank_uses_is_spare() -> None:
    job = SyntheticJob(steps=200, step_s=0.5, after_s=0.5)
    given = told(EventName.SCHEDULER, 100.5, scheduler="slurm", what="allocation", job="4711", gpus=16)
    other = told(EventName.SCHEDULER, 120.0, scheduler="slurm", what="attempt", job="4711", attempt=0)
    context = drive(merged(job.records(), [given, other, finished_at(210.0)]))
    found = account(context)
    assert found.gpu_ns[B.SPARE] == 12 * found.wall_ns
    assert found.ns[B.SPARE] == 0
    assert {each.gpus_held for each in context.intervals()} == {16}
    state = load_job(context.tables["job"])
    assert state is not None
    assert state.placement.gpus_held == 16


def test_step_rows_that_were_lost_leave_no_hole() -> None:
    job = SyntheticJob(steps=200, step_s=0.5, after_s=0.5)
    lost = [
        record
        for number, record in enumerate(job.records())
        if not (getattr(record.payload, "name", None) is EventName.BLOCK_STEPS and number % 7 == 0)
    ]
    found = account(drive(merged(lost, [finished_at(210.0)])))
    assert found.ns[B.UNKNOWN] < 0.01 * found.wall_ns
    assert found.steps >= 195


def test_hours_without_a_checkpoint_do_not_fill_the_state() -> None:
    def long_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
        return [Enter(Phase.FORWARD), Work(60.0)]

    job = SyntheticJob(ranks=1, steps=400, program=long_step, jitter=0.0, after_s=1.0)
    needed = (EventName.BLOCK_STEPS, EventName.RANK_STARTED)
    records = [record for record in job.records() if getattr(record.payload, "name", None) in needed]
    context = drive(records)
    assert len(context.intervals()) < 200
    (row,) = [len(table.get("ledger") or b"") for table in context.tables.values() if table.get("ledger")]
    assert row < 64_000


def test_the_ledger_is_what_its_row_says() -> None:
    context = drive(two_attempts()[:-200])
    table = context.tables["job"]
    before = table.get("ledger")
    job = load_job(table)
    assert job is not None
    job.ledger.changed = True
    save_job(job, table)
    assert table.get("ledger") == before


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["dies", "hangs", "ends"]),
        st.integers(0, 30),  # step at which it happens
        st.floats(0.5, 90.0),  # until the next start
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attempts=JOBS, lost=st.sets(st.integers(0, 400), max_size=60), save_every=st.integers(3, 40))
def test_buckets_sum_to_wall_time_whatever_happens(
    attempts: list[tuple[str, int, float]], lost: set[int], save_every: int
) -> None:
    """Random attempts, random records lost: nothing is counted twice, nothing is left out."""
    at_s, streams = 100.0, []
    for number, (what, step, pause_s) in enumerate(attempts):
        common: dict[str, Any] = {"step_s": 0.3, "program": saving_every(save_every, 0.2), "seed": number + 1}
        if what == "dies":
            job = dies(0.3 * step + 0.4, at_s, f"a{number}", **common)
        else:
            job = SyntheticJob(
                attempt=f"a{number}",
                start_s=at_s,
                steps=step + 1,
                after_s=1.0,
                delays=[stuck_at(step, FOREVER if what == "hangs" else 0.0)],
                **common,
            )
        records = job.records()
        streams.append(records)
        at_s = (records[-1].stamp_ns - WALL_NS) / SECOND + pause_s
    stream = merged([started_at(99.0)], *streams)
    kept = [record for place, record in enumerate(stream) if place not in lost or not place]
    context = drive(merged(kept, [finished_at(at_s)]))
    found = account(context)
    assert found.begin_ns == int(99.0 * SECOND) + WALL_NS
    assert found.end_ns == int(at_s * SECOND) + WALL_NS
    assert found.steps <= sum(step + 60 for _, step, _ in attempts)
    assert [i.number for i in drive(merged(kept, [finished_at(at_s)]), batches=[1, 9, 40]).intervals()] == [
        i.number for i in context.intervals()
    ]
