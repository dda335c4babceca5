"""Is lost work exact? Jobs that save in each way are killed at random moments, and what is told is compared with truth.

Each run: two ranks under ``whichrank run``, which train, save every few steps to storage that takes its time, and write
down themselves which steps they made and from which one they went on. One of them gets a SIGKILL at a moment that is
drawn, also between staged and durable; the same command is started once more, and goes on from the newest checkpoint
that is whole. ``whichrank goodput`` has to say the same number of lost steps; where a rank was killed between the two
lines that it writes before and after the optimizer's step, nobody knows whether that was made, and both are right.
Those of frameworks run where these are installed (``make setup-frameworks``), and are told as not run elsewhere. Run:
``python -m benchmarks.checkpoint_truth [--runs 20] [--only WAY] [--seed 1]``. Exit status 1 on SHORT.
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

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ports import free_ports
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine, not_run

from .checkpoint_frameworks import WAYS as OF_FRAMEWORKS
from .checkpoint_frameworks import is_here
from .checkpoint_training import WAYS

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(Path(sys.executable).with_name("whichrank"))
STEPS, EVERY = 60, 10
RANKS = 2
LIMIT_S = 180.0
#: The kill comes at a step between these, and so much later.
FIRST_KILL, LAST_KILL, LATER_S = 15, 45, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """told: lost steps; None: not known. least, most: truly; the same but where a rank was killed in between."""

    way: str
    told: int | None
    least: int | None = None
    most: int | None = None
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether both are known and equal."""
        return None not in (self.told, self.least) and self.told in (self.least, self.most)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs and prints the lines. The exit status is 1 where a line is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_truth", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="kills of each way of saving")
    parser.add_argument(
        "--only", action="append", choices=(*WAYS, *OF_FRAMEWORKS), help="this way of saving, again for more"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    lines = []
    for way in options.only or (*WAYS, *OF_FRAMEWORKS):
        if way in OF_FRAMEWORKS and not is_here(way):
            lines.append(not_run(f"{way}: lost steps exact after a SIGKILL", "all", f"no {OF_FRAMEWORKS[way]}"))
            continue
        outcomes = []
        for number in range(options.runs):
            outcome = one_run(way, draw.randrange(FIRST_KILL, LAST_KILL), draw.random() * LATER_S, number % RANKS)
            outcomes.append(outcome)
            said = "right" if outcome.ok else "WRONG"
            told = f"told {outcome.told}, true {outcome.least}"
            print(f"  {way} {number + 1}/{options.runs}: {said}, {told} {outcome.why}", file=sys.stderr, flush=True)
        right = sum(outcome.ok for outcome in outcomes)
        lost = [outcome.least for outcome in outcomes if outcome.least is not None]
        unsure = sum(outcome.least != outcome.most for outcome in outcomes)
        lines.append(
            ScoreLine(
                name=f"{way}: lost steps exact after a SIGKILL",
                asked="all",
                measured=f"lost {min(lost, default=0)} to {max(lost, default=0)} steps; {unsure} within a step's end",
                share=f"{right} of {len(outcomes)}",
                ok=right == len(outcomes),
            )
        )
        print_lines(lines[-1:])
    print_lines(lines, "lost work against truth")
    print(in_short(lines))
    return exit_code(lines)


def one_run(way: str, kill_step: int, later_s: float, victim: int) -> Outcome:
    """One job, killed once. kill_step: of the victim, after which it has later_s more to live."""
    with tempfile.TemporaryDirectory(prefix="whichrank-truth-") as name:
        folder = Path(name)
        launch = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"),
            *(
                "--master-port",
                "{port}",
                str(ROOT / "benchmarks" / f"checkpoint_{'frameworks' if way in OF_FRAMEWORKS else 'training'}.py"),
                way,
                str(folder),
                str(STEPS),
            ),
            str(EVERY),
        ]
        first, second = (" ".join(launch).format(port=port) for port in free_ports(2))
        command = [PROGRAM, "run", "--out", str(folder / "run"), "--view", "none", "--"]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [*command, "bash", "-c", f"{first} || {second}"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("wb"),
            start_new_session=True,
        ) as job:
            try:
                pid = _pid_at(folder / f"truth-{victim}.jsonl", kill_step, LIMIT_S / 2, job)
                time.sleep(later_s)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                job.wait(LIMIT_S)
            except (TimeoutError, subprocess.TimeoutExpired) as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
                return Outcome(way=way, told=None, why=f"{error}; {_last_line(folder / 'log')}")
        told = _told(folder / "run")
        least, most = _truth(folder)
        return Outcome(
            way=way, told=told, least=least, most=most, why=_last_line(folder / "log") if told is None else ""
        )


def _pid_at(file: Path, step: int, limit_s: float, job: subprocess.Popen[bytes]) -> int:
    """The process that has made this step. Raises TimeoutError."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until and job.poll() is None:
        for line in _lines(file):
            if line.get("done", 0) >= step:
                return int(line["pid"])
        time.sleep(0.02)
    raise TimeoutError(f"step {step} was not made within {limit_s:.0f} s")


def _lines(file: Path) -> Iterator[dict[str, int]]:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _truth(folder: Path) -> tuple[int | None, int | None]:
    """Lost steps, at least and at most; None: the second start never came."""
    done, begun, resumed = [], [], None
    for rank in range(RANKS):
        made = tried = 0
        for line in _lines(folder / f"truth-{rank}.jsonl"):
            if "resumed" in line and made:
                resumed = line["resumed"]
                break
            made, tried = line.get("done", made), line.get("doing", tried)
        done.append(made)
        begun.append(max(made, tried))
    return (None, None) if resumed is None else (min(done) - resumed, min(begun) - resumed)


def _told(run: Path) -> int | None:
    command = [PROGRAM, "goodput", str(run), "--json"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False).stdout
    with contextlib.suppress(ValueError, KeyError):
        interruptions = [each for one in json.loads(said)["runs"] for each in one["interruptions"] if each["went_on"]]
        if len(interruptions) == 1:
            return int(interruptions[0]["lost_steps"])
    return None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1][:200] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
