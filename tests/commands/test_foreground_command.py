"""The command must not notice that it is watched: exit status, signals exactly once, terminal, dispositions."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: Starts argv as ``whichrank run`` does, prints what was seen of signals, ends as the command ended.
PARENT = """
import os, sys
from whichrank.commands.run.foreground_command import CommandNotStarted, ForegroundCommand
try:
    command = ForegroundCommand(sys.argv[2:], dict(os.environ))
except CommandNotStarted as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
open(sys.argv[1] + ".parent", "w").write(f"{os.getpid()} {command.pid}")
command.wait()
with open(sys.argv[1] + ".seen", "w") as seen:
    while not command.signals.empty():
        one = command.signals.get()
        seen.write(f"{one.number} {one.passed_on}\\n")
        open(sys.argv[1] + ".came", "w").write(str(one.mono_ns))
command.exit_as_it_did()
"""
#: Counts how often a signal arrives; ready once the file exists.
CHILD = """
import pathlib, signal, sys, time
path, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
count = 0
def handle(*_):
    global count
    count += 1
    path.with_suffix(".handled").write_text(str(time.monotonic_ns()))
signal.signal(number, handle)
path.with_suffix(".ready").touch()
end = time.monotonic() + 60
while not count and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.8)
print("count", count, flush=True)
sys.exit(40 + count)
"""


def start(tmp_path: Path, *command: str, **options: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "x"), *command]
    return subprocess.Popen(argv, **options)  # type: ignore[call-overload,no-any-return]


def until(path: Path, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def counting_child(tmp_path: Path, number: int) -> list[str]:
    return [sys.executable, "-c", CHILD, str(tmp_path / "x"), str(int(number))]


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_the_commands_own(tmp_path: Path, code: int) -> None:
    assert start(tmp_path, "sh", "-c", f"exit {code}").wait() == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGABRT])
def test_death_by_a_signal_is_passed_up_as_one(tmp_path: Path, number: int) -> None:
    assert start(tmp_path, "sh", "-c", f"kill -{int(number)} $$").wait() == -number


@pytest.mark.parametrize(("command", "code"), [("./is-not-there", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_start_reads_as_in_a_shell(tmp_path: Path, command: str, code: int) -> None:
    parent = start(tmp_path, command, stderr=subprocess.PIPE)
    _, errors = parent.communicate()
    assert parent.returncode == code
    assert command.encode() in errors


def test_streams_are_the_commands_own(tmp_path: Path) -> None:
    parent = start(
        tmp_path, "sh", "-c", "cat; echo err >&2", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert parent.communicate(b"through\n") == (b"through\n", b"err\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_us_alone_reaches_the_command_once(tmp_path: Path, number: int) -> None:
    parent = start(tmp_path, *counting_child(tmp_path, number), start_new_session=True)
    until(tmp_path / "x.ready")
    before_ns = time.monotonic_ns()
    os.kill(parent.pid, number)
    assert parent.wait() == 41
    assert (tmp_path / "x.seen").read_text() == f"{int(number)} True\n"
    # What the command does about it (frameworks talk to each other then) comes after it in the order of things.
    assert before_ns <= int((tmp_path / "x.came").read_text()) < int((tmp_path / "x.handled").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_reaches_the_command_once(tmp_path: Path, number: int) -> None:
    parent = start(tmp_path, *counting_child(tmp_path, number), start_new_session=True)
    until(tmp_path / "x.ready")
    os.killpg(parent.pid, number)
    assert parent.wait() == 41
    assert (tmp_path / "x.seen").read_text() == f"{int(number)} False\n"


def test_ctrl_c_on_the_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        argv = [sys.executable, "-c", PARENT, str(tmp_path / "x"), *counting_child(tmp_path, signal.SIGINT)]
        os.execv(sys.executable, argv)
    until(tmp_path / "x.ready")
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41


def test_ignored_signals_stay_ignored_and_broken_pipes_kill_as_usual(tmp_path: Path) -> None:
    ignoring = "import signal, os, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, {})"
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "x"), "grep", "SigIgn", "/proc/self/status"]
    shown = subprocess.run([sys.executable, "-c", ignoring.format(argv)], stdout=subprocess.PIPE, check=True).stdout
    ignored = int(shown.split()[1], 16)
    assert ignored & (1 << (signal.SIGHUP - 1)), "nohup holds for the command too"
    assert not ignored & (1 << (signal.SIGPIPE - 1)), "the interpreter's own SIGPIPE setting is not passed on"


def test_kill_minus_nine_of_us_leaves_the_command_running_and_no_witness(tmp_path: Path) -> None:
    parent = start(tmp_path, "sh", "-c", f"sleep 1; touch {tmp_path}/done", start_new_session=True)
    until(tmp_path / "x.parent")
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    until(tmp_path / "done", 10)
    deadline = time.monotonic() + 5
    while _members_of_group(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _members_of_group(parent.pid) == []


def _members_of_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found
