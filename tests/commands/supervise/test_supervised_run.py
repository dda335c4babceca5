"""``whichrank run --restarts`` as a whole, on a training without torch: what is started again, what is written down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.commands.supervise.parts import audit

TRAINING = str(Path(__file__).with_name("ring_training.py"))


def start(
    folder: Path, fault: str, *flags: str, steps: int = 25, command: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(folder / "run")]
    options = ["--restarts", "3", "--set", "restart_backoff_s=0.1", "--set", "collect=none", *flags]
    return subprocess.Popen(
        [*whichrank, *options, "--", *(command or (sys.executable, TRAINING, str(folder), str(steps), fault))],
        stderr=(folder / "console").open("wb"),
        env=environ,
        start_new_session=True,
    )


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Ends ranks that a launcher has left behind: theirs is the folder of the test."""
    yield
    for process in psutil.process_iter(["cmdline"]):
        if str(tmp_path) in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def attempts(folder: Path) -> int:
    return len(list(folder.glob("attempt-*")))


def words(folder: Path) -> list[tuple[str, str]]:
    return [(line["outcome"], line["why"]) for line in audit(folder / "run")]


def until(met: Path, job: subprocess.Popen[bytes], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not met.exists():
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.05)


def test_a_killed_rank_is_trained_on_in_a_second_attempt(tmp_path: Path) -> None:
    assert start(tmp_path, "kill").wait(90) == 0
    assert attempts(tmp_path) == 2
    assert words(tmp_path) == [("begun", "crash"), ("done", "crash")]
    said = (tmp_path / "console").read_text()
    assert "restart 1 of 3 because it has failed: rank 1" in said
    assert (tmp_path / "attempt-1" / "1.24").exists()  # to its last step


def test_what_fails_alike_each_time_is_left_to_a_person(tmp_path: Path) -> None:
    assert start(tmp_path, "always").wait(120) == 1
    assert attempts(tmp_path) == 3
    assert words(tmp_path)[-1] in [("refused", "for_a_person"), ("refused", "alike")]
    assert "not started again" in (tmp_path / "console").read_text()


def test_a_dry_run_says_it_and_does_nothing(tmp_path: Path) -> None:
    assert start(tmp_path, "kill", "--dry-run").wait(90) == 1
    assert attempts(tmp_path) == 1
    assert words(tmp_path) == [("would", "crash")]
    assert audit(tmp_path / "run")[0]["mode"] == "dry"


def test_a_users_signal_reaches_the_second_attempt_too_and_ends_the_restarts(tmp_path: Path) -> None:
    job = start(tmp_path, "kill", steps=100_000)
    until(tmp_path / "attempt-1" / "1.15", job)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(60) == -signal.SIGTERM
    assert attempts(tmp_path) == 2
    assert words(tmp_path) == [("begun", "crash"), ("done", "crash"), ("refused", "asked_to_end")]
    modes = {(tmp_path / f"attempt-{number}").stat().st_mode for number in range(2)}
    assert len(modes) == 1  # the command keeps the umask that it was given


def test_a_command_of_which_no_rank_was_seen_fails_once(tmp_path: Path) -> None:
    assert start(tmp_path, "", command=("sh", "-c", "exit 7")).wait(60) == 7
    assert words(tmp_path) == [("refused", "never_started")]
