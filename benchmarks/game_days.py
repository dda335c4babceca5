"""Are injected faults found? ``whichrank inject`` in real torchrun jobs of two to four ranks, every kind several times.

A run is right if the verdict is (kind and rank, by the command's own comparison), if what can be undone was, and if a
job whose fault was undone trains on afterwards. Disks are file systems of their own (tmpfs, ext4 in a file), the log of
the kernel is played, the port is one of two network namespaces with half of the job each: these take root. Run:
``python -m benchmarks.game_days [--runs 3] [--only KIND] [--seed N]``. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.game_day_nodes import JobOnTwoNodes
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine
from whichrank.telemetry.injection_words import ALLOW_VARIABLE

TRAINING = Path(__file__).with_name("game_day_training.py")
PROGRAM = [sys.executable, "-m", "whichrank.commands.main"]
STEPS, START_S, LIMIT_S, GOES_ON_S = 20_000, 120.0, 200.0, 30.0
#: Kinds that end the job; the others are done to a job that has to train on afterwards.
ENDING = ("kill", "raise", "skip-collective", "add-collective", "full-disk", "kernel-line", "port-down")
KINDS: Sequence[str] = ("stop", "slow", "nan", "slow-disk", *ENDING)
NEED_ROOT = ("slow-disk", "full-disk", "port-down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """seconds: from the fault to the verdict, None: none came. kind: of the incident. why: what was wrong, or ""."""

    seconds: float | None
    why: str
    kind: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the game days and prints the lines. The exit status is 1 where a line is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.game_days", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind, again for more")
    parser.add_argument("--seed", type=int, default=1, help="draws ranks and worlds")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    lines = []
    for kind in options.only or KINDS:
        if kind in NEED_ROOT and os.geteuid() != 0:
            lines.append(ScoreLine(name=kind, asked="right", measured="takes root", share="-", is_run=False))
            continue
        results = [one_day(kind, draw) for _ in range(options.runs)]
        for result in results:
            if result.why:
                print(f"WRONG: {kind}: {result.why}", flush=True)
        lines.append(_line(kind, results))
        print_lines(lines[-1:])
    if not options.only:
        lines.append(_refused(options.runs))
    print_lines(lines, "game days")
    print(in_short(lines))
    return exit_code(lines)


def _line(kind: str, results: Sequence[Result]) -> ScoreLine:
    right = sum(not result.why for result in results)
    seconds = sorted(result.seconds for result in results if result.seconds is not None)
    kinds = ", ".join(sorted({result.kind for result in results if result.kind}))
    shown = f"{kinds} after {seconds[0]:.1f} to {seconds[-1]:.1f} s" if seconds else "not seen"
    asked = "verdict right" if kind in (*ENDING, "nan") else "verdict right, undone, trains on"
    return ScoreLine(
        name=kind, asked=asked, measured=shown, share=f"{right} of {len(results)}", ok=right == len(results)
    )


def one_day(kind: str, draw: random.Random) -> Result:
    """One fault in one job."""
    world = draw.choice((2, 2, 3, 4))
    rank = 0 if kind in ("slow-disk", "full-disk") else draw.randrange(world)  # who saves
    with tempfile.TemporaryDirectory(prefix="whichrank-game-day-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        try:
            if kind == "port-down":
                return _on_two_nodes(folder, stack)
            words, environ, saves = _set_up(kind, folder, stack)
            training = [str(TRAINING), str(STEPS), saves, "5" if kind == "slow-disk" else "20"]
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
            words = ["inject", kind, "--json", "--rank", str(rank), *words]
            if kind in ENDING:
                told = _told([*words, "--out", str(folder / "run"), "--", *torchrun, *training], environ, folder)
                return _judged(kind, told)
            job = stack.enter_context(_running(folder, [*torchrun, *training], environ))
            told = _told([*words, "--job", _job_id(folder / "run", job)], environ, folder)
            result = _judged(kind, told)
            if not result.why and not _trains_on(folder / "run.log"):
                return Result(seconds=result.seconds, why="the job does not train on")
            return result
        except (TimeoutError, RuntimeError, subprocess.SubprocessError) as error:
            return Result(seconds=None, why=f"{error}")


def _judged(kind: str, told: dict[str, Any]) -> Result:
    why = "" if told["ok"] else f"{told['answer']}: {'; '.join(told['wrong'])} ({told['target']})"
    if kind in ("stop", "slow", "slow-disk", "full-disk", "port-down") and told["undone"] is not True:
        why = why or "it was not undone"
    kind = "" if told["verdict"] is None else str(told["verdict"]["kind"])
    return Result(seconds=told["seen_after_s"], why=why, kind=kind)


def _set_up(kind: str, folder: Path, stack: contextlib.ExitStack) -> tuple[list[str], dict[str, str], str]:
    """Options, environment, and the folder of the job's checkpoints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
    environ = {**kept, "OMP_NUM_THREADS": "1", ALLOW_VARIABLE: "1"}
    log = folder / "kern.log"
    log.touch()
    environ["WHICHRANK_KERNEL_LOG"] = str(log)
    if kind == "kernel-line":
        return ["--kernel-log", str(log)], environ, "-"
    if kind in ("full-disk", "slow-disk"):
        disk = stack.enter_context(_disk(folder, in_memory=kind == "full-disk"))
        return ["--path", str(disk)], environ, str(disk)
    return [], environ, "-"


@contextlib.contextmanager
def _disk(folder: Path, *, in_memory: bool) -> Iterator[Path]:
    """A disk of its own."""
    place = folder / "disk"
    place.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=700", "tmpfs", str(place)]
    if not in_memory:
        with (folder / "disk.img").open("wb") as image:
            image.truncate(160 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(folder / "disk.img")], check=True)
        mount = ["mount", "-o", "loop", str(folder / "disk.img"), str(place)]
    subprocess.run(mount, check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def _running(folder: Path, command: Sequence[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A job under ``whichrank run``, ended afterwards; what it prints is in run.log."""
    words = [*PROGRAM, "run", "--out", str(folder / "run"), "--view", "none", "--", *command]
    with (folder / "run.log").open("wb") as log:
        job = subprocess.Popen(words, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield job
    finally:
        job.terminate()
        try:
            job.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def _job_id(run: Path, job: subprocess.Popen[bytes]) -> str:
    """Raises TimeoutError where it does not begin."""
    deadline = time.monotonic() + START_S
    while not (run / "run.json").exists():
        if time.monotonic() > deadline or job.poll() is not None:
            raise TimeoutError(f"{run}: no job has begun")
        time.sleep(0.1)
    return Path(json.loads((run / "run.json").read_text())["ring_directory"]).name


def _told(words: Sequence[str], environ: dict[str, str], folder: Path) -> dict[str, Any]:
    """What the command says as JSON. Raises RuntimeError where it says nothing, subprocess.SubprocessError."""
    with (folder / "inject.log").open("wb") as log:
        done = subprocess.run(
            [*PROGRAM, *words],
            env=environ,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=LIMIT_S,
            check=False,
        )
    for line in done.stdout.decode().splitlines():
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
    raise RuntimeError(f"exit status {done.returncode}: {(folder / 'inject.log').read_text()[-400:]}")


def _trains_on(log: Path) -> bool:
    """Whether the job comes further by 50 steps."""
    before, deadline = _last_step(log), time.monotonic() + GOES_ON_S
    while time.monotonic() < deadline:
        if _last_step(log) > before:
            return True
        time.sleep(0.2)
    return False


def _last_step(log: Path) -> int:
    steps = [line.split()[1] for line in log.read_text(errors="replace").splitlines() if line.startswith("step ")]
    return max((int(step) for step in steps if step.isdigit()), default=-1)


def _on_two_nodes(folder: Path, stack: contextlib.ExitStack) -> Result:
    """Half of the job in each of two network namespaces; the second one's port goes down."""
    job = stack.enter_context(JobOnTwoNodes(folder, [str(TRAINING), str(STEPS), "-", "20"]))
    port = ["--namespace", job.names[1], "--port", job.port]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
    words = ["inject", "port-down", "--json", *port, "--job", _job_id(folder / "node-0", job.judge)]
    return _judged("port-down", _told(words, environ, folder))


def _refused(runs: int) -> ScoreLine:
    """A job that does not allow it."""
    refused = 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="whichrank-game-day-") as name:
            folder = Path(name)
            environ = {each: value for each, value in os.environ.items() if not each.startswith("WHICHRANK_")}
            environ["OMP_NUM_THREADS"] = "1"
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            with _running(folder, [*torchrun, str(TRAINING), str(STEPS), "-", "20"], environ) as job:
                deadline = time.monotonic() + START_S
                while _last_step(folder / "run.log") < 0 and time.monotonic() < deadline:
                    time.sleep(0.2)
                words = [*PROGRAM, "inject", "kill", "--job", _job_id(folder / "run", job)]
                done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
                is_whole = _trains_on(folder / "run.log")
                refused += done.returncode == 2 and ALLOW_VARIABLE in done.stderr and is_whole
    return ScoreLine(
        name="a job that does not allow it",
        asked="refused, trains on",
        measured=f"{refused} refused",
        share=f"{refused} of {runs}",
        ok=refused == runs,
    )


if __name__ == "__main__":
    sys.exit(main())
