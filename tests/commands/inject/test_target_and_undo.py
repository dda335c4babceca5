"""Who lets faults be injected, what undoes them, and disks that are full on purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whichrank.agents.processes.processes import read_stat
from whichrank.agents.rings.ring_file import RingFile
from whichrank.commands.inject.disk_faults import FullDisk, SlowDisk
from whichrank.commands.inject.node_faults import PlayedKernelLine, PortDown
from whichrank.commands.inject.target_job import NotAllowed, TargetRank, find_target
from whichrank.commands.inject.undo_guard import UndoGuard
from whichrank.commands.run_folder.run_directory import Unusable
from whichrank.commands.supervise.job_processes import CommandProcess
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.injection_words import ALLOW_VARIABLE

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    """Of this very process, which was not started with the variable."""
    folder = tmp_path / "rings"
    folder.mkdir()
    RingWriter.create(folder, rank=0, local_rank=0, world_size=1, identity={"host": "here"}, slots=None)
    return folder


def test_a_job_that_does_not_allow_it_gets_no_fault(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "1")  # later than its start: it does not count
    with pytest.raises(NotAllowed, match=f"start it with {ALLOW_VARIABLE}=1"):
        find_target(rings)


def test_a_job_without_ranks_here_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="no rank of the job lives"):
        find_target(tmp_path)


@pytest.mark.skipif(not IS_ROOT, reason="only root has folders of other users")
def test_root_does_nothing_to_the_job_of_another_user(rings: Path) -> None:
    os.chown(rings, 65534, 65534)
    with pytest.raises(NotAllowed, match="is user 65534's"):
        find_target(rings)


def test_it_is_undone_though_its_process_is_killed(tmp_path: Path) -> None:
    undone, begun = tmp_path / "undone", tmp_path / "begun"
    source = f"""
import pathlib, time
from whichrank.commands.inject.undo_guard import UndoGuard
guard = UndoGuard(pathlib.Path({str(undone)!r}).touch)
pathlib.Path({str(begun)!r}).touch()
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", source], start_new_session=True)
    _until(begun)
    assert not undone.exists()
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, to all of the terminal
    process.wait(10)
    _until(undone)
    undone.unlink()
    begun.unlink()
    process = subprocess.Popen([sys.executable, "-c", source])
    _until(begun)
    process.kill()
    process.wait(10)
    _until(undone)


def _until(path: Path) -> None:
    deadline = time.monotonic() + 20.0
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_cannot_undo_says_so(tmp_path: Path) -> None:
    guard = UndoGuard(lambda: (tmp_path / "gone" / "file").unlink())
    assert guard.close() is False
    guard = UndoGuard(lambda: None)
    assert (guard.close(), guard.close()) == (True, True)


def test_a_disk_that_others_need_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="name a disk of its own"):
        FullDisk(tmp_path, spared=(tmp_path,))
    with pytest.raises(Unusable, match="name a disk of its own"):
        SlowDisk(tmp_path, spared=(tmp_path,))


@pytest.mark.skipif(not IS_ROOT, reason="mounting needs root")
def test_a_disk_is_full_and_has_room_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(disk)], check=True)
    try:
        (disk / "theirs").write_bytes(b"x" * 100_000)
        fault = FullDisk(disk, spared=(tmp_path,))
        fault.begin()
        assert _room(disk) == 0
        (disk / "theirs").unlink()
        assert _room(disk) > 0
        time.sleep(0.6)
        fault.tend()
        assert _room(disk) == 0
        fault.halt()
        fault.undo()
        assert _room(disk) > 8_000_000
        assert list(disk.iterdir()) == []
        with pytest.raises(Unusable, match="cannot be frozen"):
            SlowDisk(disk, spared=(tmp_path,)).begin()  # memory
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _room(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def test_a_kernel_line_tells_of_the_rank_that_it_ends(rings: Path, tmp_path: Path) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    stat = read_stat(victim.pid)
    assert stat is not None
    process = CommandProcess(pid=victim.pid, start_ticks=stat.start_ticks, state=stat.state)
    rank = TargetRank(rank=3, world_size=4, process=process, ring=RingFile(next(rings.iterdir())), environ={})
    log = tmp_path / "kern.log"
    log.write_text("before\n")
    fault = PlayedKernelLine(rank, log, "Killed process {pid} of rank {rank}")
    assert log.read_text() == "before\n"
    fault.begin()
    assert victim.wait(10) == -signal.SIGKILL
    assert log.read_text().endswith(f"] Killed process {victim.pid} of rank 3\n")
    for line in ("two\nlines", "x" * 1000):
        with pytest.raises(Unusable, match="printable"):
            PlayedKernelLine(rank, log, line)
    for no_log in ("/dev/null", "/dev/kmsg"):
        if os.path.exists(no_log):
            with pytest.raises(Unusable, match="not a file of your own"):
                PlayedKernelLine(rank, Path(no_log), "x")
    rank.ring.close()


def test_a_port_has_a_name_and_is_there() -> None:
    with pytest.raises(Unusable, match="is no name of one"):
        PortDown("-all", "eth0")
    with pytest.raises(Unusable, match="link show dev eth0"):
        PortDown("no-such-namespace", "eth0")
