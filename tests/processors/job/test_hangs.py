"""Who stands still, and who only waits: every kind of hang and its negative twin."""

from __future__ import annotations

import pytest

from tests.processors.job.synthetic_job import (
    FOREVER,
    SECOND,
    WALL_NS,
    Action,
    Call,
    Enter,
    MemoryContext,
    SyntheticJob,
    Work,
    ddp_step,
    drive,
)
from whichrank.processors.job.detectors.hang.wait_graph import Wait, find_blockage
from whichrank.telemetry.records import Event, Finding, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Level, Op, Phase, ProcessState


def only(context: MemoryContext) -> Finding:
    """The one finding of this run, in its last revision."""
    found = list(context.final().values())
    assert len(found) == 1, [finding.key for finding in found]
    return found[0]


def suspects(finding: Finding) -> list[int]:
    return [item["rank"] for item in finding.body["suspects"]]


def delay_of(finding: Finding, context: MemoryContext) -> float:
    """Seconds from onset to the first emission of this finding."""
    first = next(item for item in context.findings() if item.key == finding.key)
    return first.time_ns / 1e9 - float(finding.body["times"]["onset"])


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER])
@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_a_rank_that_sleeps_is_named_and_those_who_wait_are_not(phase: Phase, ranks: int) -> None:
    guilty = ranks - 1
    job = SyntheticJob(
        ranks=ranks,
        steps=30,
        delays=[lambda rank, step, now: FOREVER if (rank, step, now) == (guilty, 20, phase) else 0],
    )
    context = drive(job.records())
    finding = only(context)
    assert finding.body["kind"] == "rank_not_entered"
    assert finding.body["bucket"] == "communication_hang"
    assert suspects(finding) == [guilty]
    assert finding.body["suspects"][0]["where"]["phase"] == phase.name.lower()
    assert finding.body["first_bad"]["step"] == 20
    assert delay_of(finding, context) < 5.0
    assert f"rank {guilty} has not entered" in finding.body["evidence"][0]["shows"]


def test_a_stack_is_asked_for_and_its_line_becomes_a_revision() -> None:
    stack = {"file": "train.py", "line": 88, "function": "compute", "method": "py-spy", "phase": "forward"}
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 20, Phase.FORWARD) else 0],
        events=[(8.6, EventName.RANK_STACK, 2, stack)],
    )
    context = drive(job.records())
    requests = [record.payload for record in context.emitted if isinstance(record.payload, Event)]
    asked = [(request.attributes["rank"], request.attributes["action"]) for request in requests]
    assert asked == [(2, "stack"), (0, "calls"), (1, "calls")]  # where it stands, and what two of the others wait in
    finding = only(context)
    assert finding.body["suspects"][0]["where"] == {"file": "train.py", "line": 88, "phase": "forward"}
    assert [len(item.body["evidence"]) for item in context.findings()] == [3, 4, 4]
    assert [item.body["severity"] for item in context.findings()] == ["info", "info", "page"]


def test_where_it_cleans_up_after_a_stop_is_not_where_it_stood() -> None:
    stack = {"file": "train.py", "line": 88, "function": "compute", "method": "py-spy", "phase": "forward"}
    cleaning = {**stack, "line": 99, "function": "__exit__", "method": "signal"}
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 20, Phase.FORWARD) else 0],
        events=[
            (8.6, EventName.RANK_STACK, 2, stack),
            (16.0, EventName.JOB_SIGNALLED, -1, {"signal": 2, "origin": "user"}),
            (17.0, EventName.RANK_STACK, 2, cleaning),
        ],
    )
    finding = only(drive(job.records()))
    assert finding.body["suspects"][0]["where"] == {"file": "train.py", "line": 88, "phase": "forward"}


def test_an_exit_seen_after_a_job_was_told_to_end_opens_nothing_again() -> None:
    """Ranks are seen to end in their agent's own time: the command may have told its end before."""
    ended = {"signal": 15, "exit_code": -15, "exit_state": int(ExitState.RUNNING)}
    job = SyntheticJob(
        ranks=4,
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (3, 20, Phase.FORWARD) else 0],
        events=[
            (16.0, EventName.JOB_SIGNALLED, -1, {"signal": 15, "origin": "user"}),
            *((16.2 + rank / 100, EventName.RANK_EXIT, rank, ended) for rank in (3, 1, 2)),
            (16.5, EventName.JOB_FINISHED, -1, {"exit_code": -15}),
            (17.0, EventName.RANK_EXIT, 0, ended),
        ],
    )
    context = drive(job.records())
    assert [(item.body["kind"], item.cleared) for item in context.findings()][-1] == ("rank_not_entered", True)
    assert len({item.key for item in context.findings()}) == 1


def mesh_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """TP inside, DP outside: ranks 0,1 and 2,3 are TP pairs; 0,2 and 1,3 are DP pairs."""
    tensor, data = f"tp{rank // 2}", f"dp{rank % 2}"
    return [
        Enter(Phase.FORWARD),
        Work(0.05),
        Call(tensor, bytes=100),
        Enter(Phase.BACKWARD),
        Work(0.05),
        Call(tensor, bytes=100),
        Call(data, bytes=5000),
        Enter(Phase.OPTIMIZER),
        Work(0.02),
    ]


MESH = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}


def test_in_a_mesh_the_rank_that_waits_in_one_group_is_not_blamed_by_the_other() -> None:
    job = SyntheticJob(
        program=mesh_step,
        groups=MESH,
        steps=40,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (3, 25, Phase.FORWARD) else 0],
    )
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [3])
    assert finding.body["first_bad"]["group"] == "tp1"
    assert "ranks 0-2" in finding.body["ruled_out"][0]["who"]


def test_groups_in_opposite_order_are_a_deadlock_and_nobody_is_blamed() -> None:
    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        calls = [Call("world", bytes=4), Call("all", bytes=4)]
        return [*actions, *(reversed(calls) if (rank, step) == (1, 20) else calls)]

    job = SyntheticJob(ranks=4, steps=40, groups={"all": [0, 1, 2, 3]}, edit=edit)
    context = drive(job.records())
    finding = only(context)
    assert (finding.body["kind"], suspects(finding)) == ("deadlock", [])
    assert finding.body["scope"] == "application"
    assert delay_of(finding, context) < 5.0


def test_a_held_interpreter_lock_shows_as_a_silent_heartbeat() -> None:
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (0, 20, Phase.FORWARD) else 0],
        heartbeat_s=lambda rank, at: max(0.05, at - 4.2) if rank == 0 else 0.05,
    )
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [0])
    assert "interpreter lock" in finding.body["evidence"][0]["shows"]


def stopped_job(stopped: list[int], length_s: float = FOREVER) -> SyntheticJob:
    return SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: length_s if rank in stopped and (step, phase) == (20, Phase.FORWARD) else 0],
        states=lambda rank, at: ProcessState.STOPPED if rank in stopped and at > 4.4 else ProcessState.RUNNING,
        heartbeat_s=lambda rank, at: max(0.05, at - 4.4) if rank in stopped else 0.05,
        events=[
            (4.4 + 0.01 * rank, EventName.RANK_STOPPED, rank, {"step": 20, "phase": "forward"}) for rank in stopped
        ],
    )


def test_a_stopped_process_is_named_within_a_second() -> None:
    context = drive(stopped_job([1]).records())
    finding = only(context)
    assert (finding.body["kind"], suspects(finding)) == ("rank_stopped", [1])
    assert delay_of(finding, context) < 0.7


def test_a_job_that_is_suspended_as_a_whole_is_nobodys_fault() -> None:
    assert drive(stopped_job([0, 1, 2, 3]).records()).findings() == []


@pytest.mark.parametrize("seen_s", [4.5, 4.7, 5.2])
def test_a_job_whose_processes_are_looked_at_at_different_moments_is_suspended_as_well(seen_s: float) -> None:
    """All stop at 4.4; rank 1 is seen at once, the others later: until then only their heartbeats tell."""
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (step, phase) == (20, Phase.FORWARD) else 0],
        states=lambda rank, at: ProcessState.STOPPED if at > (4.4 if rank == 1 else seen_s) else ProcessState.RUNNING,
        heartbeat_s=lambda rank, at: max(0.05, at - 4.38),
        events=[
            (4.45 if rank == 1 else seen_s + 0.05, EventName.RANK_STOPPED, rank, {"step": 20, "phase": "forward"})
            for rank in range(4)
        ],
    )
    assert drive(job.records()).findings() == []


def test_a_job_suspended_while_some_wait_is_nobodys_fault_and_neither_is_its_going_on() -> None:
    """Rank 0 saves and the others wait for it when all are stopped, for longer than any wait; they go on in turn."""
    stop_s, go_s = 5.6, 15.6

    def stopped(rank: int, at: float) -> bool:
        return stop_s + 0.4 * (rank != 1) < at < go_s + 0.3 * rank

    job = SyntheticJob(
        steps=60,
        delays=[lambda rank, step, phase: 14.0 if (rank, step, phase) == (0, 20, Phase.FORWARD) else 0],
        states=lambda rank, at: ProcessState.STOPPED if stopped(rank, at) else ProcessState.SLEEPING,
        heartbeat_s=lambda rank, at: max(0.05, at - stop_s) if at < go_s else 0.05,
        events=[
            *[(stop_s + 0.05 + 0.4 * (rank != 1), EventName.RANK_STOPPED, rank, {"step": 20}) for rank in range(4)],
            *[(go_s + 0.3 * rank, EventName.RANK_CONTINUED, rank, {}) for rank in range(4)],
        ],
    )
    told = [finding for finding in drive(job.records()).findings() if finding.time_ns < WALL_NS + (100 + 17) * SECOND]
    assert [finding.body["kind"] for finding in told] == []


@pytest.mark.parametrize("told", [True, False])
def test_a_machine_that_stood_still_with_its_agent_makes_no_wait(told: bool) -> None:
    """Nobody saw anybody stopped; when all go on, the agent says so first. Rank 1 comes two seconds later."""
    stop_s, go_s = 4.4, 14.4
    word = EventName.RANK_CONTINUED if told else EventName.RANK_LEVEL  # the latter changes nothing
    job = SyntheticJob(
        steps=60,
        delays=[lambda rank, step, phase: 12.4 if (rank, step, phase) == (1, 20, Phase.FORWARD) else 0],
        events=[(go_s, word, rank, {"level": int(Level.EVENTS)}) for rank in range(4)],
    )
    start_ns = WALL_NS + int(job.start_s * SECOND)
    seen = [
        record
        for record in job.records()
        if not stop_s * SECOND < record.stamp_ns - start_ns < (go_s + 0.005) * SECOND
        or (isinstance(record.payload, Event) and record.payload.name is word)
    ]
    kinds = {finding.body["kind"] for finding in drive(seen).findings()}
    assert kinds == (set() if told else {"rank_not_entered"})


def test_a_stopped_process_that_goes_on_ends_the_finding() -> None:
    job = stopped_job([1], length_s=5.4)
    job.states = lambda rank, at: ProcessState.STOPPED if rank == 1 and 4.4 < at < 9.3 else ProcessState.RUNNING
    job.events.append((9.3, EventName.RANK_CONTINUED, 1, {}))
    assert only(drive(job.records())).cleared


#: The agent dies after its first look at rank 1; the rings are read when all processes are gone. Both exact in binary.
FIRST_LOOK_S, GONE_S = 4.625, 7.125


def left_behind(*, first_look: ProcessState, beat_s: float, last_beat_s: float, peers_until_s: float) -> list[Record]:
    """What replay gets of a job whose rank 1 stands still in step 20, and whose agent never told of a stop.

    beat_s, last_beat_s: heartbeat of rank 1 at the first look and in the end; peers_until_s: of the others.
    """
    seen = {"level": int(Level.EVENTS)}  # an event that changes nothing: rows are shipped with it
    gone = [
        (GONE_S, EventName.RANK_EXIT, rank, {"signal": 0 if rank == 1 else 15, "sender_pid": 0}) for rank in range(4)
    ]
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if rank == 1 and (step, phase) == (20, Phase.FORWARD) else 0],
        states=lambda rank, at: (
            ProcessState.DEAD if at >= GONE_S else first_look if rank == 1 and at > 4.5 else ProcessState.SLEEPING
        ),
        heartbeat_s=lambda rank, at: (
            at - (peers_until_s if rank != 1 else last_beat_s)
            if at >= GONE_S
            else at - beat_s
            if rank == 1 and at == FIRST_LOOK_S
            else 0.0625
        ),
        events=[(FIRST_LOOK_S, EventName.RANK_LEVEL, 0, seen), *gone],
    )
    start_ns = WALL_NS + int(job.start_s * SECOND)
    died_ns, read_ns = start_ns + int((FIRST_LOOK_S + 0.1) * SECOND), start_ns + int(GONE_S * SECOND)
    return [record for record in job.records() if record.stamp_ns < died_ns or 0 <= record.stamp_ns - read_ns < 10**8]


def test_a_stop_seen_once_is_completed_by_the_heartbeats_left_behind() -> None:
    finding = only(
        drive(left_behind(first_look=ProcessState.STOPPED, beat_s=4.25, last_beat_s=4.25, peers_until_s=7.0))
    )
    assert (finding.body["kind"], suspects(finding)) == ("rank_stopped", [1])
    assert finding.body["bucket"] == "communication_hang"


@pytest.mark.parametrize("hung_s", [2.0, 10.0])
@pytest.mark.parametrize("heart", ["beats", "stands still"])
def test_a_hang_that_nobody_watched_is_told_although_all_were_then_asked_to_stop(hung_s: float, heart: str) -> None:
    """The agent is gone when rank 1 stands still; its owner ends the job, and then the rings are read.

    Its heart does not beat while C holds the GIL; what the signal's handler wrote is its last sign of life.
    """
    stands_s, gone_s = 4.0, 4.0 + hung_s + 0.125
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if rank == 1 and (step, phase) == (20, Phase.FORWARD) else 0],
        states=lambda rank, at: ProcessState.DEAD if at >= gone_s else ProcessState.SLEEPING,
        heartbeat_s=lambda rank, at: at - stands_s if rank == 1 and heart != "beats" and at > stands_s else 0.0625,
        events=[(gone_s, EventName.RANK_EXIT, rank, {"signal": 15, "sender_pid": 0}) for rank in range(4)],
    )
    start_ns = WALL_NS + int(job.start_s * SECOND)
    died_ns, read_ns = start_ns + int(stands_s * SECOND), start_ns + int(gone_s * SECOND)
    found = drive(
        [record for record in job.records() if record.stamp_ns < died_ns or 0 <= record.stamp_ns - read_ns < 10**8]
    )
    (finding,) = found.final().values()
    if hung_s > 3.0:
        assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [1])
    else:
        assert finding.body["kind"] == "planned_stop", "no longer than others had waited before"


@pytest.mark.parametrize(
    ("first_look", "last_beat_s", "peers_until_s"),
    [
        (ProcessState.SLEEPING, 4.25, 7.0),  # never seen stopped: it may as well have died, or held its interpreter
        (ProcessState.STOPPED, 4.25, 4.75),  # the others ended with it: killed while somebody looked
        (ProcessState.STOPPED, 4.75, 7.0),  # it went on after that look
    ],
)
def test_one_look_at_a_stopped_process_is_not_enough_by_itself(
    first_look: ProcessState, last_beat_s: float, peers_until_s: float
) -> None:
    records = left_behind(first_look=first_look, beat_s=4.25, last_beat_s=last_beat_s, peers_until_s=peers_until_s)
    assert [f.body["kind"] for f in drive(records).findings() if f.body["kind"] == "rank_stopped"] == []


def test_a_stop_of_a_moment_is_no_news_however_often_it_is_seen() -> None:
    looks = (4.625, 4.640625, 4.65625)
    job = SyntheticJob(
        steps=40,
        states=lambda rank, at: ProcessState.STOPPED if rank == 1 and at in looks else ProcessState.SLEEPING,
        heartbeat_s=lambda rank, at: at - 4.25 if rank == 1 and at in looks else 0.0625,
        events=[(at, EventName.RANK_LEVEL, 0, {"level": int(Level.EVENTS)}) for at in looks],
    )
    assert drive(job.records()).findings() == []


def test_a_rank_left_stopped_is_named_though_the_others_were_told_to_leave() -> None:
    """Their exits are read in the same moment as the stop, which had lasted for long."""
    at = 6.5
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if rank == 1 and (step, phase) == (20, Phase.FORWARD) else 0],
        states=lambda rank, now: ProcessState.STOPPED if rank == 1 and now >= at else ProcessState.SLEEPING,
        events=[
            (at, EventName.RANK_STOPPED, 1, {"left_behind": True}),
            (at + 0.001, EventName.RANK_LEVEL, 0, {"level": int(Level.EVENTS)}),
            *[(at + 0.002, EventName.RANK_EXIT, rank, {"signal": 15}) for rank in (0, 2, 3)],
        ],
    )
    counted = [f for f in drive(job.records()).final().values() if f.body["bucket"] != "planned"]
    assert [(f.body["kind"], suspects(f)) for f in counted] == [("rank_stopped", [1])]


def test_a_long_first_step_is_not_worth_a_word() -> None:
    slow = SyntheticJob(
        steps=20, delays=[lambda rank, step, now: 25 if (rank, step, now) == (1, 0, Phase.FORWARD) else 0]
    )
    assert drive(slow.records()).findings() == []
    never = SyntheticJob(
        steps=20,
        timeout_s=10.0,
        after_s=14.0,
        delays=[lambda rank, step, now: FOREVER if (rank, step, now) == (1, 0, Phase.FORWARD) else 0],
    )
    context = drive(never.records())
    assert suspects(only(context)) == [1]
    assert delay_of(only(context), context) > 7.0


def evaluating(lengths: dict[int, float]) -> SyntheticJob:
    """Rank 0 evaluates after these steps while the others wait for it."""

    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        if rank or step not in lengths:
            return actions
        return [Enter(Phase.EVAL), Work(lengths[step]), *actions]

    return SyntheticJob(steps=60, edit=edit, after_s=2.0)


def test_evaluations_on_rank_0_that_take_what_they_took_before_are_no_hang() -> None:
    assert drive(evaluating({10: 8.0, 25: 8.0, 40: 9.0}).records()).findings() == []


def test_a_much_longer_evaluation_is_told_and_is_over_when_the_job_goes_on() -> None:
    context = drive(evaluating({10: 4.0, 30: 14.0}).records())
    finding = only(context)
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [0])
    assert finding.body["scope"] == "application"
    assert finding.cleared


def test_loader_hiccups_of_two_seconds_are_no_hang() -> None:
    job = SyntheticJob(
        steps=60,
        delays=[lambda rank, step, phase: 2.0 if phase is Phase.DATA and step in (12, 30, 44) and rank == 1 else 0],
    )
    assert drive(job.records()).findings() == []


def pipeline_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """Three stages, activations forward, gradients back, all by send and receive."""
    actions: list[Action] = [Enter(Phase.FORWARD)]
    if rank > 0:
        actions.append(Call("world", Op.RECV, 64, peer=rank - 1))
    actions.append(Work(0.04))
    if rank < job.ranks - 1:
        actions += [Call("world", Op.SEND, 64, peer=rank + 1), Call("world", Op.RECV, 64, peer=rank + 1)]
    actions += [Enter(Phase.BACKWARD), Work(0.05)]
    if rank > 0:
        actions.append(Call("world", Op.SEND, 64, peer=rank - 1))
    return [*actions, Enter(Phase.OPTIMIZER), Work(0.01), Call("world", bytes=4)]


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stalled_pipeline_stage_is_found_through_its_neighbours(stage: int) -> None:
    job = SyntheticJob(
        ranks=3,
        steps=40,
        program=pipeline_step,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (stage, 25, Phase.BACKWARD) else 0],
    )
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [stage])


def slow_start_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """The last stage waits for the middle one while the first works: long, and nothing is wrong."""
    actions: list[Action] = [Enter(Phase.DATA)]
    actions += [Call("world", Op.RECV, 64, peer=rank - 1)] if rank > 0 else [Work(1.0)]
    actions += [Enter(Phase.FORWARD), Work(0.05)]
    actions += [Call("world", Op.SEND, 64, peer=rank + 1)] if rank < job.ranks - 1 else []
    return [*actions, Enter(Phase.OPTIMIZER), Work(0.01), Call("world", bytes=4)]


def test_a_hang_begins_with_its_suspects_phase_although_the_others_have_work_of_their_own_to_do_yet() -> None:
    job = SyntheticJob(
        steps=14,
        step_s=3.0,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (1, 8, Phase.FORWARD) else 0],
        after_s=14.0,
    )
    finding = only(drive(job.records()))
    stood_still_ns, phase, _ = job.people[1].phases[-1]
    assert (suspects(finding), phase) == ([1], Phase.FORWARD)
    assert finding.body["times"]["onset"] == pytest.approx((WALL_NS + stood_still_ns) / 1e9, abs=0.01)


def test_a_hang_begins_when_its_suspect_stands_still_not_when_the_first_began_to_wait() -> None:
    job = SyntheticJob(
        ranks=3,
        steps=12,
        program=slow_start_step,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (1, 8, Phase.FORWARD) else 0],
        after_s=12.0,
    )
    context = drive(job.records())
    finding = only(context)
    stood_still_ns, phase, _ = job.people[1].phases[-1]
    assert (suspects(finding), phase) == ([1], Phase.FORWARD)
    assert finding.body["times"]["onset"] == pytest.approx((WALL_NS + stood_still_ns) / 1e9, abs=0.01)


def test_ranks_that_never_come_are_told_after_twenty_five_seconds() -> None:
    def program(job: SyntheticJob, rank: int, step: int) -> list[Action]:
        return [Work(0.01), Call("world", Op.BARRIER), *ddp_step(job, rank, step)]

    job = SyntheticJob(ranks=4, absent=(2,), program=program, after_s=32.0)
    context = drive(job.records())
    finding = only(context)
    assert (finding.body["kind"], suspects(finding)) == ("rank_never_joined", [2])
    assert finding.body["severity"] == "info"
    assert 25.0 <= delay_of(finding, context) <= 30.0


def test_a_rank_at_the_end_of_its_script_had_less_to_do_than_the_others() -> None:
    """It destroys its groups, and that does not return; the others still call."""

    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return [Enter(Phase.EXIT)] if rank == 1 and step >= 20 else actions

    job = SyntheticJob(
        steps=30,
        edit=edit,
        delays=[lambda rank, step, phase: FOREVER if phase is Phase.EXIT else 0],
        after_s=16.0,
    )
    context = drive(job.records())
    finding = only(context)
    assert (finding.body["kind"], finding.body["scope"], suspects(finding)) == ("desync", "application", [1])
    assert "rank 1 is in phase exit" in finding.body["evidence"][0]["shows"]
    assert 10.0 <= delay_of(finding, context) <= 12.0


def test_a_rank_whose_process_is_gone_is_left_to_the_word_of_its_end() -> None:
    """Its last row comes in before its exit does; the exit says that it died and how."""
    job = SyntheticJob(
        steps=30,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 20, Phase.FORWARD) else 0],
        states=lambda rank, at: ProcessState.DEAD if rank == 2 and at >= 6.5 else ProcessState.SLEEPING,
        heartbeat_s=lambda rank, at: at - 6.5 if rank == 2 and at > 6.5 else 0.05,
        events=[(8.5, EventName.RANK_EXIT, 2, {"signal": 0, "exit_code": 3, "exit_state": 0, "step": 20})],
        after_s=3.0,
    )
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_died", [2])


def wait_of(rank: int, peer: int, *, op: Op = Op.SEND, passed: bool = False) -> Wait:
    return Wait(
        rank=rank,
        group=0,
        seq=1,
        op=int(op),
        p2p=True,
        age_ns=4 * SECOND,
        since_ns=0,
        missing=(peer,),
        passed=passed,
    )


@pytest.mark.parametrize(
    ("sleeper_went_on", "neighbour_went_on", "sort", "named"),
    [
        (True, False, "missing", (0,)),  # its sends are under way, and it is somewhere else
        (False, False, "deadlock", ()),
        (True, True, "deadlock", ()),  # who of them waits for its sends later nobody tells
    ],
)
def test_sends_under_way_do_not_hold_a_rank_that_has_gone_on(
    sleeper_went_on: bool, neighbour_went_on: bool, sort: str, named: tuple[int, ...]
) -> None:
    """A stage of a 1F1B pipeline that stands still has sent ahead to the neighbour that waits for it."""
    waits = [
        wait_of(0, 1, passed=sleeper_went_on),
        wait_of(1, 0, passed=neighbour_went_on),
        wait_of(2, 1, op=Op.RECV),
    ]
    if neighbour_went_on:
        waits.pop()
    found = find_blockage(waits, 3 * SECOND)
    assert found is not None
    assert (found.sort, found.suspects) == (sort, named)
