"""Rings of several users in one folder, and an agent that sees rings but not the processes behind them.

Needs root, for other users and PID namespaces: the tests are skipped, and counted as skipped, without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import Watched
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.vocabulary import EventName, Phase

USERS = (12001, 12002)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users and PID namespaces")
AGENT = """
import json, sys
from pathlib import Path
from whichrank.commands.embedded.embedded_watch import EmbeddedWatch
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity
from whichrank.transport.bus import TOPIC_BLOCKS

def say(kind, **values):
    print(json.dumps({"kind": kind, **values}), flush=True)

def published(topic, key, value):
    if topic == TOPIC_BLOCKS:
        for payload in decode_logs(topic, value):
            if isinstance(payload, Event):
                say(payload.name.value, rank=payload.identity.rank, **{k: v for k, v in payload.attributes.items()
                    if k in ("uid", "signal", "exit_code", "pid", "method", "function")})

def incident(found):
    document = found.document
    say("incident", what=document["kind"], state=document["state"], suspects=[s["rank"] for s in document["suspects"]],
        where=[s["where"] for s in document["suspects"]])

watch = EmbeddedWatch(directory=RunDirectory(Path(sys.argv[2])), ring_directory=Path(sys.argv[1]),
    identity=Identity(cluster="c", run="r", job="j", node="n"), on_incident=incident, on_published=published,
    say=lambda line: say("line", text=line))
said = 0
while True:
    watch.wait()
    watch.turn()
    notes = watch._agent.health.problems
    for note in list(notes)[said:]:
        say("problem", text=note)
    said = len(notes)
"""


@contextlib.contextmanager
def as_user(uid: int, act: Callable[[], None]) -> Iterator[int]:
    """A child of this interpreter (which another user may not be able to start) that acts, then waits to be killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            act()
            os.write(writer, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder in which every user may create files; those of pytest are for their owner only."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def ring_of(folder: Path, rank: int) -> Callable[[], None]:
    return lambda: RingWriter.create(folder, rank=rank, local_rank=rank, world_size=2, identity={}).beat()


@needs_root
def test_root_reads_the_rings_of_all_users_and_each_belongs_to_its_files_owner(shared_folder: Path) -> None:
    folder = shared_folder
    with as_user(USERS[0], ring_of(folder, 0)) as first, as_user(USERS[1], ring_of(folder, 1)) as second:
        watched = Watched(folder)
        watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == 2)
        started = watched.events(EventName.RANK_STARTED)
        assert {(event.attributes["owner_uid"], event.attributes["pid"]) for event in started} == {
            (USERS[0], first),
            (USERS[1], second),
        }
        os.kill(second, signal.SIGKILL)
        watched.run_until(lambda: watched.events(EventName.RANK_EXIT, rank=1))
        assert not watched.events(EventName.RANK_EXIT, rank=0)
        watched.agent.close()


class Sidecar:
    """``EmbeddedWatch`` in a PID namespace of its own, without the right to trace; what it says, line by line."""

    def __init__(self, rings: Path, out: Path) -> None:
        out.mkdir()
        self.said: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "setpriv", "--bounding-set=-sys_ptrace",
             "--inh-caps=-sys_ptrace", sys.executable, "-c", AGENT, str(rings), str(out)],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))

    def of(self, kind: str | EventName) -> list[dict[str, Any]]:
        name = kind.value if isinstance(kind, EventName) else kind
        return [item for item in list(self.said) if item["kind"] == name]

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> float:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + timeout_s, f"never said; said: {self.said[-20:]}"
            time.sleep(0.01)
        return time.monotonic() - began

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def sidecar(ring_directory: Path, tmp_path: Path) -> Iterator[Sidecar]:
    started = Sidecar(ring_directory, tmp_path / "out")
    yield started
    started.end()


@needs_root
def test_a_sidecar_sees_a_death_within_a_second_and_knows_the_signal_that_the_rank_could_write_down(
    start_rank: Callable[..., Any], sidecar: Sidecar
) -> None:
    ranks = [start_rank(number, 3) for number in range(3)]
    sidecar.wait_for(lambda: len(sidecar.of(EventName.RANK_STARTED)) == 3, 20)
    sidecar.wait_for(lambda: len(sidecar.of("problem")) == 3, 5)  # once for each ring
    assert all("another PID namespace" in item["text"] for item in sidecar.of("problem"))
    assert not sidecar.of(EventName.RANK_EXIT)
    if int(ranks[0].say("fatal")):  # built with the C part that writes signals down
        ranks[0].kill(signal.SIGSEGV)
        sidecar.wait_for(lambda: sidecar.of(EventName.RANK_EXIT), 5)
        assert sidecar.of(EventName.RANK_EXIT)[0]["signal"] == signal.SIGSEGV
    before = len(sidecar.of(EventName.RANK_EXIT))
    ranks[1].kill(signal.SIGKILL)
    assert sidecar.wait_for(lambda: len(sidecar.of(EventName.RANK_EXIT)) > before, 5) <= 1.0
    exit_of_1 = sidecar.of(EventName.RANK_EXIT)[-1]
    assert exit_of_1["rank"] == 1
    assert exit_of_1["signal"] == 0  # nobody there could tell
    assert "exit_code" not in exit_of_1
    sidecar.wait_for(lambda: sidecar.of("incident"), 5)
    assert sidecar.of("incident")[0]["what"] == "rank_died"


@needs_root
def test_a_sidecar_names_the_rank_that_stands_still_and_where_by_the_ring_alone(
    start_rank: Callable[..., Any], sidecar: Sidecar
) -> None:
    ranks = [start_rank(number, 2) for number in range(2)]
    sidecar.wait_for(lambda: len(sidecar.of(EventName.RANK_STARTED)) == 2, 20)
    for _ in range(20):
        for rank in ranks:
            rank.say(f"phase {int(Phase.FORWARD)}")
            rank.say("collectives 1")
            rank.say("step 1.0")
        time.sleep(0.05)
    for rank in ranks:
        rank.say(f"phase {int(Phase.FORWARD)}")
    ranks[0].say("enter")
    ranks[1].say("keep-stack")
    sidecar.wait_for(lambda: sidecar.of("incident"), 12)
    first = sidecar.of("incident")[0]
    assert (first["what"], first["suspects"]) == ("rank_not_entered", [1])
    sidecar.wait_for(lambda: any((i["where"][0] or {}).get("line") for i in sidecar.of("incident") if i["where"]), 10)
    assert not sidecar.of(EventName.RANK_EXIT)
