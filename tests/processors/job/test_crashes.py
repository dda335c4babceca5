"""Who died first: causes, consequences and clearing up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.job.synthetic_job import FOREVER, Action, Enter, MemoryContext, SyntheticJob, drive
from whichrank.processors.job.crash import crashes
from whichrank.processors.job.detectors.crash.crash_order import CrashVerdict, Ending, Hold, judge_endings
from whichrank.processors.job.operator import JobOperator
from whichrank.telemetry.evidence_facts import FACT, EvidenceFact, How, read_fact
from whichrank.telemetry.records import Event, Finding, Record
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase

EXC, EXIT = EventName.RANK_EXCEPTION, EventName.RANK_EXIT
Happening = tuple[float, EventName, int, dict[str, Any]]


def victim(at: float, rank: int) -> Happening:
    text = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"
    return (at, EXC, rank, {"type": "RuntimeError", "message": text, "communication": True, "step": 20})


def raised(at: float, rank: int, kind: str = "ValueError", message: str = "bad batch") -> Happening:
    place = {"file": "train.py", "line": 41, "function": "load", "phase": "data"}
    return (at, EXC, rank, {"type": kind, "message": message, "communication": False, "step": 20, **place})


def killed(at: float, rank: int, signal: int) -> Happening:
    return (at, EXIT, rank, {"signal": signal, "exit_state": int(ExitState.RUNNING), "step": 20, "phase": "forward"})


def exited(at: float, rank: int, code: int, state: ExitState, *, exception: bool = False) -> Happening:
    values = {"signal": 0, "exit_code": code, "exit_state": int(state), "exception": exception, "step": 20}
    return (at, EXIT, rank, {**values, "phase": "exit" if state is ExitState.NORMAL else "forward"})


def finished(at: float, code: int) -> Happening:
    return (at, EventName.JOB_FINISHED, -1, {"exit_code": code})


def run(*events: Happening, gone: dict[int, float] | None = None, **settings: Any) -> MemoryContext:
    ends = {rank: at for at, name, rank, _ in events if name is EXIT}
    job = SyntheticJob(steps=60, events=list(events), ends={**ends, **(gone or {})}, after_s=3.0, **settings)
    return drive(job.records())


def only(context: MemoryContext) -> Finding:
    found = list(context.final().values())
    assert len(found) == 1, [finding.key for finding in found]
    return found[0]


def verdict(context: MemoryContext) -> tuple[str, str, list[int]]:
    body = only(context).body
    return body["bucket"], body["kind"], [item["rank"] for item in body["suspects"]]


def first_seen_s(context: MemoryContext) -> float:
    """Seconds of the job at which the first finding was emitted."""
    return context.findings()[0].time_ns / 1e9 - 1_790_000_000 - 100


@pytest.mark.parametrize("signal", [9, 11, 7])
def test_a_killed_rank_is_the_cause_although_a_victims_error_came_first(signal: int) -> None:
    context = run(
        victim(4.41, 0),
        killed(4.43, 2, signal),
        victim(4.45, 1),
        victim(4.47, 3),
        exited(4.6, 0, 1, ExitState.EXCEPTION, exception=True),
        killed(4.7, 1, 15),
        finished(5.5, 1),
    )
    assert verdict(context) == ("immediate_crash", "rank_died", [2])
    assert first_seen_s(context) < 5.1
    assert {item["who"] for item in only(context).body["ruled_out"]} == {"rank 0", "rank 1", "rank 3"}


def test_a_fatal_signal_leaves_the_line_that_it_struck() -> None:
    stack = {"file": "train.py", "line": 88, "function": "compute", "method": "signal", "phase": "forward"}
    context = run((4.4, EventName.RANK_STACK, 2, stack), killed(4.41, 2, 11), victim(4.45, 0), finished(5.5, 1))
    assert verdict(context) == ("immediate_crash", "rank_died", [2])
    assert only(context).body["suspects"][0]["where"] == {"file": "train.py", "line": 88, "phase": "forward"}
    assert not [record for record in context.emitted if isinstance(record.payload, Event)]  # the dead are not asked


def test_an_error_of_its_own_is_the_cause_and_leaves_its_line() -> None:
    context = run(
        raised(4.4, 1),
        victim(4.5, 0),
        exited(4.6, 1, 1, ExitState.EXCEPTION, exception=True),
        killed(4.8, 2, 15),
        finished(5.5, 1),
    )
    assert verdict(context) == ("immediate_crash", "rank_raised", [1])
    assert first_seen_s(context) < 4.7
    assert only(context).body["suspects"][0]["where"] == {"file": "train.py", "line": 41, "phase": "data"}
    assert "ValueError: bad batch" in only(context).body["evidence"][0]["shows"]


def test_each_exit_has_fields_beside_its_sentence() -> None:
    context = run(
        raised(4.4, 1),
        victim(4.5, 0),
        exited(4.6, 1, 1, ExitState.EXCEPTION, exception=True),
        killed(4.8, 2, 15),
        finished(5.5, 1),
    )
    facts = [read_fact(item) for item in only(context).body["evidence"]]
    place = {"file": "train.py", "line": 41, "step": 20, "phase": "data"}
    assert facts == [
        EvidenceFact(how=How.RAISED, rank=1, type="ValueError", message="bad batch", **place),  # type: ignore[arg-type]
        EvidenceFact(how=How.EXIT, rank=1, exit_code=1),
    ]


def test_what_an_earlier_release_has_said_in_words_alone_is_not_said_again() -> None:
    ends = [exited(5.2, 1, 1, ExitState.EXCEPTION, exception=True), victim(6.0, 3)]
    job = SyntheticJob(steps=60, events=[raised(4.4, 1), victim(4.5, 0), *ends], ends={1: 5.2}, after_s=3.0)
    records = iter(job.records())
    operator, context = JobOperator(), MemoryContext()
    while not context.findings():
        process(operator, context, next(records))
    for rows in context.tables.values():
        for name, row in list(rows.rows()):
            head, end, arrays = row.partition(b"\n")
            if b'"fact"' in head:
                rows.put(name, json.dumps(without_facts(json.loads(head))).encode() + end + arrays)
    operator = JobOperator()
    for record in records:
        process(operator, context, record)
    (*_, last) = context.findings()
    said = [(item["signal"], item["trust"]) for item in last.body["evidence"]]
    assert said == [("rank.exception", "user"), ("rank.exit", "agent")]
    assert [FACT in item for item in last.body["evidence"]] == [True, True], "what was said in words is read once"


def process(operator: JobOperator, context: MemoryContext, record: Record) -> None:
    context.now = record.stamp_ns
    operator.process([record], context)


def without_facts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_facts(item) for name, item in value.items() if name != FACT}
    return [without_facts(item) for item in value] if isinstance(value, list) else value


def test_a_long_message_shows_that_it_was_cut() -> None:
    context = run(raised(40.0, 2, message="x" * 400), exited(40.1, 2, 1, ExitState.EXCEPTION, exception=True))
    shown = " ".join(item["shows"] for item in only(context).body["evidence"])
    assert "x…" in shown
    assert "x" * 301 not in shown


def test_the_same_error_on_all_ranks_is_one_cause_of_the_application() -> None:
    context = run(*[raised(4.4 + 0.02 * rank, rank) for rank in (3, 0, 1, 2)], finished(6.0, 1))
    assert verdict(context) == ("immediate_crash", "rank_raised", [0])
    assert only(context).body["scope"] == "application"


def out_of_room(at: float, rank: int) -> Happening:
    return raised(at, rank, "OSError", "[Errno 122] Disk quota exceeded: '/data/checkpoints/step-20'")


def two_nodes(rank: int) -> str:
    return f"node-{rank // 2}"


def test_a_quota_that_is_full_is_no_ranks_doing_though_one_was_refused_first() -> None:
    errors = [out_of_room(4.4, 2), *[out_of_room(4.6 + 0.02 * rank, rank) for rank in (3, 0, 1)]]
    context = run(*errors, finished(6.0, 1), node_of=two_nodes)
    assert verdict(context) == ("capacity", "rank_raised", [])
    assert only(context).body["scope"] == "storage"
    assert "ranks 0,2 found no room" in only(context).body["evidence"][1]["shows"]


def test_a_disk_that_is_full_on_one_of_two_nodes_leaves_the_witness_there() -> None:
    context = run(out_of_room(4.4, 2), out_of_room(4.42, 3), finished(6.0, 1), node_of=two_nodes)
    assert verdict(context) == ("immediate_crash", "rank_raised", [2])


def test_only_aborts_and_victims_end_on_the_first_abort_after_a_hold() -> None:
    context = run(victim(4.4, 0), killed(4.45, 3, 6), victim(4.5, 1))
    assert verdict(context) == ("immediate_crash", "rank_died", [3])
    assert 4.9 <= first_seen_s(context) < 5.2


def test_leaving_with_code_0_in_mid_run_without_a_word_is_a_crash() -> None:
    context = run(exited(4.4, 2, 0, ExitState.RUNNING), victim(4.45, 0), victim(4.5, 1))
    assert verdict(context) == ("immediate_crash", "rank_died", [2])


def test_a_rank_whose_script_ends_early_had_fewer_batches() -> None:
    context = run(exited(4.4, 2, 0, ExitState.NORMAL), victim(4.45, 0), victim(4.5, 1))
    assert verdict(context) == ("communication_hang", "desync", [2])


def test_a_rank_whose_script_ends_early_while_the_others_wait_silently() -> None:
    job = SyntheticJob(steps=60, events=[exited(4.4, 2, 0, ExitState.NORMAL)], ends={2: 4.4})
    assert verdict(drive(job.records())) == ("communication_hang", "desync", [2])


def test_a_normal_end_is_nothing() -> None:
    job = SyntheticJob(steps=20, after_s=3.0)
    job.run()
    end = max(person.clock for person in job.people) / 1e9 - 100
    job.events += [exited(end + 0.1 * rank, rank, 0, ExitState.NORMAL) for rank in range(4)]
    job.events.append(finished(end + 1.0, 0))
    assert drive(job.records()).findings() == []


def test_a_stop_asked_for_is_planned_and_what_follows_is_not_a_crash() -> None:
    context = run(
        (4.4, EventName.JOB_SIGNALLED, -1, {"signal": 15, "origin": "user"}),
        killed(4.45, 1, 15),
        victim(4.46, 0),
        killed(4.5, 2, 15),
        killed(4.5, 3, 9),
        finished(5.0, 143),
    )
    assert verdict(context) == ("planned", "planned_stop", [])


def test_sigterm_to_all_ranks_at_once_is_planned_even_if_nobody_saw_the_request() -> None:
    context = run(*[killed(4.4 + 0.01 * rank, rank, 15) for rank in range(4)], finished(5.0, 1))
    assert verdict(context) == ("planned", "planned_stop", [])


def test_ranks_that_the_launcher_ended_one_after_the_other_on_a_loaded_machine_are_planned() -> None:
    started = (0.1, EventName.RANK_STARTED, 2, {"pid": 4002, "launcher_pid": 77})
    ends = [killed(4.4 + 0.5 * place, rank, 15) for place, rank in enumerate((2, 0, 1, 3))]
    for _, _, _, values in ends:
        values["sender_pid"] = 77
    assert verdict(run(started, *ends, finished(6.5, 1))) == ("planned", "planned_stop", [])


def test_sigterm_to_one_rank_is_a_death() -> None:
    context = run(killed(4.4, 2, 15), victim(4.5, 0), victim(4.5, 1), victim(4.52, 3), killed(5.2, 0, 15))
    assert verdict(context) == ("immediate_crash", "rank_died", [2])


def test_ctrl_c_is_planned() -> None:
    context = run(*[raised(4.4 + 0.01 * rank, rank, "KeyboardInterrupt", "") for rank in range(4)], finished(5.0, 130))
    assert verdict(context) == ("planned", "planned_stop", [])


def test_ctrl_c_that_ranks_of_a_crowded_machine_raise_one_after_the_other_is_planned() -> None:
    late = [raised(4.4 + 0.5 * rank, rank, "KeyboardInterrupt", "") for rank in range(3)]
    ended = [killed(5.9, 0, 2), killed(6.0, 3, 2)]
    assert verdict(run(*late, *ended, finished(6.5, 130))) == ("planned", "planned_stop", [])


def test_sigint_to_one_rank_is_a_death() -> None:
    alone = [raised(4.4, 2, "KeyboardInterrupt", ""), *(killed(4.9 + rank / 100, rank, 15) for rank in (0, 1, 3))]
    assert verdict(run(*alone, finished(6.5, 1))) == ("immediate_crash", "rank_died", [2])


def test_all_ranks_killed_at_once_is_nobodys_own_fault() -> None:
    context = run(*[killed(4.4 + 0.01 * rank, rank, 9) for rank in range(4)], finished(5.0, 1))
    assert verdict(context) == ("immediate_crash", "rank_died", [])


def test_a_restarted_job_resolves_the_crash_by_passing_its_step() -> None:
    first = SyntheticJob(steps=60, events=[killed(4.4, 2, 9), victim(4.5, 0)], ends={2: 4.4}, after_s=2.0)
    second = SyntheticJob(steps=40, attempt="a2", start_s=120.0, after_s=1.0)
    context = drive([*first.records(), *second.records()])
    states = [(finding.body["kind"], finding.cleared) for finding in context.findings()]
    assert states[0] == ("rank_died", False)
    assert states[-1] == ("rank_died", True)
    assert len(context.final()) == 1


def test_what_is_held_is_decided_when_the_job_is_finished() -> None:
    context = run(killed(4.4, 3, 6), finished(4.5, 1))
    assert verdict(context) == ("immediate_crash", "rank_died", [3])
    assert first_seen_s(context) < 4.6


def test_a_death_seen_only_after_the_commands_end_is_still_told() -> None:
    assert verdict(run(finished(4.4, 3), exited(4.5, 3, 3, ExitState.RUNNING))) == ("immediate_crash", "rank_died", [3])
    assert not run(finished(4.4, 0), exited(4.5, 3, 3, ExitState.RUNNING)).final()


def test_an_abort_before_the_launcher_stops_the_others_is_the_cause() -> None:
    started = [(0.1, EventName.RANK_STARTED, rank, {"pid": 4000 + rank, "launcher_pid": 77}) for rank in range(4)]
    stops = [killed(4.5, rank, 15) for rank in (0, 1, 3)]
    for _, _, _, values in stops:
        values["sender_pid"] = 77
    abort = killed(4.4, 2, 6)
    abort[3].update({"exit_state": int(ExitState.NORMAL), "phase": "exit"})
    assert verdict(run(*started, abort, *stops, finished(5.0, 1))) == ("immediate_crash", "rank_died", [2])


def test_an_abort_whose_victims_raised_before_it_was_seen_is_no_planned_stop() -> None:
    started = [(0.1, EventName.RANK_STARTED, rank, {"pid": 4000 + rank, "launcher_pid": 77}) for rank in range(4)]
    stops = [signalled(9.2, rank, 15, 77) for rank in (0, 1, 3)]
    events = [victim(8.99, 0), victim(8.995, 3), signalled(9.0, 2, 6, 4002), *stops]
    assert verdict(run(*started, *events, finished(10.0, 1))) == ("immediate_crash", "rank_died", [2])


def test_an_abort_after_the_launcher_was_told_to_stop_is_planned() -> None:
    started = [(0.1, EventName.RANK_STARTED, rank, {"pid": 4000 + rank, "launcher_pid": 77}) for rank in range(4)]
    stops = [signalled(9.0, rank, 15, 77) for rank in (0, 1, 3)]
    context = run(*started, *stops, signalled(9.1, 2, 6, 4002), finished(10.0, 1))
    assert verdict(context) == ("planned", "planned_stop", [])


def signalled(at: float, rank: int, signal: int, sender: int) -> Happening:
    """The end of a rank whose handler noted who sent the signal."""
    event = killed(at, rank, signal)
    return (*event[:3], {**event[3], "pid": 4000 + rank, "sender_pid": sender})


def test_a_rank_that_aborts_is_said_to_have_done_so_itself() -> None:
    context = run(signalled(9.0, 1, 6, 4001), gone={rank: 9.0 for rank in (0, 2, 3)})
    assert verdict(context) == ("immediate_crash", "rank_died", [1])
    assert "rank 1 aborted itself (SIGABRT)" in only(context).body["evidence"][0]["shows"]
    assert "sent by" not in only(context).body["evidence"][0]["shows"]


def test_sigterm_to_one_rank_is_no_planned_stop() -> None:
    """The launcher clears up after it: its own SIGTERM to the others comes a moment later."""
    launcher = (0.0, EventName.RANK_STARTED, 0, {"pid": 4000, "launcher_pid": 3999, "world_size": 4})
    started = [(0.0, launcher[1], rank, {**launcher[3], "pid": 4000 + rank}) for rank in range(4)]
    events = [signalled(9.0, 2, 15, 77), *(signalled(9.15, rank, 15, 3999) for rank in (0, 1, 3))]
    context = run(*started, *events)
    assert verdict(context) == ("immediate_crash", "rank_died", [2])
    assert "was ended by SIGTERM sent by pid 77" in only(context).body["evidence"][0]["shows"]
    assert first_seen_s(context) < 10.0
    told_all = [signalled(9.0 + rank / 100, rank, 15, 77) for rank in range(4)]
    assert verdict(run(*started, *told_all))[:2] == ("planned", "planned_stop")
    by_launcher = [signalled(9.0 + rank / 100, rank, 15, 3999) for rank in range(4)]
    assert verdict(run(*started, *by_launcher))[:2] == ("planned", "planned_stop")


def test_a_launcher_that_ends_its_ranks_before_all_have_come_has_lost_one() -> None:
    """Rank 2 failed at its first lines, before its import of torch: nothing of it was ever seen."""
    start = {"launcher_pid": 3999, "world_size": 4}
    started = [(0.0, EventName.RANK_STARTED, rank, {**start, "pid": 4000 + rank}) for rank in (0, 1, 3)]
    ends = [signalled(9.0 + rank / 100, rank, 15, 3999) for rank in (0, 1, 3)]
    context = run(*started, *ends, absent=(2,))
    assert verdict(context) == ("immediate_crash", "rank_died", [2])
    asked = (8.9, EventName.JOB_SIGNALLED, -1, {"signal": 15})
    assert verdict(run(*started, asked, *ends, absent=(2,)))[:2] == ("planned", "planned_stop")


def test_two_ranks_killed_at_once_are_both_named() -> None:
    context = run(killed(9.0, 1, 9), killed(9.02, 3, 9), victim(9.1, 0), victim(9.1, 2))
    assert verdict(context) == ("immediate_crash", "rank_died", [1, 3])
    assert [item["who"] for item in only(context).body["ruled_out"]] == ["rank 0", "rank 2"]
    late = run(killed(9.0, 1, 9), killed(12.0, 3, 9), victim(9.1, 0), victim(9.1, 2))
    assert verdict(late) == ("immediate_crash", "rank_died", [1])


def in_thread(at: float, rank: int) -> Happening:
    event = raised(at, rank, "KeyError", "shard-00017")
    return (*event[:3], {**event[3], "in_main": False})


def test_an_error_in_a_thread_is_a_cause_only_where_the_process_ends_of_it() -> None:
    ended = exited(9.1, 2, 1, ExitState.RUNNING, exception=True)
    context = run(in_thread(9.0, 2), ended, victim(9.2, 0))
    assert verdict(context) == ("immediate_crash", "rank_raised", [2])
    assert "rank 2 raised KeyError: shard-00017" in only(context).body["evidence"][0]["shows"]
    assert not run(in_thread(5.0, 2)).findings()
    ends = exited(14.0, 2, 0, ExitState.NORMAL, exception=True)
    assert not run(in_thread(5.0, 2), ends, gone={rank: 14.0 for rank in (0, 1, 3)}).findings()


def test_a_thread_that_raised_is_evidence_where_its_rank_then_stands_still() -> None:
    """The thread that filled the queue is gone, and the rank waits for the queue."""
    job = SyntheticJob(
        steps=60,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 20, Phase.DATA) else 0],
        events=[in_thread(3.9, 2), in_thread(3.0, 1)],
    )
    context = drive(job.records())
    assert verdict(context) == ("communication_hang", "rank_not_entered", [2])
    shown = [item["shows"] for item in only(context).body["evidence"]]
    assert any(words.startswith("a thread of rank 2 raised KeyError: shard-00017") for words in shown)
    assert not any("thread of rank 1" in words for words in shown)


def test_an_old_error_in_a_thread_has_no_part_in_a_death() -> None:
    context = run(in_thread(2.0, 2), killed(9.0, 1, 9), victim(9.1, 2))
    assert verdict(context) == ("immediate_crash", "rank_died", [1])
    context = run(in_thread(2.0, 2), exited(9.0, 2, 3, ExitState.RUNNING, exception=True))
    assert verdict(context) == ("immediate_crash", "rank_died", [2])


def test_nothing_is_seen_before_it_began_although_time_stands_still_in_a_replay() -> None:
    """Rings that a killed run left behind are read at the last stamp of its capture, which is older than the fault."""
    events = [killed(4.43, 2, 9), victim(4.45, 1), exited(4.6, 1, 1, ExitState.EXCEPTION, exception=True)]
    records = SyntheticJob(steps=60, events=events, ends={1: 4.6, 2: 4.43}, after_s=3.0).records()
    last_ns = records[0].stamp_ns + 3 * 10**9
    still = [replace(record, stamp_ns=min(record.stamp_ns, last_ns + index)) for index, record in enumerate(records)]
    times = only(drive(still)).body["times"]
    assert times["onset"] <= times["detected"]


@pytest.mark.parametrize(("killed_s", "kind", "guilty"), [(5.5, "rank_died", [3]), (10.0, "rank_not_entered", [1])])
def test_a_death_while_another_rank_hangs_is_one_incident(killed_s: float, kind: str, guilty: list[int]) -> None:
    """Rank 1 stands still from 4.1 s on. What is told first stays: a job that hangs is often ended by hand."""
    job = SyntheticJob(
        steps=60,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (1, 20, Phase.FORWARD) else 0],
        events=[killed(killed_s, 3, 9), victim(killed_s + 0.1, 0), victim(killed_s + 0.1, 2)],
        ends={3: killed_s},
        after_s=12.0,
    )
    context = drive(job.records())
    assert verdict(context)[1:] == (kind, guilty)
    cleared = {item["who"] for item in only(context).body["ruled_out"]}
    assert cleared >= {"rank 0", "rank 2"} | ({"rank 3"} if guilty == [1] else set())


def test_a_rank_that_was_on_its_way_out_when_the_others_failed_had_fewer_batches() -> None:
    """It closed its connections and its interpreter is still ending when the launcher clears up after the others."""

    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return [Enter(Phase.EXIT)] if rank == 1 and step >= 20 else actions

    told = [signalled(6.0 + rank / 100, rank, 15, 3999) for rank in (1, 3)]
    job = SyntheticJob(
        steps=60,
        edit=edit,
        delays=[lambda rank, step, phase: FOREVER if phase is Phase.EXIT else 0],
        events=[
            *((0.0, EventName.RANK_STARTED, rank, {"launcher_pid": 3999, "pid": 4000 + rank}) for rank in range(4)),
            victim(5.2, 0),
            victim(5.2, 2),
            *told,
        ],
        ends={rank: 6.0 for rank in range(4)},
        after_s=3.0,
    )
    context = drive(job.records())
    assert verdict(context) == ("communication_hang", "desync", [1])
    assert only(context).body["scope"] == "application"
    assert "rank 1 came to the end of its script" in only(context).body["evidence"][0]["shows"]
    assert {item["who"] for item in only(context).body["ruled_out"]} == {"rank 0", "rank 2", "rank 3"}


def test_ends_by_the_hundred_are_judged_some_times_and_told_as_if_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The victims' words come first, all within 20 ms; the work of a judgement grows with the ends before it."""
    judged: list[int] = []

    def counted(endings: Sequence[Ending], **settings: Any) -> CrashVerdict | Hold | None:
        judged.append(len(endings))
        return judge_endings(endings, **settings)

    monkeypatch.setattr(crashes, "judge_endings", counted)
    others = [rank for rank in range(96) if rank != 77]
    ends = [victim(6.0 + 0.0002 * place, rank) for place, rank in enumerate(others)]
    context = run(*ends, killed(5.999, 77, 9), ranks=96)
    assert verdict(context) == ("immediate_crash", "rank_died", [77])
    (innocent,) = only(context).body["ruled_out"]
    assert innocent["ranks"] == "0-76,78-95"
    assert max(judged) == 96
    assert len(judged) < 48
