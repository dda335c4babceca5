"""Two ``whichrank run`` of one job on this machine's loopback: who judges, what is shown where, and who goes when."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

SCRIPT = Path(__file__).with_name("ring_job.py")
WORLD = 4


class Instance:
    def __init__(self, folder: Path, place: int, port: int, steps: int, fault: str = "") -> None:
        self.out = folder / f"out-{place}"
        self.console = folder / f"console-{place}.txt"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
        environ |= {"RANK": str(place), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        meeting = folder / "meeting"
        meeting.mkdir(exist_ok=True)
        ranks = "0-1" if place == 0 else "2-3"
        job = [sys.executable, str(SCRIPT), str(meeting), ranks, str(WORLD), str(steps), fault]
        with self.console.open("wb") as console:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(self.out), "--", *job],
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )
        self.place = place

    @property
    def folder(self) -> Path:
        """Of the run: a follower's lies below the one that was named."""
        return self.out if self.place == 0 else next(self.out.glob("node-*"), self.out)

    def incidents(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "incidents.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {document["id"]: document for document in map(json.loads, lines)}

    def ranks_heard(self) -> set[int]:
        """Of which ranks an event has reached this judge, among the first of its messages."""
        with closing(EmbeddedBus(self.folder / "capture", read_only=True)) as bus:
            values = [message.value for message in bus.read(0, 1000) if message.topic == TOPIC_BLOCKS]
        payloads = [payload for value in values for payload in decode_logs(TOPIC_BLOCKS, value)]
        return {payload.identity.rank for payload in payloads if isinstance(payload, Event)}

    def said(self) -> str:
        return self.console.read_text()

    def let_stand(self) -> None:
        """The rank of the fault ``RANK@told`` stands still from its next step on."""
        (self.out.parent / "meeting" / "told").touch()

    def end(self) -> int:
        """All of it: the command's ranks are in our session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Instance]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # nobody listens there; it is part of the job's key
    started: list[Instance] = []

    def begin(place: int, steps: int, fault: str = "") -> Instance:
        started.append(Instance(tmp_path, place, port, steps, fault))
        return started[-1]

    yield begin
    for instance in started:
        try:
            os.killpg(instance.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        instance.process.wait()


def until(done: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "did not come"
        time.sleep(0.05)


def replayed(folder: Path, into: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "whichrank.commands.main", "replay", str(folder), "--json", "--out", str(into)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_hang_on_the_second_node_is_one_incident_of_the_first(start: Callable[..., Instance], tmp_path: Path) -> None:
    """With the stack of the rank, which the judge had to ask the other instance for; each replay says the same."""
    judge, follower = start(0, 4000, "3@told"), start(1, 4000, "3@told")
    until(lambda: "2 of 2 nodes seen" in judge.said())  # before that each judges its own ranks
    until(lambda: "judged on" in follower.said())
    judge.let_stand()
    told = judge.incidents
    # One that is only noticed is over when the job is ended: then the end is a second incident.
    until(lambda: any(doc["severity"] == "page" and doc["suspects"][0]["where"]["line"] for doc in told().values()))
    (incident,) = judge.incidents().values()
    (suspect,) = incident["suspects"]
    lines = SCRIPT.read_text().splitlines()
    assert (incident["kind"], suspect["rank"]) == ("rank_not_entered", 3)
    assert suspect["node"] == f"{socket.gethostname()}~{follower.process.pid}"
    assert "MARK" in lines[suspect["where"]["line"] - 1]
    assert incident["coverage"] == {"ranks_seen": 4, "ranks_expected": 4}
    assert incident["ruled_out"][0]["who"] == "ranks 0-2"
    until(lambda: "rank_not_entered: rank 3" in follower.said(), 10.0)
    assert follower.incidents() == {}, "one page per cause"
    follower.end()
    judge.end()
    (incident,) = judge.incidents().values()
    assert incident["state"] == "resolved", judge.said()
    for instance in (judge, follower):
        assert replayed(instance.folder, tmp_path / f"replay-{instance.place}")["compared"] == "equal"
        described = json.loads((instance.folder / "run.json").read_text())
        assert "peers" not in described["losses"]
        assert not Path(described["ring_directory"]).exists()


def test_who_is_left_judges_on(start: Callable[..., Instance]) -> None:
    """The judge is killed, its ranks train on: no page. Then a rank that the other still sees stands still."""
    judge, follower = start(0, 4000, "3@told"), start(1, 4000, "3@told")
    until(lambda: "judged on" in follower.said())
    until(lambda: (judge.out.parent / "meeting" / "3.30").exists())
    judge.process.kill()
    until(lambda: "judged here" in follower.said(), 10.0)
    follower.let_stand()
    until(lambda: follower.incidents())
    (incident,) = follower.incidents().values()
    assert (incident["kind"], [suspect["rank"] for suspect in incident["suspects"]]) == ("rank_not_entered", [3])
    assert incident["coverage"] == {"ranks_seen": 2, "ranks_expected": 4}


def test_a_killed_follower_is_no_page_and_over_with_the_job(start: Callable[..., Instance]) -> None:
    """The job goes on until the silence was told, which on a busy machine takes what it takes."""
    judge, follower = start(0, 4000), start(1, 4000)
    until(lambda: "2 of 2 nodes seen" in judge.said())
    until(lambda: 3 in judge.ranks_heard())  # before that it is only a node of which no rank is known
    meeting = judge.out.parent / "meeting"
    follower.process.kill()
    until(judge.incidents)
    made = max(int(path.suffix[1:]) for path in meeting.glob("3.*"))
    last = meeting / "last-step.new"
    last.write_text(str(made + 20))  # no rank is further than a step ahead: all of them see it in time
    last.rename(meeting / "last-step")
    assert judge.process.wait(90) == 0
    (incident,) = judge.incidents().values()
    assert (incident["kind"], incident["severity"], incident["suspects"], incident["state"]) == (
        "agent_silent",
        "ticket",
        [],
        "resolved",
    )
