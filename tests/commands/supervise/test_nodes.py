"""Several nodes: the judge says what to do once it knows where it stands, and a follower does that and no more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.supervise.parts import ATTEMPT, audit, incident
from whichrank.commands.supervise.follower import WORD_S, FollowerSupervisor
from whichrank.commands.supervise.limits import BREAKER_S, RestartLimits, Tried
from whichrank.commands.supervise.nodes import Nodes, Order, Word, least_nodes, read_order, write_order
from whichrank.commands.supervise.supervisor import NODES_PATIENCE_S, Supervisor, SupervisorOptions
from whichrank.commands.supervise.trail import Trail
from whichrank.commands.support.restart_trigger import Trigger
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName

OWN, OTHER, THIRD = "node-0", "node-1", "node-2"
COMMAND = ("torchrun", "--nnodes=3", "train.py")
ELASTIC = ("torchrun", "--nnodes=2:3", "train.py")


def told(name: EventName, node: str, **attributes: Any) -> Event:
    return Event(name=name, identity=Identity(job="job-1", node=node), time_ns=1, mono_ns=1, attributes=attributes)


class Judge:
    """A supervisor of three nodes with a clock of its own, and no process to end."""

    def __init__(
        self, folder: Path, command: tuple[str, ...] = COMMAND, *, supervised: tuple[str, ...], dry: bool = False
    ) -> None:
        self.said: list[tuple[str, Order]] = []
        self.lines: list[str] = []
        self.now_s = 100.0
        self.folder = folder
        nodes = Nodes(OWN, expected=3, least=least_nodes(command, 3), send=self._send)
        options = SupervisorOptions(
            limits=RestartLimits(restarts=2, per_hour=5, backoff_s=1.0), on=frozenset(Trigger), grace_s=10.0, dry=dry
        )
        self.supervisor = Supervisor(
            options,
            command,
            job="job-1",
            folder=folder,
            rings=folder / "rings",
            trail=a_trail(folder, self.lines),
            nodes=nodes,
            now=lambda: self.now_s,
        )
        for node in (OTHER, THIRD):
            self.hears(EventName.PEER_CONNECTED, node, role="follower")
            self.hears(EventName.JOB_STARTED, node, **({"supervised": 1} if node in supervised else {}))

    def _send(self, node: str, body: bytes) -> None:
        order = read_order(body)
        assert order is not None
        self.said.append((node, order))

    def hears(self, name: EventName, node: str, **attributes: Any) -> None:
        self.supervisor.heard(told(name, node, **attributes))

    def words(self) -> list[tuple[str, str, int]]:
        return [(node, order.word.value, order.number) for node, order in self.said]

    def settles(self, root: int = 1 << 22) -> None:
        for _ in range(3):
            self.now_s += 5.0
            self.supervisor.turn(root, ATTEMPT)


def a_trail(folder: Path, lines: list[str]) -> Trail:
    return Trail(folder, job="job-1", cluster="c", node=OWN, dry=False, tell=lambda value: None, say=lines.append)


def test_all_commands_have_ended_before_any_starts(tmp_path: Path) -> None:
    judge = Judge(tmp_path, supervised=(OTHER, THIRD))
    judge.supervisor.saw(incident())
    judge.settles()
    assert judge.words() == [(OTHER, "end", 1), (THIRD, "end", 1)]
    assert judge.said[0][1].incident == incident().id
    assert judge.supervisor.next(1, ATTEMPT, ranks_seen=True)
    judge.now_s += 3.0
    judge.hears(EventName.JOB_FINISHED, OTHER, exit_code=1)
    judge.supervisor.turn(0, ATTEMPT)
    assert judge.supervisor.is_waiting  # for node-2
    judge.hears(EventName.JOB_FINISHED, THIRD, exit_code=1)
    assert not judge.supervisor.is_waiting
    assert judge.supervisor.may_start(1, ATTEMPT)
    judge.supervisor.started(ATTEMPT)
    assert judge.words()[2:] == [(OTHER, "start", 1), (THIRD, "start", 1)]


def test_a_restart_long_after_the_last_one_waits_no_longer_than_the_first(tmp_path: Path) -> None:
    judge = Judge(tmp_path, supervised=(OTHER, THIRD))
    judge.supervisor.tried = [Tried(at_s=judge.now_s)]
    judge.now_s += BREAKER_S + 1.0
    assert judge.supervisor.next(1, ATTEMPT, ranks_seen=True)
    judge.supervisor.turn(0, ATTEMPT)
    for node in (OTHER, THIRD):
        judge.hears(EventName.JOB_FINISHED, node, exit_code=1)
    judge.now_s += 1.3  # the first one's pause, of a second, and a quarter more at most
    assert not judge.supervisor.is_waiting


def test_a_command_that_does_not_end_elsewhere_stops_it_all(tmp_path: Path) -> None:
    judge = Judge(tmp_path, supervised=(OTHER, THIRD))
    assert judge.supervisor.next(1, ATTEMPT, ranks_seen=True)
    judge.supervisor.turn(0, ATTEMPT)
    judge.now_s += 10.0 + NODES_PATIENCE_S + 1.0
    judge.supervisor.turn(0, ATTEMPT)
    assert not judge.supervisor.is_waiting
    assert not judge.supervisor.may_start(1, ATTEMPT)
    assert judge.words()[-2:] == [(OTHER, "stop", 1), (THIRD, "stop", 1)]
    assert audit(tmp_path)[-1]["outcome"] == "failed"
    assert "node-1, node-2 has not ended" in judge.lines[-1]


def test_where_one_node_was_started_without_restarts_nothing_is_ended(tmp_path: Path) -> None:
    judge = Judge(tmp_path, supervised=(OTHER,))
    judge.supervisor.saw(incident())
    judge.settles()
    assert judge.words() == []
    assert [line["why"] for line in audit(tmp_path)] == ["not_everywhere"]


def test_a_dry_judge_says_what_it_would_do_and_nobody_does_it(tmp_path: Path) -> None:
    judge = Judge(tmp_path, supervised=(), dry=True)
    judge.supervisor.saw(incident())
    judge.settles()
    assert judge.words() == []
    assert not judge.supervisor.has_ended_it
    assert [line["outcome"] for line in audit(tmp_path)] == ["would"]


@pytest.mark.parametrize(("command", "goes_on"), [(COMMAND, False), (ELASTIC, True)])
def test_a_bad_node_is_left_out_where_the_range_allows_it(
    tmp_path: Path, command: tuple[str, ...], *, goes_on: bool
) -> None:
    judge = Judge(tmp_path, command, supervised=(OTHER, THIRD))
    judge.supervisor.saw(incident(action="restart_without_node"))  # of node-1
    judge.settles()
    if not goes_on:
        assert judge.words() == []
        assert audit(tmp_path)[-1]["why"] == "node_stays"
        return
    for node in (OTHER, THIRD):
        judge.hears(EventName.JOB_FINISHED, node, exit_code=1)
    assert judge.supervisor.next(1, ATTEMPT, ranks_seen=True)
    judge.now_s += 30.0
    judge.supervisor.turn(0, ATTEMPT)
    assert judge.supervisor.may_start(1, ATTEMPT)
    judge.supervisor.started(ATTEMPT)
    assert judge.words()[2:] == [(OTHER, "stop", 1), (THIRD, "start", 1)]


def test_a_lost_node_is_missed_where_all_are_wanted(tmp_path: Path) -> None:
    for command, goes_on in ((COMMAND, False), (ELASTIC, True)):
        folder = tmp_path / f"goes-on-{goes_on}"
        folder.mkdir()
        judge = Judge(folder, command, supervised=(OTHER, THIRD))
        judge.hears(EventName.PEER_LOST, OTHER, role="follower", why="silent")
        judge.hears(EventName.JOB_FINISHED, THIRD, exit_code=1)
        assert judge.supervisor.next(1, ATTEMPT, ranks_seen=True)
        judge.now_s += 30.0
        judge.supervisor.turn(0, ATTEMPT)
        assert judge.supervisor.may_start(1, ATTEMPT) is goes_on


def test_a_signal_on_any_node_ends_the_restarts(tmp_path: Path) -> None:
    judge = Judge(tmp_path, supervised=(OTHER, THIRD))
    judge.hears(EventName.JOB_SIGNALLED, OTHER, signal=15, origin="scheduler")
    assert not judge.supervisor.next(143, ATTEMPT, ranks_seen=True)
    assert judge.words() == [(OTHER, "stop", 1), (THIRD, "stop", 1)]


class Follower:
    def __init__(self, folder: Path) -> None:
        self.judged, self.now_s = True, 100.0
        self.lines: list[str] = []
        self.command = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        self.supervisor = FollowerSupervisor(
            ("torchrun", "train.py"),
            grace_s=5.0,
            rings=folder / "rings",
            trail=a_trail(folder, self.lines),
            is_judged=lambda: self.judged,
            now=lambda: self.now_s,
        )

    def hears(self, word: Word, number: int = 1) -> None:
        self.supervisor.obey(write_order(Order(word=word, number=number, text="because")))

    def turns(self) -> None:
        for _ in range(20):  # it has a moment more than the grace, of the supervisor's clock
            self.now_s += 0.3
            self.supervisor.turn(self.command.pid, ATTEMPT)
            try:
                self.command.wait(0.05)
            except subprocess.TimeoutExpired:
                continue


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    made = Follower(tmp_path)
    yield made
    if made.command.poll() is None:
        made.command.kill()
        made.command.wait(10)


def test_a_follower_ends_its_command_and_starts_it_when_it_is_told(follower: Follower, tmp_path: Path) -> None:
    supervisor = follower.supervisor
    supervisor.turn(follower.command.pid, ATTEMPT)
    follower.hears(Word.START)  # of a command that runs: nothing to start
    assert follower.command.poll() is None
    follower.hears(Word.END)
    follower.turns()
    assert follower.command.poll() is not None
    assert supervisor.has_ended_it
    assert supervisor.next(143, ATTEMPT, ranks_seen=True)
    assert supervisor.is_waiting
    follower.hears(Word.START)
    assert not supervisor.is_waiting
    assert supervisor.may_start(143, ATTEMPT)
    supervisor.started(ATTEMPT)
    assert [line["outcome"] for line in audit(tmp_path)] == ["begun", "done"]
    follower.hears(Word.END)  # once more, late
    assert not supervisor.has_ended_it


def test_a_follower_waits_no_longer_than_there_is_a_judge(follower: Follower) -> None:
    supervisor = follower.supervisor
    assert supervisor.next(1, ATTEMPT, ranks_seen=True)
    assert supervisor.is_waiting
    follower.judged = False
    assert not supervisor.is_waiting
    assert not supervisor.may_start(1, ATTEMPT)
    follower.judged = True
    follower.now_s += WORD_S + 1.0
    assert not supervisor.is_waiting
    assert not supervisor.next(0, ATTEMPT, ranks_seen=True)  # a good end is an end
    follower.hears(Word.STOP)
    assert not supervisor.next(1, ATTEMPT, ranks_seen=True)


def test_after_a_signal_a_follower_obeys_nobody(follower: Follower) -> None:
    follower.supervisor.signalled(15)
    follower.hears(Word.END)
    follower.supervisor.turn(follower.command.pid, ATTEMPT)
    assert follower.command.poll() is None
    assert not follower.supervisor.next(143, ATTEMPT, ranks_seen=True)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_what_is_no_order_is_none(body: bytes) -> None:
    read_order(body)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"word": "burn", "number": 1}', b'{"word": "end", "number": "x"}'])
def test_what_only_looks_like_an_order_is_none(body: bytes) -> None:
    assert read_order(body) is None


def test_an_order_is_read_as_it_was_written() -> None:
    order = Order(word=Word.START, number=3, incident="ab", text="because")
    assert read_order(write_order(order)) == order


def test_with_how_many_nodes_a_command_goes_on() -> None:
    assert least_nodes(ELASTIC, 3) == 2
    assert least_nodes(("torchrun", "--nnodes", "2:4", "t.py"), 4) == 2
    assert least_nodes(COMMAND, 3) == 3
    assert least_nodes(("srun", "t.py"), 5) == 5
