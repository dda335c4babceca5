"""Processes as the kernel tells of them: real children, real deaths, real locks."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whichrank.agents.base.health import AgentHealth
from whichrank.agents.processes import processes
from whichrank.agents.rings.ring_directory import EndedRings, RingDirectory, find_process, identity_int
from whichrank.agents.rings.ring_file import RingFile
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.vocabulary import ProcessState

STAT = (
    b"4711 (py) thon (3)) S 4000 4711 4000 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 987654 1 1 1 1 1 1 0 0 0 0 0 0 "
    b"0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 9\n"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(1); sys.exit(7)"], stdin=-1)
    yield process
    process.kill()
    process.communicate()


def test_stat_survives_any_command_name() -> None:
    stat = processes.parse_stat(STAT)
    assert stat is not None
    assert stat.state is ProcessState.SLEEPING
    assert (stat.parent_pid, stat.start_ticks, stat.wait_status) == (4000, 987654, 9)
    assert stat.cpu_ns == 300 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert processes.parse_stat(b"") is None
    assert processes.parse_stat(b"1 (x) S") is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, (0, 0, False)), (7 << 8, (7, 0, False)), (9, (None, 9, False)), (11 | 0x80, (None, 11, True))],
)
def test_wait_status(status: int, expected: tuple[int | None, int, bool]) -> None:
    found = processes.decode_wait_status(status)
    assert (found.exit_code, found.signal, found.core) == expected


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_exit_status_of_zombies_and_of_the_reaped(child: subprocess.Popen[bytes], reaped: bool, killed: bool) -> None:
    pidfd = processes.open_pidfd(child.pid)
    before = processes.read_stat(child.pid)
    assert before is not None
    if killed:
        child.kill()
    else:
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.close()
        child.stdin = None
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(5000)
    if reaped:
        child.wait()
    status = processes.exit_status(child.pid, before.start_ticks, pidfd, os.getuid())
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if reaped and kernel < (6, 15):
        assert status == processes.UNKNOWN_EXIT
    else:
        assert (status.exit_code, status.signal) == ((None, 9) if killed else (7, 0))
    os.close(pidfd)


def test_a_reused_pid_is_another_process(child: subprocess.Popen[bytes]) -> None:
    assert processes.exit_status(child.pid, 1, -1, os.getuid()) == processes.UNKNOWN_EXIT
    assert processes.read_stat(1 << 30) is None


def test_lock_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    assert processes.lock_holder(fd) is None
    script = f"import fcntl,os,sys; f=os.open({str(path)!r}, os.O_RDWR); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(1)"
    holder = subprocess.Popen(
        [sys.executable, "-uc", script + "; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert processes.lock_holder(fd) == holder.pid
    holder.kill()
    holder.communicate()
    assert processes.lock_holder(fd) is None
    os.close(fd)
    assert fcntl.F_WRLCK >= 0


def test_the_launcher_is_found_through_wrappers_that_inherit_the_rank() -> None:
    script = (
        "import subprocess,sys,os; p=subprocess.Popen([sys.executable,'-uc','import os,sys;print(os.getpid());"
        "sys.stdin.read()'],stdout=subprocess.PIPE);print(p.stdout.readline().decode().strip(),flush=True);"
        "sys.stdin.read()"
    )
    wrapper = subprocess.Popen(
        [sys.executable, "-uc", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "LOCAL_RANK": "0", "RANK": "0"},
    )
    assert wrapper.stdout is not None
    rank_pid = int(wrapper.stdout.readline())
    own = processes.read_stat(os.getpid())
    assert own is not None
    assert processes.has_rank_variables(wrapper.pid)
    assert processes.find_launcher(rank_pid) == (os.getpid(), own.start_ticks)
    wrapper.communicate()


def _ring(directory: Path) -> tuple[RingWriter, RingFile]:
    writer = RingWriter.create(directory, rank=0, local_rank=0, world_size=1, identity={}, slots=16, group_rows=1)
    return writer, RingFile(writer.path)


def test_a_ring_of_this_process(tmp_path: Path) -> None:
    writer, ring = _ring(tmp_path)
    found = find_process(ring)
    # The lock is our own, and a process never sees its own locks: the header's pid and start time must do.
    assert (found.pid, found.alive, found.problem) == (os.getpid(), True, "")
    os.close(found.pidfd)
    ring.close()
    writer.close()


def test_a_ring_that_points_at_another_users_process_never_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, ring = _ring(tmp_path)
    monkeypatch.setattr(processes, "process_uid", lambda _: 4242)
    found = find_process(ring)
    assert (found.pid, found.pidfd) == (0, -1)
    assert "another user" in found.problem
    ring.close()
    writer.close()


def test_the_owner_is_told_by_the_kernel() -> None:
    assert processes.process_uid(os.getpid()) == os.geteuid()
    assert processes.process_uid(1 << 30) is None


def test_directory_listing_is_cheap_and_complete(tmp_path: Path) -> None:
    health = AgentHealth()
    directory = RingDirectory(tmp_path, health)
    assert directory.new_paths(1) == []
    (tmp_path / "rank-00001.1.1.ring").touch()
    (tmp_path / ".hidden.ring").touch()
    (tmp_path / "level").touch()
    assert [path.name for path in directory.new_paths(2)] == ["rank-00001.1.1.ring"]
    assert directory.new_paths(3) == []
    (tmp_path / "rank-00002.1.1.ring").touch()
    assert [path.name for path in directory.new_paths(2_000_000_000)] == ["rank-00002.1.1.ring"]
    assert RingDirectory(tmp_path / "absent", health).new_paths(1) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), ("12", 12), ("x", 0), (True, 0), (None, 0), (1 << 70, 0), ("9" * 30, 0), (-3, -3), ("²", 0)],
)
def test_identity_numbers(value: object, expected: int) -> None:
    assert identity_int({"key": value}, "key") == expected


def test_rings_of_ranks_that_ended_do_not_pile_up(tmp_path: Path) -> None:
    """Fifty restarts of a job: the newest rings are there for people, the folder keeps to its bound."""
    writers = [RingWriter.create(tmp_path, rank=rank, local_rank=0, world_size=3, identity={}) for rank in range(3)]
    folder = RingDirectory(tmp_path, AgentHealth())
    folder.new_paths(1)
    ended = EndedRings(2 * writers[0].path.stat().st_size, folder.remove)
    for writer in writers:
        ring = RingFile(writer.path)
        ended.add(ring)
        ring.close()
        writer.close()
    assert sorted(path.name[:10] for path in tmp_path.iterdir()) == ["rank-00001", "rank-00002"]
