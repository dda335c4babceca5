"""The whole agent against real processes and real rings: what is told, in which order, and that nothing breaks it."""

from __future__ import annotations

import gzip
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import Watched
from whichrank.agents.job_agent import Agent
from whichrank.agents.processes.processes import read_stat
from whichrank.processors.job.hang.stopped_ranks import WENT_ON_NS
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.records import Block, Event, Identity
from whichrank.telemetry.vocabulary import EventName, Phase, ProcessState

SCRIPT = Path(__file__).with_name("rank_process.py")
Start = Callable[..., Any]
Watch = Callable[..., Any]


def _rows(watched: Any, name: EventName) -> list[Any]:
    return [row for block in watched.blocks(name) for row in block.rows]


def _request(rank: int, request_id: str = "r1") -> Event:
    return Event(
        name=EventName.EVIDENCE_REQUEST,
        identity=Identity(job="job"),
        time_ns=0,
        attributes={"id": request_id, "action": "stack", "rank": rank, "node": "node-a"},
    )


def test_everything_a_rank_did_arrives_in_order(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say(f"phase {int(Phase.FORWARD)}")
        rank.say("collectives 50")
        rank.say("step 2.5")
    for rank in ranks:
        rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
    collectives = _rows(watched, EventName.BLOCK_COLLECTIVES)
    done = [row for row in collectives if row["done_ns"]]
    assert sorted((int(row["rank"]), int(row["seq"])) for row in done) == [(r, s) for r in (0, 1) for s in range(1, 51)]
    steps = _rows(watched, EventName.BLOCK_STEPS)
    assert [(int(s["rank"]), int(s["step"]), int(s["collectives"]), float(s["loss"])) for s in steps] == [
        (0, 0, 50, 2.5),
        (1, 0, 50, 2.5),
    ]
    for step in steps:
        assert int(step["phase_ns"].sum()) == int(step["end_ns"] - step["begin_ns"])
    assert sum(int(row["count"]) for row in _rows(watched, EventName.BLOCK_STEP_GROUPS)) == 100
    # Order: started, group, collectives, steps, exits.
    names = watched.names()
    order = [
        names.index(name.value)
        for name in (
            EventName.RANK_STARTED,
            EventName.GROUP_DEFINED,
            EventName.BLOCK_COLLECTIVES,
            EventName.BLOCK_STEPS,
            EventName.RANK_EXIT,
        )
    ]
    assert order == sorted(order)
    exits = watched.events(EventName.RANK_EXIT)
    assert {event.attributes["exit_code"] for event in exits} == {0}
    assert {event.attributes["exit_state"] for event in exits} == {1}
    groups = watched.blocks(EventName.BLOCK_COLLECTIVES)[0].groups
    assert [(group.name, group.ranks, group.is_default) for group in groups] == [("default_pg", "0-1", True)]
    assert watched.agent.health.events_lost == watched.agent.health.events_torn == 0
    assert not watched.agent.health.drops


def test_which_checkpoint_was_written_and_read_is_told_by_the_first_rank_of_a_node(
    start_rank: Start, watch: Watch
) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say("step 2.5")
        rank.say(f"checkpoint 7fffffffffffff03 {L.CHECKPOINT_WRITTEN}")
        rank.say(f"checkpoint 2a {L.CHECKPOINT_READ}")
        rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
    told = watched.events(EventName.RANK_CHECKPOINT)
    assert {event.identity.rank for event in told} == {0}
    assert [event.attributes for event in told] == [
        {"checkpoint": "7fffffffffffff03", "read": False, "step": 1},
        {"checkpoint": "000000000000002a", "read": True, "step": 1},
    ]


def test_saves_of_a_nodes_ranks_are_told_together_and_each_state_once(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say("step 2.5")
        for _ in range(2):  # two files of one step, in turn
            rank.say("save 1 1 42 1 2048")
            rank.say("save 3 1 0 1 2048")
        rank.say("save 1 3 43 1 1024")
    ranks[1].say("save-error 3 OSError: no room")
    ranks[1].say("save 4 3 0 1 1024")
    for rank in ranks:
        rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
    told = [event.attributes for event in watched.events(EventName.CHECKPOINT_STATE)]
    by_state = [(each["state"], each["ranks"], each["bytes"], each.get("checkpoints")) for each in told]
    both = [each for each in by_state if each[1] == "0-1"]
    if len(by_state) == 6:  # all in one flush, as nearly always
        assert both == [
            ("begun", "0-1", 4096, ("000000000000002a",)),
            ("durable", "0-1", 4096, None),
            ("begun", "0-1", 4096, ("000000000000002a",)),
            ("durable", "0-1", 4096, None),
            ("begun", "0-1", 2048, ("000000000000002b",)),
        ]
    (failed,) = [each for each in told if each["state"] == "failed"]
    assert (failed["ranks"], failed["error"], failed["step"]) == ("1", "OSError: no room", 1)
    assert (failed["tier"], failed["way"]) == ("network", "dcp_async_save")
    assert all(1.9 < each["seconds"] < 60 for each in told if each["state"] == "durable")


def test_an_agent_that_is_told_to_end_says_so_last_and_of_ranks_that_live(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: watched.blocks(EventName.BLOCK_PROGRESS))
    ranks[0].say("collectives 3")
    watched.agent.close()
    last = watched.payloads[-1]
    assert isinstance(last, Event)
    (started, _) = watched.events(EventName.RANK_STARTED)
    assert (last.name, last.identity) == (EventName.AGENT_STOPPED, replace(started.identity, rank=-1))
    assert len(watched.events(EventName.AGENT_STOPPED)) == 1
    told = [int(row["rank"]) for row in _rows(watched, EventName.BLOCK_COLLECTIVES)]
    assert told.count(0) == 3, "what they did until then is told before"


def test_an_agent_whose_ranks_have_ended_leaves_nobody(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("exit 0 1", answers=False)
    watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
    watched.agent.close()
    assert watched.events(EventName.AGENT_STOPPED) == []


def test_death_is_told_at_once_after_everybodys_last_events(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: watched.blocks(EventName.BLOCK_PROGRESS))
    before = len(watched.payloads)
    ranks[0].say("collectives 3")
    ranks[0].say("enter")
    ranks[1].say("collectives 3")
    ranks[1].kill(signal.SIGKILL)
    took_s = watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
    assert took_s < 1.0
    (event,) = watched.events(EventName.RANK_EXIT)
    assert event.identity.rank == 1
    assert event.attributes["signal"] == signal.SIGKILL
    assert "exit_code" not in event.attributes
    assert event.attributes["exception"] is False
    at = watched.payloads.index(event)
    seen = [
        (int(row["rank"]), int(row["seq"]))
        for payload in watched.payloads[before:at]
        if isinstance(payload, Block) and payload.name is EventName.BLOCK_COLLECTIVES
        for row in payload.rows
    ]
    assert sorted(set(seen)) == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)]


def test_exit_code_is_known_even_if_the_parent_reaps_first(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("exit 3 1", answers=False)
    rank.process.wait()  # reaped: only the pidfd can still tell (Linux 6.15)
    watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
    (event,) = watched.events(EventName.RANK_EXIT)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert event.attributes.get("exit_code") == (3 if release >= (6, 15) else None)


def test_exception_is_told_while_the_process_lives(
    start_rank: Start, watch: Watch, tmp_path: Path, ring_directory: Path
) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    ranks[1].say("collectives 2")
    ranks[1].say("raise ValueError| bad shape")
    took_s = watched.run_until(lambda: watched.events(EventName.RANK_EXCEPTION))
    assert took_s < 1.0
    ranks[0].say("raise RuntimeError| [gloo/transport/tcp/pair.cc] Connection closed by peer [::1]:80")
    watched.run_until(lambda: watched.events(EventName.RANK_EXCEPTION, 0))
    (event,) = watched.events(EventName.RANK_EXCEPTION, 1)
    assert event.attributes["type"] == "ValueError"
    assert event.attributes["message"] == "bad shape"
    assert event.attributes["communication"] is False
    assert (event.attributes["file"], event.attributes["line"]) == ("/home/me/train.py", 88)
    assert event.attributes["stack"].endswith("module.py\t7\tforward\n")
    (victim,) = watched.events(EventName.RANK_EXCEPTION, 0)
    assert victim.attributes["communication"] is True
    (kept,) = (tmp_path / "evidence").iterdir()
    assert kept.name.split("-", 1)[1] == f"rank-00001-{ranks[1].pid}-raised.ring.gz"
    (ring,) = [path for path in ring_directory.iterdir() if path.name.startswith("rank-00001")]
    copy = gzip.decompress(kept.read_bytes())
    assert len(copy) == ring.stat().st_size
    assert copy[: L.H_EVENT_HEAD] == ring.read_bytes()[: L.H_EVENT_HEAD]
    assert kept.stat().st_size < len(copy) / 4  # a healthy hour in which a job is suspended keeps a few of them


def test_an_exception_of_a_thread_is_followed_by_the_main_threads(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("thread-raise OSError| the logger's pipe is gone")
    watched.run_until(lambda: watched.events(EventName.RANK_EXCEPTION))
    rank.say("raise ValueError| bad shape")
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXCEPTION)) > 1)
    watched.run_for(0.6)
    told = [(e.attributes["type"], e.attributes["in_main"]) for e in watched.events(EventName.RANK_EXCEPTION)]
    assert told == [("OSError", False), ("ValueError", True)]


def test_a_rank_that_its_launcher_ends_leaves_where_it_stood(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    if rank.say("fatal") == "0":
        pytest.skip("the C module _fatal was not built")
    rank.say("stand")
    rank.kill(signal.SIGTERM)
    watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
    (stack,) = watched.events(EventName.RANK_STACK)
    assert (stack.attributes["method"], stack.attributes["why"]) == ("signal", "ended")
    marked = [n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "MARK: stands still here" in line]
    assert stack.attributes["function"] == "stand_still"
    assert stack.attributes["line"] in (marked[0], marked[0] - 1)
    names = [name for name in watched.names() if name in (EventName.RANK_STACK.value, EventName.RANK_EXIT.value)]
    assert names == [EventName.RANK_STACK.value, EventName.RANK_EXIT.value]
    (ended,) = watched.events(EventName.RANK_EXIT)
    assert ended.mono_ns <= stack.mono_ns  # when the signal came, not when the process was found gone


def test_stop_and_continue(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("stop")
    took_s = watched.run_until(lambda: watched.events(EventName.RANK_STOPPED))
    assert took_s < 1.0
    states = {int(row["process_state"]) for row in watched.blocks(EventName.BLOCK_PROGRESS)[-1].rows}
    assert states == {ProcessState.STOPPED}
    rank.kill(signal.SIGCONT)
    watched.run_until(lambda: watched.events(EventName.RANK_CONTINUED))
    assert not watched.events(EventName.RANK_STALE)


def test_after_a_pause_of_the_machine_every_rank_goes_on_from_here(start_rank: Start, watch: Watch) -> None:
    start_rank(0)
    watched = watch()
    watched.run_until(lambda: watched.blocks(EventName.BLOCK_PROGRESS))
    assert not watched.events(EventName.RANK_CONTINUED)
    watched.agent._last_poll_ns -= 5 * 10**9  # noqa: SLF001  # nobody looked for five seconds
    rows = len(watched.names())
    watched.run_until(lambda: watched.events(EventName.RANK_CONTINUED))
    (event,) = watched.events(EventName.RANK_CONTINUED)
    assert event.identity.rank == 0
    later = watched.names()[rows:]
    assert EventName.BLOCK_PROGRESS.value not in later[: later.index(EventName.RANK_CONTINUED.value)]


def test_a_silent_heartbeat_of_a_living_process_is_told_once(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch(stale_heartbeat_s=0.3)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.run_for(0.3)
    assert not watched.events(EventName.RANK_STALE)
    rank.say("silence")
    watched.run_until(lambda: watched.events(EventName.RANK_STALE))
    watched.run_for(0.3)
    (event,) = watched.events(EventName.RANK_STALE)
    assert event.attributes["heartbeat_age_ns"] > 300_000_000


def test_a_hang_is_shipped_and_its_stacks_are_taken(start_rank: Start, watch: Watch, tmp_path: Path) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch(stack_operation_s=0.6, slow_operation_s=0.4, no_progress_s=0.4)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for rank in ranks:
        rank.say("collectives 3")
    ranks[1].say("stand")
    ranks[0].say("enter")
    watched.run_until(lambda: len(watched.events(EventName.RANK_STACK)) == 2)
    (guilty,) = watched.events(EventName.RANK_STACK, 1)
    assert guilty.attributes["why"] == "not entered"
    assert guilty.attributes["method"] == "py-spy"
    assert guilty.attributes["function"] == "stand_still"
    line = Path(guilty.attributes["file"]).read_text().splitlines()[guilty.attributes["line"] - 1]
    assert "MARK: stands still here" in line
    (waiter,) = watched.events(EventName.RANK_STACK, 0)
    assert waiter.attributes["why"] == "waits"
    group_rows = {int(row["rank"]): row for row in watched.blocks(EventName.BLOCK_GROUP_PROGRESS)[-1].rows}
    assert (int(group_rows[0]["enqueued"]), int(group_rows[0]["completed"]), int(group_rows[0]["open"])) == (4, 3, 1)
    assert (int(group_rows[1]["enqueued"]), int(group_rows[1]["open"])) == (3, 0)
    assert int(group_rows[0]["open_age_ns"]) > 400_000_000
    kept = {path.name.split("-", 4)[-1] for path in (tmp_path / "evidence").iterdir()}
    assert kept == {"not_entered.ring.gz", "not_entered.stack.txt", "waits.stack.txt"}
    watched.run_for(0.5)
    assert len(watched.events(EventName.RANK_STACK)) == 2  # once per standstill


def test_requests_touch_only_what_stands_still_and_only_once(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch(no_progress_s=0.3)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("collectives 1")
    watched.agent.request(_request(0))
    watched.agent.request(_request(0))
    looks = watched.agent.health.polls
    while watched.agent.health.polls < looks + 5:  # for longer than a rank may stand; it moves before every look
        rank.say("collectives 1")
        watched.agent.poll()
        assert not watched.events(EventName.RANK_STACK)
    rank.say("stand")
    watched.run_until(lambda: watched.events(EventName.RANK_STACK))
    watched.run_for(0.3)
    (event,) = watched.events(EventName.RANK_STACK)
    assert event.attributes["request_id"] == "r1"
    assert event.attributes["function"] == "stand_still"
    watched.agent.request(_request(7, "r2"))
    watched.run_until(lambda: watched.agent.health.drops["requests_for_nobody"] == 1)


def test_stack_of_a_stopped_rank(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch(no_progress_s=0.3)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    rank.say("stop")
    watched.run_until(lambda: watched.events(EventName.RANK_STOPPED))
    watched.agent.request(_request(0))
    watched.run_until(lambda: watched.events(EventName.RANK_STACK))
    (event,) = watched.events(EventName.RANK_STACK)
    assert event.attributes["stopped"] is True
    assert event.attributes["function"] == "main"


def test_a_bus_that_refuses_is_counted_and_recovers(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.refuse = True
    rank.say("collectives 10")
    watched.run_until(lambda: watched.agent.health.drops["publish_refused"])
    watched.refuse = False
    rank.say("collectives 10")
    watched.run_until(lambda: _rows(watched, EventName.BLOCK_COLLECTIVES))
    assert watched.agent.health.drops["poll_failed"] == 0


def test_a_restarted_rank_is_another_attempt(start_rank: Start, watch: Watch) -> None:
    first = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    first.kill()
    watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
    second = start_rank(0, 1, restart_count=1)
    second.say("collectives 2")
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    watched.run_until(lambda: _rows(watched, EventName.BLOCK_COLLECTIVES))
    one, two = watched.events(EventName.RANK_STARTED)
    assert one.identity.attempt != two.identity.attempt
    assert watched.blocks(EventName.BLOCK_COLLECTIVES)[-1].identity.attempt == two.identity.attempt
    groups = watched.events(EventName.GROUP_DEFINED)
    assert [event.identity.attempt for event in groups] == [one.identity.attempt, two.identity.attempt]
    assert len({event.attributes["uid"] for event in groups}) == 1


def test_where_a_launch_has_met_is_told_once(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0, 2), start_rank(1, 2)]
    watched = watch()
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
    for rank in ranks:
        rank.say("token abc")
    watched.run_until(lambda: watched.events(EventName.LAUNCH_MET))
    watched.run_for(0.6)
    (event,) = watched.events(EventName.LAUNCH_MET)
    assert event.attributes["token"] == "abc"
    assert {event.identity.attempt} == {started.identity.attempt for started in watched.events(EventName.RANK_STARTED)}


def test_the_end_of_a_launcher_is_told_once_its_ranks_have_ended(start_rank: Start, watch: Watch) -> None:
    with subprocess.Popen(["sleep", "600"]) as launcher:
        stat = read_stat(launcher.pid)
        assert stat is not None
        claims = {"launcher_pid": launcher.pid, "launcher_start_ticks": stat.start_ticks}
        ranks = [start_rank(number, 2, identity=claims) for number in range(2)]
        watched = watch()
        watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
        ranks[0].kill()
        ranks[1].kill()
        watched.run_until(lambda: len(watched.events(EventName.RANK_EXIT)) == 2)
        watched.run_for(0.8)
        assert not watched.events(EventName.LAUNCH_ENDED), "it may start them again"
        launcher.kill()
    watched.run_until(lambda: watched.events(EventName.LAUNCH_ENDED), 2.0)
    watched.run_for(0.8)
    (event,) = watched.events(EventName.LAUNCH_ENDED)
    assert event.identity == replace(watched.events(EventName.RANK_STARTED)[0].identity, rank=-1)


def test_a_launch_that_lived_twice_is_read_life_by_life(start_rank: Start, ring_directory: Path) -> None:
    for _ in range(2):
        for rank in [start_rank(number, 2) for number in range(2)]:
            rank.say("collectives 3")
            rank.end()
    left = Watched(ring_directory)
    left.agent.read_left_behind()
    left.agent.close()
    order = [event.name for event in left.payloads if isinstance(event, Event)]
    starts_and_ends = [name for name in order if name in (EventName.RANK_STARTED, EventName.RANK_EXIT)]
    assert starts_and_ends == [*[EventName.RANK_STARTED] * 2, *[EventName.RANK_EXIT] * 2] * 2


def test_rings_left_behind_are_read_launch_by_launch(start_rank: Start, ring_directory: Path) -> None:
    for restart in range(2):
        ranks = [start_rank(number, 2, restart_count=restart) for number in range(2)]
        for rank in ranks:
            rank.say("collectives 3")
            rank.end()
    left = Watched(ring_directory)
    left.agent.read_left_behind()
    left.agent.close()
    order = [payload.identity.attempt for payload in left.payloads if payload.identity.attempt]
    first, second = dict.fromkeys(order)
    assert first not in order[order.index(second) :]
    exits = [(event.identity.attempt, event.identity.rank) for event in left.events(EventName.RANK_EXIT)]
    assert sorted(exits) == sorted((launch, rank) for launch in (first, second) for rank in range(2))


def test_damaged_rings_give_one_line_each_and_the_good_one_is_read(
    start_rank: Start, watch: Watch, ring_directory: Path
) -> None:
    rank = start_rank(0, 1)
    good = next(ring_directory.glob("*.ring")).read_bytes()
    (ring_directory / "rank-00001.1.1.ring").write_bytes(b"")
    (ring_directory / "rank-00002.1.1.ring").write_bytes(b"X" * 10_000)
    (ring_directory / "rank-00003.1.1.ring").write_bytes(good[:8] + struct.pack("<Q", 99) + good[16:])
    os.mkfifo(ring_directory / "rank-00004.1.1.ring")
    (ring_directory / "rank-00005.1.1.ring").symlink_to("/etc/passwd")
    (ring_directory / "rank-00006.1.1.ring").mkdir()
    watched = watch()
    rank.say("collectives 5")
    watched.run_until(lambda: _rows(watched, EventName.BLOCK_COLLECTIVES))
    watched.run_for(1.2)  # over a rescan
    problems = list(watched.agent.health.problems)
    assert watched.agent.health.rings_refused == 6
    assert len(problems) == 6
    for number in range(1, 7):
        (line,) = [line for line in problems if f"rank-0000{number}.1.1.ring" in line]
        assert "\n" not in line
    assert sum(watched.agent.health.problems.values()) == 6


def test_a_ring_truncated_in_mid_run_leaves_the_agent_and_the_other_ranks_alone(
    start_rank: Start, watch: Watch, ring_directory: Path
) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    ranks[1].kill(signal.SIGSTOP)  # its own writes would end in SIGBUS; that is beyond help
    path = next(ring_directory.glob("rank-00001.*.ring"))
    for size in (300_000, 5000, 100, 0):
        os.truncate(path, size)
        watched.run_for(0.15)
    ranks[0].say("collectives 7")
    watched.run_until(lambda: len(_rows(watched, EventName.BLOCK_COLLECTIVES)) >= 7)
    assert watched.agent.health.drops["poll_failed"] == 0


def test_the_ring_directory_may_come_late_and_go_early(tmp_path: Path) -> None:
    got: list[bytes] = []
    agent = Agent(
        ring_directory=tmp_path / "later",
        publish=lambda _topic, _key, value: got.append(value),
        identity=Identity(job="job"),
    )
    agent.poll()
    agent.close()
    agent.close()
    agent.poll()
    assert agent.health.drops["poll_failed"] == 0


def test_rings_left_behind_are_read_with_ages_of_their_own_time(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    ranks[0].say("collectives 4")
    ranks[0].say("enter")
    ranks[1].say("collectives 4")
    ranks[1].say("raise KeyError| 'x'")
    for rank in ranks:
        rank.kill()
        rank.process.wait()
    live = watch()
    live.run_for(0.2)
    assert not live.payloads  # rings of the past are no news for a live agent
    assert live.agent.health.drops["rings_of_the_past"] == 2
    watched = watch()
    watched.agent.read_left_behind()
    watched.agent.close()
    done = [row for row in _rows(watched, EventName.BLOCK_COLLECTIVES) if row["done_ns"]]
    assert len(done) == 8
    assert [event.attributes["left_behind"] for event in watched.events(EventName.RANK_EXIT)] == [True, True]
    assert all("exit_code" not in event.attributes for event in watched.events(EventName.RANK_EXIT))
    (raised,) = watched.events(EventName.RANK_EXCEPTION)
    assert raised.identity.rank == 1
    (progress,) = watched.blocks(EventName.BLOCK_PROGRESS)
    assert {int(row["process_state"]) for row in progress.rows} == {ProcessState.DEAD}
    assert all(0 <= int(row["heartbeat_age_ns"]) < 1_000_000_000 for row in progress.rows)
    (groups,) = watched.blocks(EventName.BLOCK_GROUP_PROGRESS)
    waiting = {int(row["rank"]): int(row["open"]) for row in groups.rows}
    assert waiting == {0: 1, 1: 0}
    names = watched.names()
    assert names.index(EventName.BLOCK_PROGRESS.value) < names.index(EventName.RANK_EXCEPTION.value)
    assert names.index(EventName.RANK_EXCEPTION.value) < names.index(EventName.RANK_EXIT.value)


def test_a_signal_is_the_last_sign_of_life_of_a_rank_whose_heart_stood_still(start_rank: Start, watch: Watch) -> None:
    """As while C holds the GIL: it was there until it was ended, and not only until its last beat."""
    rank = start_rank(0, 1)
    if rank.say("fatal") == "0":
        pytest.skip("the C module _fatal was not built")
    rank.say("silence")
    time.sleep(1.0)
    ended_ns = time.time_ns()
    rank.kill(signal.SIGTERM)
    rank.process.wait()
    watched = watch()
    watched.agent.read_left_behind()
    watched.agent.close()
    (event,) = watched.events(EventName.RANK_EXIT)
    assert event.attributes["signal"] == signal.SIGTERM
    assert abs(event.time_ns - ended_ns) < 500_000_000


def test_left_behind_attempts_and_groups_are_those_of_the_live_run(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    rank.say("collectives 1")
    live = watch()
    live.run_until(lambda: _rows(live, EventName.BLOCK_COLLECTIVES))
    rank.kill()
    rank.process.wait()
    later = watch()
    later.agent.read_left_behind()
    assert later.blocks(EventName.BLOCK_COLLECTIVES)[0].groups == live.blocks(EventName.BLOCK_COLLECTIVES)[0].groups
    one, two = (each.blocks(EventName.BLOCK_COLLECTIVES)[0] for each in (live, later))
    assert one.identity == two.identity
    assert _key(one) == _key(two)


def _key(block: Block) -> list[tuple[int, ...]]:
    return [(int(row["rank"]), int(row["seq"]), int(row["enqueued_ns"]), int(row["done_ns"])) for row in block.rows]


def test_lapped_rings_count_what_was_lost(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1, slots=64)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    read = watched.agent.health.events_read
    rank.say("collectives 500")
    watched.run_until(lambda: watched.agent.health.events_lost)
    health = watched.agent.health
    assert health.events_read - read + health.events_lost == 1000
    assert L.DEFAULT_EVENT_SLOTS > 64


def test_a_living_hang_left_behind_is_aged_by_now_and_not_touched(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    for rank in ranks:
        rank.say("collectives 4")
    ranks[0].say("enter")
    ranks[1].say("stand")
    watched = watch(stack_operation_s=0.01, no_progress_s=0.01, slow_operation_s=0.01)
    watched.run_for(0.01)
    again = watch(stack_operation_s=0.01, no_progress_s=0.01, slow_operation_s=0.01)
    again.agent.read_left_behind()
    again.agent.close()
    (progress,) = again.blocks(EventName.BLOCK_PROGRESS)
    assert {int(row["process_state"]) for row in progress.rows} <= {ProcessState.SLEEPING, ProcessState.RUNNING}
    groups = {int(row["rank"]): row for row in again.blocks(EventName.BLOCK_GROUP_PROGRESS)[0].rows}
    assert int(groups[0]["open"]) == 1
    assert int(groups[0]["open_age_ns"]) > 0
    assert not again.events(EventName.RANK_STACK)
    assert not again.events(EventName.RANK_EXIT)
    assert again.agent.health.stacks_taken == again.agent.health.stacks_failed == 0


def test_a_stop_is_in_the_capture_from_the_first_look_on(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch(confirm_s=30.0, progress_period_s=60.0)  # no second look, no periodic row
    watched.run_until(lambda: watched.blocks(EventName.BLOCK_PROGRESS))
    rank.say("stop")
    watched.run_until(
        lambda: int(watched.blocks(EventName.BLOCK_PROGRESS)[-1].rows["process_state"][0]) == ProcessState.STOPPED, 3.0
    )
    assert not watched.events(EventName.RANK_STOPPED)


def test_after_a_stop_it_is_told_at_once_that_its_peer_went_on(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    watched = watch(progress_period_s=60.0)  # nothing periodic
    watched.run_until(lambda: watched.blocks(EventName.BLOCK_PROGRESS))
    ranks[1].say("stop")
    watched.run_until(lambda: watched.events(EventName.RANK_STOPPED))
    (stopped,) = watched.events(EventName.RANK_STOPPED)

    def last_beat_ns() -> int:
        (row,) = (row for row in watched.blocks(EventName.BLOCK_PROGRESS)[-1].rows if row["rank"] == 0)
        return int(row["read_ns"]) - int(row["heartbeat_age_ns"])

    watched.run_until(lambda: last_beat_ns() > stopped.mono_ns + WENT_ON_NS, 5.0)


def test_a_rank_left_stopped_is_told_before_the_rows_of_those_that_wait_for_it(start_rank: Start, watch: Watch) -> None:
    ranks = [start_rank(0), start_rank(1)]
    ranks[1].say("stop")
    stopped_ns = time.monotonic_ns()
    live = watch()
    live.run_for(0.8)
    ranks[0].kill()  # as a launcher does that clears up: what is stopped does not hear it
    ranks[0].process.wait()
    later = watch()
    later.agent.read_left_behind()
    (stopped,) = later.events(EventName.RANK_STOPPED)
    assert (stopped.identity.rank, stopped.attributes["left_behind"]) == (1, True)
    assert abs(stopped.mono_ns - stopped_ns) < 300_000_000
    names = later.names()
    order = [EventName.RANK_STOPPED, EventName.BLOCK_PROGRESS, EventName.RANK_EXIT]
    assert sorted(names.index(name.value) for name in order) == [names.index(name.value) for name in order]


def test_ranks_left_stopped_together_were_suspended_and_are_not_told(start_rank: Start, watch: Watch) -> None:
    for rank in [start_rank(0), start_rank(1)]:
        rank.say("stop")
        while (stat := read_stat(rank.pid)) is None or stat.state is not ProcessState.STOPPED:
            time.sleep(0.005)
    later = watch()
    later.agent.read_left_behind()
    (progress,) = later.blocks(EventName.BLOCK_PROGRESS)
    assert {int(row["process_state"]) for row in progress.rows} == {ProcessState.STOPPED}
    assert not later.events(EventName.RANK_STOPPED)


def test_a_poll_that_fails_inside_is_counted_and_does_not_spin(start_rank: Start, watch: Watch) -> None:
    rank = start_rank(0, 1)
    watched = watch()
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.fail = ZeroDivisionError("a bug")
    rank.say("collectives 1")
    watched.run_until(lambda: watched.agent.health.drops["poll_failed"])
    rank.kill()
    polls = watched.agent.health.polls
    watched.run_for(0.5)
    assert watched.agent.health.polls - polls < 30
    watched.fail = None
    assert any("a bug" in problem for problem in watched.agent.health.problems)
