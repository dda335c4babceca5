"""Fixtures for agent tests: real rings, real rank processes, an agent with a publish that keeps what it got."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.job_agent import Agent
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block, Broken, Event, Identity
from whichrank.telemetry.topics import TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS, TOPIC_LOGS

SCRIPT = Path(__file__).with_name("rank_process.py")


class RankProcess:
    """A rank that obeys: ``say("collectives 5")`` returns when the rank has done it."""

    def __init__(self, directory: Path, rank: int, world: int, **options: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(directory), str(rank), str(world), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        assert self._answer() == "started"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ok"), f"rank process said {line!r}"
        return line[2:].strip()

    def say(self, line: str, answers: bool = True) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer() if answers else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Watched:
    """An agent and what it published, decoded in order."""

    def __init__(self, directory: Path, evidence: Path | None = None, **settings: object) -> None:
        self.payloads: list[Block | Event] = []
        self.logs: list[bytes] = []  # messages on the topic for people
        self.for_people: dict[str, list[bytes]] = {TOPIC_SPANS: [], TOPIC_METRICS: []}
        self.refuse = False
        self.fail: Exception | None = None
        self.agent = Agent(
            ring_directory=directory,
            publish=self._publish,
            identity=Identity(job="job", run="run", cluster="local", node="node-a"),
            evidence_directory=evidence,
            settings=AgentSettings(**settings),  # type: ignore[arg-type]
        )

    def _publish(self, topic: str, key: str, value: bytes) -> None:
        if self.fail is not None:
            raise self.fail
        if self.refuse:
            raise OSError(28, "No space left on device")
        assert key == "job"
        if topic == TOPIC_LOGS:
            self.logs.append(value)
        if topic in self.for_people:
            self.for_people[topic].append(value)
        if topic == TOPIC_BLOCKS:
            for payload in decode_logs(topic, value):
                assert not isinstance(payload, Broken), payload.reason
                assert isinstance(payload, Block | Event)
                self.payloads.append(payload)

    def run_until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> float:
        """Poll as ``whichrank run`` does until the condition holds; returns the seconds it took."""
        begin_s = time.monotonic()
        while not condition():
            assert time.monotonic() - begin_s < timeout_s, f"never happened; events: {self.names()}"
            self.agent.wait(0.05)
            self.agent.poll()
        return time.monotonic() - begin_s

    def run_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end_s, seconds + 5)

    def events(self, name: EventName, rank: int | None = None) -> list[Event]:
        return [
            payload
            for payload in self.payloads
            if isinstance(payload, Event) and payload.name is name and (rank is None or payload.identity.rank == rank)
        ]

    def blocks(self, name: EventName) -> list[Block]:
        return [payload for payload in self.payloads if isinstance(payload, Block) and payload.name is name]

    def names(self) -> list[str]:
        return [payload.name.value for payload in self.payloads]


@pytest.fixture
def ring_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "rings"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def start_rank(ring_directory: Path) -> Iterator[Callable[..., RankProcess]]:
    started: list[RankProcess] = []

    def start(rank: int, world: int = 2, **options: object) -> RankProcess:
        process = RankProcess(ring_directory, rank, world, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def watch(ring_directory: Path, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(**settings: object) -> Watched:
        watched = Watched(ring_directory, tmp_path / "evidence", **settings)
        made.append(watched)
        return watched

    yield make
    for watched in made:
        watched.agent.close()
