"""What the root agent opens beside a hostile user, as the kernel saw it: strace over a whole life of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.attacks.node import ring, secret_of_root, shared_node
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, living_as, run_as
from whichrank.agents.collectors.surroundings.rank_environments import RankEnvironment
from whichrank.agents.collectors.surroundings.rank_software import rank_software

_KEPT: list[object] = []
_AGENT = """
import os, sys, time
from pathlib import Path
from tests.attacks.node import SharedNode
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.job_logs import JobLogsCollector
from whichrank.agents.collectors.processes.job_process import JobProcess
from whichrank.agents.collectors.surroundings.versions_collector import VersionsCollector
from whichrank.agents.user_files.capabilities import keep_needed
keep_needed()
folder, rings, home, seconds = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
node = SharedNode(folder, rings)
agent = node.watch(take_stacks=True, ended_ring_bytes=1 << 20)
ranks = lambda: [JobProcess(pid=pid, job="j", rank=0) for pid in agent.rank_processes]
logs = JobLogsCollector(lambda lines, now: [], ranks, [home + "/*/logs/*.log"])
versions = VersionsCollector()
end, turn = time.monotonic() + seconds, 0
while time.monotonic() < end:
    agent.turn()
    now = Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())
    logs.collect(now)
    if turn % 20 == 0:
        for action in ("log_tail", "flight_recorder", "ring", "history", "stack"):
            node.ask(action, turn)
        versions.collect(now)
    turn += 1
    time.sleep(0.2)
logs.close()
agent.close(5.0)
print("seen", len(node.messages), flush=True)
"""
_CALLS = (
    "open,openat,openat2,unlink,unlinkat,rename,renameat,renameat2,readlink,readlinkat,"
    "setresuid,execve,clone,clone3,vfork,fork"
)
_LINE = re.compile(r"^(\d+)\s+(\w+)\((.*)\)\s+= (\d+|-1 \w+)")
_UNFINISHED = re.compile(r"^(\d+)\s+(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+)\s+<\.\.\. (\w+) resumed>(.*)$")
_PROC = re.compile(r"^/proc/\d+/(root|cwd|fd|map_files)(/|$)")


def _whole_lines(trace: Path) -> list[str]:
    """Calls that another thread's has cut in two, put together again."""
    lines, halves = [], {}
    for line in trace.read_text(errors="replace").splitlines():
        if half := _UNFINISHED.match(line):
            halves[half[1]] = f"{half[1]} {half[2]}({half[3]}"
        elif (rest := _RESUMED.match(line)) and rest[1] in halves:
            lines.append(halves.pop(rest[1]) + rest[3])
        else:
            lines.append(line)
    return lines


def _violations(trace: Path, below: list[str]) -> tuple[list[str], int]:
    """Calls with uid 0 that name something below these folders, or of another process; and how many were looked at."""
    uid_of: dict[str, int] = {}
    parent_of: dict[str, str] = {}
    of_root: set[str] = set()  # helpers of root's own processes, which have no right over others'
    found, looked_at = [], 0

    def uid(pid: str) -> int:
        while pid not in uid_of and pid in parent_of:
            pid = parent_of[pid]
        return uid_of.get(pid, 0)

    for line in _whole_lines(trace):
        call = _LINE.match(line)
        if call is None:
            continue
        pid, name, words, result = call.groups()
        if name in ("clone", "clone3", "vfork", "fork") and result.isdecimal():
            parent_of[result] = pid
        elif name == "setresuid" and result == "0":
            uid_of[pid] = int(words.split(",")[0])
            of_root.update([pid] if uid_of[pid] == 0 else [])
        elif name not in ("setresuid", "execve") and uid(pid) == 0:
            looked_at += 1
            for folder, path in re.findall(r'(?:(?:\d+|AT_FDCWD)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"', words):
                whole = path if path.startswith("/") else f"{folder}/{path}"
                if (_PROC.match(whole) and pid not in of_root) or any(whole.startswith(f"{place}/") for place in below):
                    found.append(f"{name} {whole}")
    return found, looked_at


def _traced(folder: Path, seconds: float) -> Outcome:
    if shutil.which("strace") is None:
        return Outcome(held=False, measured="strace is not installed")
    secret = secret_of_root(folder)
    home = folder / "home"
    (home / "eve").mkdir(parents=True)
    os.chown(home / "eve", EVE, EVE)
    with shared_node(folder) as node:
        mine = node.user_folder(EVE)
        theirs = node.user_folder(QUINN)

        def hostile() -> None:
            os.chdir(home / "eve")
            os.symlink(secret, ".git")
            os.mkdir("logs")
            for name in ("own.log", "more.log"):
                Path("logs", name).write_text("a line\n")
            os.symlink(secret, "logs/secret.log")
            log = os.open("out.log", os.O_CREAT | os.O_RDWR, 0o600)
            os.write(log, b"what the rank says\n" * 100)
            os.dup2(log, 1)
            os.dup2(os.open(secret, os.O_PATH), 2)
            os.mkdir(mine / "job", 0o700)
            _KEPT.append(ring(mine / "job", 0, 2))
            second = ring(mine / "job", 1, 2)
            second.record_exception("builtins.ValueError: x", [("x.py", 1, "f")], True)
            _KEPT.append(second)
            environ = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCH_FR_DUMP_TEMP_FILE": "trace_"}
            subprocess.Popen(["/bin/sleep", "600"], env=environ)  # found by its environment
            for number in range(20):
                os.mkdir(mine / f"empty-{number}")
            os.symlink("/", mine / "root")

        trace = folder / "trace"
        with living_as(EVE, hostile), living_as(QUINN, lambda: _KEPT.append(ring(theirs))):
            strace = ["strace", "-f", "-y", "-qq", "-s", "4096", "-e", f"trace={_CALLS}", "-o", str(trace)]
            words = [str(folder), str(node.rings), str(home), str(seconds)]
            command = [*strace, sys.executable, "-c", _AGENT, *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
                end_s = time.monotonic() + seconds + 60
                while agent.poll() is None and time.monotonic() < end_s:
                    time.sleep(1.0)

                    def swap() -> None:
                        with contextlib.suppress(OSError):
                            (mine / "job").rename(mine / "old")
                            (mine / "job").symlink_to(theirs)

                    run_as(EVE, swap)
                if agent.poll() is None:
                    agent.send_signal(signal.SIGTERM)
                said, errors = agent.communicate()
        found, looked_at = _violations(trace, [str(node.rings), str(home / "eve")])
    ended_well = said.startswith("seen ") and not said.startswith("seen 0")
    first = f": {found[0]}" if found else ""
    last = "" if ended_well else f"; the agent: {errors.strip().splitlines()[-1:]}"
    measured = f"{looked_at} calls with uid 0, {len(found)} by users' names{first}{last}"
    return Outcome(held=ended_well and not found and looked_at > 100, measured=measured[:300])


@attack("S1", "a", "the root agent is traced beside a hostile user, for 15 seconds",
        asked="nothing by a user's names with uid 0", limit_s=150)  # fmt: skip
def traced(folder: Path) -> Outcome:
    return _traced(folder, 15.0)


@attack("S2", "a", "the same for five minutes", asked="the same", limit_s=500, long=True)
def traced_long(folder: Path) -> Outcome:
    return _traced(folder, 300.0)


@attack("A3", "a", "the rank's folder has .git, which is a link to a root-only device",
        asked="root opens regular files only", limit_s=30)  # fmt: skip
def git_is_a_device(folder: Path) -> Outcome:
    device = folder / "watchdog"
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
    home = folder / "eve"
    home.mkdir()
    os.chown(home, EVE, EVE)
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, os.fsencode(device), 0x20)  # IN_OPEN

    def act() -> None:
        os.chdir(home)
        os.symlink(device, ".git")

    with living_as(EVE, act) as pid:
        for _ in range(3):
            found = rank_software(Path("/proc"), RankEnvironment(pid, {}))
    opened = 0
    with contextlib.suppress(BlockingIOError):
        opened = len(os.read(watch, 4096)) // 16
    return Outcome(held=not opened and "code" not in found, measured=f"opened {opened} times")
