"""Ending real processes: some ignore SIGTERM, some have left their parents, some are stopped, one cannot die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whichrank.commands.supervise.actuator import KILL_PATIENCE_S, CommandEnder, Ended
from whichrank.commands.supervise.job_processes import CommandProcess, find_job_processes
from whichrank.telemetry.vocabulary import ProcessState

LAUNCHER = str(Path(__file__).with_name("launcher.py"))


class Job:
    def __init__(self, folder: Path, way: str) -> None:
        self.mark = f"WHICHRANK_DIR={folder}/rings"
        environ = os.environ | {"WHICHRANK_DIR": f"{folder}/rings"}
        self.process = subprocess.Popen([sys.executable, LAUNCHER, str(folder), way], env=environ)
        deadline = time.monotonic() + 30
        while not (folder / "pids").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.child, self.orphan = map(int, (folder / "pids").read_text().split())
        self.all = (self.process.pid, self.child, self.orphan)

    def find(self) -> list[CommandProcess]:
        self.process.poll()  # as the watching loop does
        return find_job_processes(self.process.pid, [self.mark.encode()])

    def end(self, grace_s: float) -> Ended:
        ender = CommandEnder(self.find, self.process.pid, grace_s=grace_s, now_s=time.monotonic())
        deadline = time.monotonic() + grace_s + 20.0
        while (ended := ender.turn(time.monotonic())) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return ended

    def living(self) -> list[int]:
        return [process.pid for process in self.find()]


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    for process in made.find():
        process.send(signal.SIGKILL)
    made.process.wait(10)


@pytest.mark.parametrize("job", ["tame"], indirect=True)
def test_a_launcher_ends_its_own_and_who_has_left_it_is_asked_too(job: Job, tmp_path: Path) -> None:
    assert sorted(job.living()) == sorted(job.all)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        ended = job.end(grace_s=20.0)
        assert (ended.killed, ended.left) == (0, ())
        assert (tmp_path / "asked").exists()
        assert job.living() == []
        assert other.poll() is None  # nobody else's
    finally:
        other.kill()
        other.wait(10)


@pytest.mark.parametrize("job", ["stubborn"], indirect=True)
def test_who_ignores_sigterm_is_killed_after_the_grace(job: Job) -> None:
    began = time.monotonic()
    ended = job.end(grace_s=1.0)
    assert (ended.killed, ended.left) == (3, ())
    assert time.monotonic() - began >= 1.0
    assert job.living() == []


@pytest.mark.parametrize("job", ["tame"], indirect=True)
def test_a_stopped_process_is_woken_to_die_of_its_sigterm(job: Job) -> None:
    os.kill(job.child, signal.SIGSTOP)
    while next(one.state for one in job.find() if one.pid == job.child) is not ProcessState.STOPPED:
        time.sleep(0.01)
    ended = job.end(grace_s=20.0)
    assert (ended.killed, ended.left) == (0, ())


def test_what_outlives_its_sigkill_is_named_and_not_waited_for() -> None:
    """A process in state D cannot be made here: one that is gone already answers no signal, as that one would not."""
    dead = CommandProcess(pid=1 << 22, start_ticks=1, state=ProcessState.DISK_WAIT)
    ender = CommandEnder(lambda: [dead], dead.pid, grace_s=1.0, now_s=0.0)
    assert ender.turn(0.0) is None
    assert ender.turn(1.0) is None
    ended = ender.turn(1.0 + KILL_PATIENCE_S)
    assert ended is not None
    assert (ended.left, ended.killed) == (((1 << 22, "disk_wait"),), 0)


def test_a_later_process_of_the_same_pid_gets_no_signal() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not CommandProcess(pid=child.pid, start_ticks=1, state=ProcessState.SLEEPING).send(signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(10)
