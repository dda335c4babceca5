"""Does the job go on? Real torchrun jobs under ``whichrank run --restarts``, each with a fault, against the truth.

Two ranks (gloo; DDP, and FSDP2) train, save every few steps, and write down what they did. Where the truth says that a
restart helps (a hang, SIGKILL, SIGSTOP, an exception that passes) the run has to reach its last step by itself; where
it does not (an exception at one step each time) it has to stop and tell a person; what is healthy (a slow rank, rank 0
at work for 70 s, no fault) must not be touched. Losses after a restart have to be those of a run without a fault.
Run: ``python -m benchmarks.supervised_runs [--quick] [--only FAULT] [--rounds 1]``. Exit status 1 on SHORT.
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
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ports import free_ports
from whichrank.commands.incident_service.audit import AUDIT_FILE

from .report import Report

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(Path(sys.executable).with_name("whichrank"))
KINDS = ("ddp", "fsdp2")
HELPED, HOPELESS, HEALTHY = ("hang", "kill", "stop", "once"), ("always",), ("none", "slow", "evaluates")
QUICK = ("none", "hang", "always")
STEPS, EVERY, RANKS, RESTARTS = 150, 20, 2, 3
GRACE_S, LIMIT_S = 15.0, 400.0
#: The issue's bound: so long after a hang, its grace and its own start it trains again.
AGAIN_S = 20.0


@dataclass(slots=True, kw_only=True)
class Run:
    """What became of one run. losses: (step, loss) in order, of rank 0. again_s: from the fault to the next step."""

    kind: str
    fault: str
    exit_code: int
    ends: int = 0
    starts: int = 0
    restarts: int = 0
    acts: int = 0
    told: bool = False
    start_s: float = 0.0
    again_s: float | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)
    why: str = ""

    @property
    def reached(self) -> bool:
        """Whether all ranks have made the last step."""
        return self.exit_code == 0 and self.ends == RANKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs and prints the table. The exit status is 1 where a row is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.supervised_runs", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one kind of job, three faults: a look, not a result")
    parser.add_argument("--only", action="append", choices=(*HELPED, *HOPELESS, *HEALTHY), help="again for more")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each kind and fault")
    parser.add_argument("--seed", type=int, default=1, help="of the steps at which faults come")
    options = parser.parse_args(arguments)
    faults = options.only or (QUICK if options.quick else (*HEALTHY, *HELPED, *HOPELESS))
    draw = random.Random(options.seed)
    runs = []
    for kind in KINDS[:1] if options.quick else KINDS:
        for fault in faults:
            for _ in range(options.rounds):
                runs.append(one_run(kind, fault, draw.randrange(45, 90)))
                print(f"  {_in_words(runs[-1])}", file=sys.stderr, flush=True)
    return tell(runs)


def tell(runs: Sequence[Run]) -> int:
    """Prints the table of all runs; its exit status."""
    report = Report("supervised runs")
    for fault in HELPED:
        _all(
            report, f"{fault}: reaches its last step by itself", [run for run in runs if run.fault == fault], "reached"
        )
    for run in (hopeless := [run for run in runs if run.fault in HOPELESS]):
        run.told = run.told and run.exit_code != 0 and run.restarts < RESTARTS
    _all(report, "exception at a fixed step: stopped, a person told", hopeless, "told")
    healthy = [run for run in runs if run.fault in HEALTHY]
    if healthy:
        left_alone = sum(run.acts == 0 and run.reached for run in healthy)
        report.all_of("healthy (no fault, a slow rank, rank 0 at work for 70 s): not touched", left_alone, len(healthy))
    again = [run for run in runs if run.again_s is not None and run.fault == "hang"]
    for run in again:
        assert run.again_s is not None
        report.at_most(f"{run.kind}: hang to training again, s", AGAIN_S + GRACE_S + run.start_s, run.again_s)
    compared = right = 0
    for run in runs:
        truth = dict(next((one.losses for one in runs if one.kind == run.kind and one.fault == "none"), []))
        if run.restarts and truth:
            compared += len(run.losses)
            right += sum(abs(loss - truth.get(step, -1.0)) <= 1e-5 * abs(loss) for step, loss in run.losses)
    if compared:
        report.all_of("losses of restarted runs as without a fault, steps", right, compared)
    return report.finish()


def _all(report: Report, name: str, runs: Sequence[Run], what: str) -> None:
    if runs:
        report.all_of(name, sum(bool(getattr(run, what)) for run in runs), len(runs))


def one_run(kind: str, fault: str, at: int) -> Run:
    """One job under whichrank. at: step of the fault."""
    with tempfile.TemporaryDirectory(prefix="whichrank-supervised-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        training = str(ROOT / "benchmarks" / "supervised_training.py")
        command = [
            *(PROGRAM, "run", "--out", str(folder / "run"), "--view", "lines", "--restarts", str(RESTARTS)),
            *("--restart-grace", str(GRACE_S), "--", sys.executable, "-m", "torch.distributed.run"),
            *(f"--nproc-per-node={RANKS}", "--master-port", str(port), training),
            *(kind, fault, str(folder), str(STEPS), str(EVERY), str(at)),
        ]
        began = time.time()
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                exit_code = job.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                exit_code = -1
                os.killpg(job.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(60)
        return _read(Run(kind=kind, fault=fault, exit_code=exit_code), folder, began)


def _read(run: Run, folder: Path, began: float) -> Run:
    """What ranks and whichrank have written down."""
    happened: float | None = None
    firsts: list[float] = []  # when rank 0 had made the first step of each start
    for rank in range(RANKS):
        for line in _lines(folder / f"truth-{rank}.jsonl"):
            run.ends += "end" in line
            run.starts += "resumed" in line and rank == 0
            if "fault" in line:
                happened = happened or float(line["time"])
            if "done" in line and rank == 0:
                run.losses.append((int(line["done"]), float(line["loss"])))
                firsts += [float(line["time"])] if len(firsts) < run.starts else []
    run.start_s = firsts[0] - began if firsts else 0.0
    if happened is not None and len(firsts) > 1:
        run.again_s = firsts[1] - happened
    for line in _lines(folder / "run" / AUDIT_FILE):
        run.acts += line["outcome"] == "begun"
        run.restarts += line["outcome"] == "done" and line["operation"] == "restart_job"
        run.told |= line["outcome"] == "refused"
        run.why = str(line.get("why", ""))
    return run


def _lines(path: Path) -> Iterator[dict[str, str | float]]:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _in_words(run: Run) -> str:
    again = "" if run.again_s is None else f", trained again after {run.again_s:.1f} s"
    end = "reached the last step" if run.reached else f"ended with {run.exit_code} ({run.why})"
    return f"{run.kind} {run.fault}: {end}, {run.restarts} restarts, started in {run.start_s:.1f} s{again}"


if __name__ == "__main__":
    sys.exit(main())
