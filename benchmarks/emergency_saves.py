"""Do emergency saves come, whole, of one step, wherever they can? Real jobs of three ranks are asked in all ways.

Each run: a small training of torchrun under ``whichrank run``, whose ranks call ``whichrank.on_checkpoint`` and write
down their weights after each step. A save is right if all ranks that live have saved the weights of one and the same
step; what cannot be saved has to be told as an incident, and nothing else. Run:
``python -m benchmarks.emergency_saves [--runs 3] [--only WAY]``. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ports import free_ports
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(Path(sys.executable).with_name("whichrank"))
RANKS, STEPS, FIRST_STEP, HANG_STEP = 3, 160, 20, 30
START_S, LIMIT_S = 90.0, 90.0
KIND = "emergency_save_missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a save is asked for. signalled: ranks that get a SIGTERM. dead: gets a SIGKILL, hung: stands still (-1 none).

    commands: how often ``checkpoint-now`` is called. by_store: the ranks agree as over several nodes. saves: how many
    of them must come, from all but the dead.
    """

    asked: str
    signalled: tuple[int, ...] = ()
    dead: int = -1
    hung: int = -1
    commands: int = 0
    ends_run: bool = False
    limit_s: float = 0.0
    by_store: bool = False
    saves: int = 1


WAYS: Mapping[str, Way] = {
    "one": Way(asked="SIGTERM to one rank", signalled=(1,)),
    "some": Way(asked="SIGTERM to two ranks", signalled=(0, 2)),
    "all": Way(asked="SIGTERM to the whole job", ends_run=True),
    "store": Way(asked="SIGTERM to one rank, agreed in the store", signalled=(1,), by_store=True),
    "command": Way(asked="checkpoint-now", commands=1),
    "twice": Way(asked="checkpoint-now, twice", commands=2, saves=2),
    "limit": Way(asked="a time limit of Slurm is near", limit_s=200.0),
    "dead": Way(asked="a rank is killed: the others", dead=2),
    "hung": Way(asked="SIGTERM to one rank, another hangs: told", signalled=(1,), hung=2, saves=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """saves: how many came from all that live, each of one step. seconds: from the asking to the last of the first one.

    is_told: there is an incident about ranks that did not save.
    """

    saves: int
    seconds: float
    is_told: bool
    why: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs and prints the lines. The exit status is 1 where a line is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emergency_saves", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each way of asking")
    parser.add_argument("--only", action="append", choices=list(WAYS), help="this way of asking, again for more")
    options = parser.parse_args(arguments)
    lines = []
    for name in options.only or WAYS:
        way, outcomes = WAYS[name], []
        for _ in range(options.runs):
            outcome = one_run(way)
            outcomes.append(outcome)
            if not _is_right(way, outcome):
                print(f"WRONG: {name}: {outcome}", flush=True)
        right, slowest = sum(_is_right(way, each) for each in outcomes), max(each.seconds for each in outcomes)
        lines.append(
            ScoreLine(
                name=way.asked,
                asked="not whole: told" if way.dead >= 0 or way.hung >= 0 else "whole, nothing told",
                measured=f"saved within {slowest:.1f} s" if way.saves else "nothing can be saved",
                share=f"{right} of {len(outcomes)}",
                ok=right == len(outcomes),
            )
        )
    print_lines(lines, "emergency saves")
    print(in_short(lines))
    return exit_code(lines)


def _is_right(way: Way, outcome: Outcome) -> bool:
    return outcome.saves == way.saves and outcome.is_told == (way.dead >= 0 or way.hung >= 0) and not outcome.why


def one_run(way: Way) -> Outcome:
    """One job that is asked in this way."""
    with tempfile.TemporaryDirectory(prefix="whichrank-emergency-") as name:
        folder = Path(name)
        script = str(ROOT / "benchmarks" / "emergency_training.py")
        words = [folder, STEPS, way.hung, HANG_STEP if way.hung >= 0 else -1]
        launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--master-port"]
        launch += [str(free_ports(1)[0]), script, *map(str, words)]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if way.by_store:
            environ["EMERGENCY_BY_STORE"] = "1"
        if way.limit_s:
            environ["SLURM_JOB_END_TIME"] = str(int(time.time() + way.limit_s))
        with subprocess.Popen(
            [PROGRAM, "run", "--out", str(folder / "run"), "--view", "none", "--", *launch],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("wb"),
            start_new_session=True,
        ) as job:
            try:
                asked_s = _ask(way, folder, job)
                job.wait(LIMIT_S)
            except (TimeoutError, subprocess.SubprocessError) as error:
                return Outcome(saves=0, seconds=0.0, is_told=False, why=f"{error}; {_end_of(folder / 'log')}")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
        return _outcome(way, folder, asked_s)


def _ask(way: Way, folder: Path, job: subprocess.Popen[bytes]) -> float:
    """Asks once all ranks train; returns when, Unix seconds. Raises TimeoutError, subprocess.SubprocessError."""
    _wait_for(job, lambda: all(_last_step(folder, rank) >= FIRST_STEP for rank in range(RANKS)))
    if way.hung >= 0:
        _wait_for(job, lambda: any("hangs" in line for line in _lines(folder, way.hung)))
        time.sleep(1.0)
    pids = {rank: int(next(_lines(folder, rank))["pid"]) for rank in range(RANKS)}
    asked_s = time.time()
    for rank in way.signalled:
        os.kill(pids[rank], signal.SIGTERM)
    if way.dead >= 0:
        os.kill(pids[way.dead], signal.SIGKILL)
    if way.ends_run:
        job.send_signal(signal.SIGTERM)
    for number in range(way.commands):
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [PROGRAM, "checkpoint-now", str(folder / "run"), "--seconds", "20"]
        subprocess.run(command, env=environ, timeout=60, check=True, stdout=subprocess.DEVNULL)
        saves = number + 1
        _wait_for(job, lambda saves=saves: len(_saves(folder, 0)) >= saves)
    return asked_s


def _outcome(way: Way, folder: Path, asked_s: float) -> Outcome:
    alive = [rank for rank in range(RANKS) if rank != way.dead]
    saved = [_saves(folder, rank) for rank in alive]
    count = min(map(len, saved))
    whole = [each["whole"] for line in saved for each in line]
    why = ""
    if any(len(each) != count for each in saved) or any(
        len({each[n]["saved"] for each in saved}) > 1 for n in range(count)
    ):
        why = f"ranks saved different weights: {saved}"
    elif whole and set(whole) != {way.dead < 0}:
        why = f"said to be whole: {whole}"
    first_s = max((line[0]["time"] for line in saved if line), default=asked_s)
    return Outcome(saves=count, seconds=max(0.0, first_s - asked_s), is_told=_is_told(folder / "run"), why=why)


def _saves(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [line for line in _lines(folder, rank) if "saved" in line]


def _last_step(folder: Path, rank: int) -> int:
    return max((int(line["step"]) for line in _lines(folder, rank) if "step" in line), default=0)


def _lines(folder: Path, rank: int) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for line in (folder / f"truth-{rank}.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _is_told(run: Path) -> bool:
    return any(json.loads(line).get("kind") == KIND for line in (run / "incidents.jsonl").read_text().splitlines())


def _wait_for(job: subprocess.Popen[bytes], happens: Any) -> None:
    until_s = time.monotonic() + START_S
    while not happens():
        if time.monotonic() > until_s or job.poll() is not None:
            raise TimeoutError(f"it did not come so far (exit status {job.poll()})")
        time.sleep(0.05)


def _end_of(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:])[-400:]


if __name__ == "__main__":
    sys.exit(main())
