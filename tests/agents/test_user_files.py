"""What is opened with a user's rights, and what a helper may not be made to do."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whichrank.agents.user_files import helper_process
from whichrank.agents.user_files.helper_process import HelperUnavailable
from whichrank.agents.user_files.system_calls import BELOW, IN_ROOT, open_at, open_by_steps, state_of
from whichrank.agents.user_files.user_files import UserFilesPool, files_of
from whichrank.agents.user_files.walk import find_matches

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users")
USER = 12001


@pytest.fixture
def place(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("content")
    (tmp_path / "a/up").symlink_to("../../../..")
    (tmp_path / "a/absolute").symlink_to("/a/b")
    (tmp_path / "a/round").symlink_to("round")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("open_it", [open_at, open_by_steps])
def test_names_are_resolved_inside_and_no_link_leads_out(
    open_it: Callable[[int, str, int, str], int], place: int
) -> None:
    def content(name: str, how: str) -> str:
        with open(open_it(place, name, os.O_RDONLY, how)) as file:
            return file.read()

    assert content("a/b/file", BELOW) == content("/a/b/file", IN_ROOT) == "content"
    assert content("/a/absolute/file", IN_ROOT) == content("/../a/up/a/b/./file", IN_ROOT) == "content"
    for name, how in (("a/absolute/file", BELOW), ("a/up/a", BELOW), ("a/round", IN_ROOT), ("..", BELOW)):
        with pytest.raises(OSError, match=r"cross-device|symbolic links"):
            open_it(place, name, os.O_RDONLY, how)
    with pytest.raises(FileNotFoundError):
        open_it(place, "/etc/passwd", os.O_RDONLY, IN_ROOT)


def test_only_regular_files_and_folders_are_handed_over(place: int, tmp_path: Path) -> None:
    files = files_of(os.geteuid())
    os.mkfifo(tmp_path / "pipe")
    fd = files.open_file(place, "a/b/file")
    assert os.pread(fd, 100, 0) == b"content"
    os.close(fd)
    with pytest.raises(OSError, match="not a regular file"):
        files.open_file(place, "pipe")
    with pytest.raises(NotADirectoryError):
        files.open_folder(place, "a/b/file")
    proc = os.open("/proc/self", os.O_RDONLY)
    with pytest.raises(OSError, match="kernel's"):
        files.open_readable(proc, "status", BELOW)
    os.close(proc)
    files.remove(state := os.open(tmp_path / "a/b", os.O_RDONLY), "file")
    os.close(state)
    assert not (tmp_path / "a/b/file").exists()


@needs_root
def test_a_helper_reads_what_its_user_can_and_one_that_is_stopped_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(f"/dev/shm/test-user-files-{os.getpid()}")
    folder.mkdir(mode=0o755)
    pool = UserFilesPool()
    try:
        for name, uid, mode in (("own", USER, 0o600), ("roots", 0, 0o600), ("others", USER + 1, 0o644)):
            (folder / name).write_text(name)
            os.chown(folder / name, uid, uid)
            (folder / name).chmod(mode)
        place = os.open(folder, os.O_RDONLY)
        files = pool.of(USER)
        os.close(files.open_file(place, "own"))
        for name in ("roots", "others"):
            with pytest.raises(PermissionError):
                files.open_file(place, name)
        (pid,) = pool.pids
        monkeypatch.setattr(helper_process, "_ANSWER_S", 0.3)
        os.kill(pid, signal.SIGKILL)
        os.close(files.open_file(place, "own"))
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(HelperUnavailable):
            files.open_file(place, "own")
        began_s = time.monotonic()
        with pytest.raises(HelperUnavailable):
            files.open_file(place, "own")
        assert time.monotonic() - began_s < 0.2, "asked again too soon"
        assert pool.pids == []
        os.close(place)
    finally:
        pool.close()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@needs_root
def test_a_helper_that_is_stopped_before_it_is_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is its user's from its first moment on: what is stopped then sees no connection close."""
    started: list[int] = []
    begin = helper_process.STARTER.start

    def stopped(rights: helper_process.Rights, theirs: socket.socket) -> int:
        started.append(begin(rights, theirs))
        os.kill(started[-1], signal.SIGSTOP)
        return started[-1]

    monkeypatch.setattr(helper_process.STARTER, "start", stopped)
    monkeypatch.setattr(helper_process, "_START_S", 0.3)
    monkeypatch.setattr(helper_process, "_ANSWER_S", 0.3)
    pool = UserFilesPool()
    place = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(HelperUnavailable):
            pool.of(USER).open_file(place, "own")
        until_s = time.monotonic() + 5.0
        while any(_is_there(pid) for pid in started):
            assert time.monotonic() < until_s, "it is left behind"
            time.sleep(0.05)
        assert started
    finally:
        os.close(place)
        pool.close()
        for pid in filter(_is_there, started):
            os.kill(pid, signal.SIGKILL)


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@needs_root
def test_a_pattern_follows_roots_links_and_nobody_elses() -> None:
    folder = Path(f"/dev/shm/test-walk-{os.getpid()}")
    (folder / "home/user").mkdir(parents=True)
    (folder / "private").mkdir(mode=0o700)
    (folder / "private/x.log").touch()
    (folder / "home/user/link").symlink_to(folder / "private")
    os.chown(folder / "home/user", USER, USER)
    (folder / "home/user/own.log").touch()
    said: list[str] = []
    try:
        found = [match.path for match in find_matches(f"{folder}/home/*/**/*.log", said.append)]
        assert found == [f"{folder}/home/user/own.log"]
        assert list(find_matches(f"{folder}/home/user/link/*.log", said.append)) == []
    finally:
        for path in ("home/user/own.log", "home/user/link", "private/x.log"):
            (folder / path).unlink()
        for path in ("home/user", "home", "private", ""):
            (folder / path).rmdir()


def test_a_state_is_told_without_opening(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    seen, told = state_of(-100, str(path)), path.stat()
    assert (seen.mode, seen.uid, seen.size, seen.changed_ns) == (
        told.st_mode, told.st_uid, told.st_size, told.st_mtime_ns,
    )  # fmt: skip
    assert seen.device_inode == (told.st_dev, told.st_ino)
