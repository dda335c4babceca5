"""Checkpoints near the job (``whichrank.checkpoint``): what they hold up, and whether what comes back is whole.

    python -m benchmarks.near_checkpoints [--kills 20] [--losses 5] [--mebibytes 1024] [--seed 1] [--only ROW]

``blocked``: one rank saves a state of 1 GiB; beside it, in turns, one copy into buffers that are warm, and a
``torch.save`` that is synced to disk. ``lost``: four ranks on two nodes (folders of slots); a node's processes are
killed and its folder removed; started again, each rank has to have the bits that were saved. ``killed``: the same job
gets SIGKILLs, all ranks and writers, at random moments of saves, copies and uploads; in each fourth the slots of both
nodes are lost as well, so that storage has to do. What is restored must be one step's, whole, and none older than what
was known to be whole. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.report import Report

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
TRAINING = str(ROOT / "benchmarks" / "near_training.py")
ROWS = ("blocked", "lost", "killed")
RANKS, START_S = 4, 90.0
#: Of the state of each rank that is killed: large enough that a save, a copy and an upload take a while.
KILLED_MEBIBYTES = 48

_BLOCKED = """
import json, os, sys, tempfile, time, torch
from pathlib import Path
from whichrank.checkpoint import NearCheckpoints
folder, mebibytes, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
state = {"model": {str(i): torch.randn(mebibytes * (1 << 18) // 64) for i in range(64)}, "step": 0}
warm = [torch.zeros_like(each) for each in state["model"].values()]
near = NearCheckpoints("blocked", local=folder / "memory")
found = {"copy": [], "near": [], "saved": [], "again": []}
def copy(into):
    begin = time.perf_counter()
    for to, each in zip(warm, state["model"].values()):
        to.copy_(each)
    found[into].append(time.perf_counter() - begin)
for step in range(rounds + 4):
    copy("copy")
    outcome = near.save(state, step)
    assert outcome.is_taken, outcome
    found["near"].append(outcome.blocked_s)
    assert near.wait(120.0)
    copy("again")
    if step % 4 == 0:
        begin = time.perf_counter()
        with open(folder / "whole.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        found["saved"].append(time.perf_counter() - begin)
# The first ones make the pages of the slots.
print(json.dumps({"memory": near.memory_bytes(), **{k: (v if k == "saved" else v[4:]) for k, v in found.items()}}))
near.close()
"""


def look_at_blocked(report: Report, mebibytes: int, rounds: int) -> None:
    """One rank, one copy of it, one synced save; medians."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory() as disk:
        (Path(disk) / "memory").symlink_to(memory)
        command = [sys.executable, "-c", _BLOCKED, disk, str(mebibytes), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        report.failed("blocked", done.stderr.strip().splitlines()[-1] if done.stderr else "failed")
        return
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    copy, again, near = (statistics.median(found[name]) for name in ("copy", "again", "near"))
    report.shown(f"one copy of {mebibytes} MiB into warm buffers, before and after (s)", f"{copy:.3f}, {again:.3f}")
    report.shown("near save: median, quartiles (s)", f"{near:.3f}, {_quartiles(found['near'])}")
    report.shown("torch.save with fsync: median (s)", f"{statistics.median(found['saved']):.3f}")
    report.shown("memory of the slots, in states", f"{found['memory'] / (mebibytes << 20):.2f}")
    # In pairs: what else the machine does hits both.
    ratio = statistics.median(
        n / ((a + b) / 2) for n, a, b in zip(found["near"], found["copy"], found["again"], strict=True)
    )
    report.shown("control: the second copy, in first ones", f"{again / copy:.2f}")
    report.at_most("blocked, in copies (median of pairs)", 1.3, ratio, k=rounds, n=rounds)


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f} to {high:.3f}"


class Attempt:
    """One launch of the job."""

    def __init__(self, folder: Path, mebibytes: int, steps: int, pause_s: float, ranks: int = RANKS) -> None:
        self._log = (folder / "launch.log").open("ab")
        self._process = subprocess.Popen(
            [TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", TRAINING, str(folder), str(mebibytes), str(steps),
             str(pause_s)],
            stdout=self._log, stderr=self._log, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(Path(sys.executable).parents[1] / "typing"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def wait(self, limit_s: float) -> int | None:
        """Its exit status; None: not in time."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Ranks and writers first, then the launcher: nobody has time for anything."""
        try:
            found = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        for each in found:
            if each.is_running():
                os.kill(each.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._log.close()


def words(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank has written down; a line that was cut off is none."""
    found = []
    path = folder / f"rank-{rank}.jsonl"
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _last(folder: Path, rank: int, key: str) -> dict[str, Any]:
    return next((word for word in reversed(words(folder, rank)) if key in word), {})


def _wait_for(folder: Path, key: str, before: list[int], limit_s: float) -> bool:
    """Until each rank has written so many words of a sort more than before."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if all(sum(key in word for word in words(folder, rank)) > before[rank] for rank in range(RANKS)):
            return True
        time.sleep(0.05)
    return False


def _counts(folder: Path, key: str) -> list[int]:
    return [sum(key in word for word in words(folder, rank)) for rank in range(RANKS)]


def look_at_lost(report: Report, losses: int) -> None:
    """A node is gone between two attempts: bits as they were saved."""
    right, from_partner = 0, 0
    for number in range(losses):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            folder = Path(name)
            first = Attempt(folder, 32, 3, 0.5)
            ended = first.wait(START_S) == 0
            first.kill()
            before = [_last(folder, rank, "at") for rank in range(RANKS)]
            gone = number % 2
            shutil.rmtree(folder / f"node-{gone}", ignore_errors=True)
            shutil.rmtree(folder / "storage", ignore_errors=True)
            second = Attempt(folder, 32, 0, 0.0)
            ended = second.wait(START_S) == 0 and ended
            second.kill()
            after = [_last(folder, rank, "restored") for rank in range(RANKS)]
            lost = [rank for rank in range(RANKS) if 2 * rank // RANKS == gone]
            same = all(
                a.get("digest") and a.get("digest") == b.get("digest") for a, b in zip(before, after, strict=True)
            )
            right += ended and same
            from_partner += all(after[rank].get("source") == "partner" for rank in lost)
    report.all_of("a node lost: all ranks go on with the bits that were saved", right, losses)
    report.all_of("its ranks' parts came from partners", from_partner, losses)


def look_at_killed(report: Report, kills: int, seed: int) -> None:
    """The same folder over all kills."""
    draw = random.Random(seed)
    right, sources, problems = 0, {"local": 0, "partner": 0, "persistent": 0, "": 0}, []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        least, at_storage = 0, 0
        for number in range(kills + 1):
            before, seen = _counts(folder, "restored"), _counts(folder, "whole")
            attempt = Attempt(folder, KILLED_MEBIBYTES, 100_000, 0.15)
            has_begun = _wait_for(folder, "restored", before, START_S)
            got = [_last(folder, rank, "restored") for rank in range(RANKS)]
            if number:
                problem = _problem(got, least) if has_begun else "did not start again"
                right += not problem
                problems += [f"kill {number}: {problem}"] if problem else []
                sources[str(got[0].get("source", ""))] += 1
            if number == kills:
                attempt.kill()
                break
            is_all_lost = number % 4 == 3
            if _wait_for(folder, "whole", seen, 60.0):
                time.sleep(draw.uniform(0.0, 6.0 if is_all_lost else 2.5))
            attempt.kill()
            least = max(
                (word["whole"] or 0 for rank in range(RANKS) for word in words(folder, rank)[-30:] if "whole" in word),
                default=0,
            )
            at_storage = max(
                (int(each.parent.name[5:]) for each in folder.glob("storage/step-*/whichrank.json")), default=at_storage
            )
            if is_all_lost:
                for node in range(2):
                    shutil.rmtree(folder / f"node-{node}", ignore_errors=True)
                least = at_storage
            # Later attempts' steps count on from what was restored, and may be below those of attempts that were lost.
            for rank in range(RANKS):
                (folder / f"rank-{rank}.jsonl").write_text("")
    for line in problems[:5]:
        report.shown(line.partition(":")[0], line.partition(": ")[2])
    report.shown("restored from", ", ".join(f"{name or 'nothing'} {count}" for name, count in sources.items()))
    report.all_of(
        "killed at random moments: one step's state, whole, not older than what was known to be whole", right, kills
    )


def _problem(got: list[dict[str, Any]], least: int) -> str:
    if len({each.get("step") for each in got}) != 1:
        return f"steps {[each.get('step') for each in got]}"
    if not all(each.get("is_right") and each.get("note") in (each.get("step"), -1) for each in got):
        return f"torn: {[(each.get('step'), each.get('is_right'), each.get('note')) for each in got]}"
    if (got[0].get("step") or 0) < least:
        return f"step {got[0].get('step')}, but {least} was whole"
    return ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.near_checkpoints")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--losses", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=16, help="saves that are timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=ROWS, help="this row, again for more")
    arguments = parser.parse_args()
    rows = arguments.only or ROWS
    report = Report("checkpoints near the job")
    if "blocked" in rows:
        look_at_blocked(report, arguments.mebibytes, arguments.rounds)
    if "lost" in rows:
        look_at_lost(report, arguments.losses)
    if "killed" in rows:
        look_at_killed(report, arguments.kills, arguments.seed)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
