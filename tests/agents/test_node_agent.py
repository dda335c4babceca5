"""All jobs of a node: found, told apart, watched for as long as somebody lives; real ranks with real rings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess
from whichrank.agents.base.priority import Priority
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.node_agent import NodeAgent
from whichrank.agents.rings.job_folders import FolderFinder, JobFolder, identify_job
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName

OWN = Identity(cluster="mine", node="node-1")


class Node:
    """A root with folders of rings, ranks in them, and the agent that watches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ranks: list[RankProcess] = []
        self.agents: list[NodeAgent] = []
        self.said: list[str] = []
        self.messages: list[tuple[str, str, bytes, Priority]] = []

    def rank(self, folder: str, rank: int = 0, world: int = 1, **identity: str) -> RankProcess:
        path = self.root / folder
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ranks.append(RankProcess(path, rank, world, identity=identity))
        return self.ranks[-1]

    def watch(self, pattern: str = "", **options: Any) -> NodeAgent:
        agent = NodeAgent(
            rings=self.root / pattern if pattern else self.root,
            own=OWN,
            publish_ranked=lambda *message: self.messages.append(message),
            report=self.said.append,
            settings=AgentSettings(take_stacks=False),
            **options,
        )
        self.agents.append(agent)
        return agent

    def events(self, name: EventName) -> list[Event]:
        return [
            payload
            for topic, _, value, _ in list(self.messages)
            if topic == TOPIC_BLOCKS
            for payload in decode_logs(topic, value)
            if isinstance(payload, Event) and payload.name is name
        ]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "rings")
    yield node
    for agent in node.agents:
        agent.close(10.0)
    for rank in node.ranks:
        rank.end()


def until(agent: NodeAgent, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        agent.turn()
        time.sleep(0.05)


def test_each_job_of_the_node_is_watched_under_its_own_name(node: Node) -> None:
    node.rank("by-id", WHICHRANK_JOB_ID="chosen", WHICHRANK_RUN_ID="chain", WHICHRANK_CLUSTER_ID="claimed")
    node.rank("user/slurm", SLURM_JOB_ID="4711")
    node.rank("user/array", SLURM_JOB_ID="4700", SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    node.rank("user/plain", job="host-29500")
    node.rank("user/nameless")
    agent = node.watch()
    until(agent, lambda: len(node.events(EventName.RANK_STARTED)) == 5)
    seen = {event.identity.job: event.identity for event in node.events(EventName.RANK_STARTED)}
    assert set(seen) == {"chosen", "4711", "4700_3", "host-29500", "nameless"} == set(agent.jobs)
    assert seen["chosen"].run == "chain"
    assert {(identity.cluster, identity.node) for identity in seen.values()} == {("mine", "node-1")}
    assert {key for _, key, _, _ in node.messages} == set(seen)


def test_a_job_that_nobody_named_is_called_after_its_script(node: Node) -> None:
    """Of `python -m package` the rank knows a file that is called the same in every package."""
    node.rank("user/file", script="/jobs/train/gpt.py")
    node.rank("user/module", script="/jobs/pretraining/__main__.py")
    agent = node.watch()
    until(agent, lambda: len(node.events(EventName.RANK_STARTED)) == 2)
    called = {event.identity.job: event.attributes["job_name"] for event in node.events(EventName.RANK_STARTED)}
    assert called == {"file": "gpt.py", "module": "pretraining"}


def test_messages_have_one_priority_each_and_the_order_of_a_flush(node: Node) -> None:
    rank = node.rank("job")
    agent = node.watch()
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    rank.say("collectives 5")
    rank.say("step 1.0")
    rank.say("exit 3 1", answers=False)
    until(agent, lambda: node.events(EventName.RANK_EXIT))
    last = [
        (priority, {payload.name for payload in decode_logs(topic, value)})  # type: ignore[union-attr]
        for topic, _, value, priority in node.messages
        if topic == TOPIC_BLOCKS
    ]
    for priority, names in last:
        if EventName.BLOCK_COLLECTIVES in names:
            assert priority is Priority.COLLECTIVES
            assert names == {EventName.BLOCK_COLLECTIVES}
        if names & {EventName.BLOCK_STEPS, EventName.BLOCK_PROGRESS}:
            assert priority is Priority.PROGRESS
        if names & {EventName.RANK_EXIT, EventName.GROUP_DEFINED, EventName.RANK_STARTED}:
            assert priority is Priority.RANK_EVENTS
    kinds = [name for _, names in last for name in names]
    assert kinds.index(EventName.GROUP_DEFINED) < kinds.index(EventName.BLOCK_COLLECTIVES)
    assert kinds.index(EventName.BLOCK_COLLECTIVES) < kinds.index(EventName.BLOCK_STEPS)
    assert kinds.index(EventName.BLOCK_STEPS) < kinds.index(EventName.RANK_EXIT)


def test_a_folder_is_left_when_nobody_lives_in_it_and_taken_up_again(node: Node) -> None:
    rank = node.rank("job")
    agent = node.watch(idle_s=0.2)
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    rank.say("exit 0 1", answers=False)
    until(agent, lambda: node.events(EventName.RANK_EXIT) and not agent.jobs)
    for _ in range(20):
        agent.turn()
    assert agent.watched_before == 1
    node.rank("job", 1, 2)
    until(agent, lambda: len(node.events(EventName.RANK_STARTED)) == 2)
    assert agent.watched_before == 2
    assert len(node.events(EventName.RANK_EXIT)) == 1


def test_a_node_without_a_job_says_that_it_is_there(node: Node) -> None:
    unsent = {"kafka.unsent": 0}
    agent = node.watch(more_health=lambda: unsent)
    agent.turn()
    (alive,) = node.events(EventName.AGENT_HEALTH)
    assert (alive.identity, alive.attributes["pid"]) == (OWN, os.getpid())
    until(agent, lambda: len(node.events(EventName.AGENT_HEALTH)) == 2)
    unsent["kafka.unsent"] = 1
    end_s = time.monotonic() + 2.5
    until(agent, lambda: time.monotonic() > end_s)
    assert len(node.events(EventName.AGENT_HEALTH)) == 2, "nothing piles up where nothing is taken"
    unsent["kafka.unsent"] = 0
    node.rank("job-a")
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    node.messages.clear()
    end_s = time.monotonic() + 2.5
    until(agent, lambda: time.monotonic() > end_s)
    assert all(event.identity.job for event in node.events(EventName.AGENT_HEALTH))


def test_who_died_while_no_agent_watched_is_told_by_the_next(node: Node) -> None:
    node.rank("job", 0, 2)
    told, missed = node.rank("job", 1, 2), node.rank("crashed")
    told.say("exit 3 1", answers=False)
    told.process.wait()
    time.sleep(0.1)
    last_watched_ns = time.monotonic_ns()
    missed.say("collectives 3")
    time.sleep(0.1)  # a heartbeat
    missed.say("exit 4 1", answers=False)
    missed.process.wait()
    agent = node.watch(missed_since_ns=last_watched_ns, idle_s=1.0)
    until(agent, lambda: node.events(EventName.RANK_EXIT) and node.events(EventName.RANK_STARTED))
    until(agent, lambda: agent.jobs == ["job"])
    (event,) = node.events(EventName.RANK_EXIT)
    assert (event.identity.job, event.attributes["left_behind"]) == ("crashed", True)


def test_who_was_dead_before_anybody_came_is_no_news(node: Node) -> None:
    node.rank("job", 0, 2)
    for rank in (node.rank("job", 1, 2), node.rank("finished")):
        rank.say("exit 3 1", answers=False)
        rank.process.wait()
    agent = node.watch()
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    assert agent.jobs == ["job"]
    time.sleep(0.5)
    assert node.events(EventName.RANK_EXIT) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for files of another user")
def test_two_users_who_claim_one_job_are_two_jobs(node: Node) -> None:
    node.rank("a", WHICHRANK_JOB_ID="same")
    agent = node.watch()
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    node.rank("b", WHICHRANK_JOB_ID="same")
    for path in (node.root / "b", *(node.root / "b").iterdir()):
        os.chown(path, 12001, 12001)
    until(agent, lambda: len(node.events(EventName.RANK_STARTED)) == 2)
    started = node.events(EventName.RANK_STARTED)
    assert {(event.identity.job, event.identity.owner) for event in started} == {("same", "0"), ("same", "12001")}
    assert agent.jobs == ["same@0", "same@12001"]
    assert len(node.said) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for files of another user")
def test_a_ring_of_a_stranger_in_a_users_folder_is_left_out(node: Node) -> None:
    node.rank("job", 0, 2)
    node.rank("job", 1, 2)
    os.chown(node.root / "job", 12001, 12001)
    for path in (node.root / "job").iterdir():
        os.chown(path, 12001 if "rank-00000" in path.name else 12002, 0)
    agent = node.watch()
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    time.sleep(0.5)
    assert {event.identity.rank for event in node.events(EventName.RANK_STARTED)} == {0}


def test_evidence_is_kept_apart_and_from_others(node: Node, tmp_path: Path) -> None:
    rank = node.rank("job")
    agent = node.watch(evidence_directory=tmp_path / "data" / "evidence")
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    rank.kill()
    until(agent, lambda: node.events(EventName.RANK_EXIT))
    folder = tmp_path / "data" / "evidence"
    until(agent, lambda: list(folder.glob(f"{os.getuid()}-job/*-died.ring.gz")))
    assert folder.stat().st_mode & 0o077 == 0


def test_links_and_deep_folders_are_not_followed(tmp_path: Path) -> None:
    for place in ("one", "two/three", "two/three/four/five"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "rank-00000.1.a.ring").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    found = [str(folder.path.relative_to(tmp_path)) for folder in FolderFinder(tmp_path, print).look()]
    assert sorted(found) == ["one", "two/three"]
    assert [folder.path.name for folder in FolderFinder(tmp_path / "o*", print).look()] == ["one"]


def test_damaged_rings_are_no_job(node: Node) -> None:
    folder = node.root / "job"
    folder.mkdir(parents=True)
    (folder / "rank-00000.1.a.ring").write_bytes(b"nonsense")
    (folder / "rank-00001.1.a.ring").mkdir()
    agent = node.watch()
    for _ in range(5):
        agent.turn()
    assert agent.jobs == []
    node.rank("job")
    until(agent, lambda: node.events(EventName.RANK_STARTED))


def test_a_folder_of_the_past_is_read_once_until_something_new_is_in_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = node.rank("job")
    rank.say("exit 0 1", answers=False)
    rank.process.wait()
    os.utime(node.root / "job", (1, 1))
    looks: list[str] = []

    def look(folder: JobFolder, *rest: Any) -> Any:
        looks.append(folder.path.name)
        return identify_job(folder, *rest)

    monkeypatch.setattr("whichrank.agents.node_agent.identify_job", look)
    agent = node.watch()
    for _ in range(5):
        agent.turn()
    assert looks == ["job"]
    node.rank("job")
    until(agent, lambda: node.events(EventName.RANK_STARTED))
    assert agent.jobs == ["job"]
