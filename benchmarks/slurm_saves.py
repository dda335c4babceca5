"""Do emergency saves come, whole, when a real Slurm is about to end a job? By ``--signal``, time limit and preemption.

Each job: ``sbatch`` of ``whichrank run -- torchrun`` with two gloo ranks that call ``whichrank.on_checkpoint`` and
write down their weights after each step. A save is right if both ranks saved the same weights, and knew that it was
whole. Run: ``python -m benchmarks.slurm_saves [--runs 3] [--only WAY]``; a run takes about two minutes, for Slurm's
limits are in whole minutes. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ports import free_ports
from tests.stack.parts.slurm_room import SlurmRoom, until, what_is_missing
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

ROOT = Path(__file__).resolve().parents[1]
RANKS, FIRST_STEP, START_S, END_S = 2, 20, 110.0, 250.0
#: A job that ends within the grace of a preemption has ended for Slurm, and is not requeued: so the last line.
_JOB = f"""
export PYTHONPATH={ROOT} OMP_NUM_THREADS=1
{{start}} {Path(sys.executable).with_name("whichrank")} run --out {{folder}}/run-${{{{SLURM_RESTART_COUNT:-0}}}} \\
  --view none -- {sys.executable} -m torch.distributed.run --nproc-per-node={RANKS} --master-port={{port}} \\
  {ROOT}/benchmarks/emergency_training.py {{folder}} 1000000 -1 -1
scontrol show job $SLURM_JOB_ID | grep -q "PreemptTime=[0-9]" && sleep 600
"""
#: Slurm's own wait before SIGKILL is 30 s; what ``emergency_training`` takes its time by is shorter.
_GRACE_S = 20
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """options: of sbatch. start: before ``whichrank run``. reason: of a save that must be among them.

    ends: states that the job may be in at last, or how often it was requeued. is_preempted: by one with priority.
    """

    asked: str
    options: tuple[str, ...] = ()
    start: str = "exec"
    reason: str = "SIGTERM"
    ends: tuple[str, ...] = ("TIMEOUT", "FAILED", "CANCELLED")
    is_preempted: bool = False


_STEP = "srun --ntasks=1 --overlap"
WAYS: Mapping[str, Way] = {
    "signal": Way(asked="--signal=TERM@60, in a step", options=("--time=3", "--signal=TERM@60"), start=_STEP),
    "batch": Way(asked="--signal=B:TERM@60, exec", options=("--time=3", "--signal=B:TERM@60")),
    "limit": Way(asked="time limit: SIGTERM", options=("--time=2",)),
    "lead": Way(asked="time limit, told by scontrol", options=("--time=2",), reason="time_limit"),
    "preempt": Way(asked="preemption, in a step", start=_STEP, ends=("1",), is_preempted=True),
    "preempt-batch": Way(asked="preemption, exec", ends=("1",), is_preempted=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs and prints the lines. The exit status is 1 where a line is SHORT, 2 where there is no Slurm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm_saves", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each way")
    parser.add_argument("--only", action="append", choices=list(WAYS), help="this way, again for more")
    parser.add_argument("--beside", type=int, default=2, help="jobs at a time")
    options = parser.parse_args(arguments)
    if why := what_is_missing():
        print(f"there can be no Slurm here: {why}")
        return 2
    chosen = options.only or list(WAYS)
    with SlurmRoom(2, grace_s=_GRACE_S, kill_wait_s=_GRACE_S) as room, ThreadPoolExecutor(options.beside) as pool:
        tasks = {name: [pool.submit(one_run, room, WAYS[name]) for _ in range(options.runs)] for name in chosen}
        lines = [_line(name, [task.result() for task in tasks[name]]) for name in chosen]
    print_lines(lines, "emergency saves by Slurm")
    print(in_short(lines))
    return exit_code(lines)


def _line(name: str, outcomes: Sequence[tuple[str, float]]) -> ScoreLine:
    for why, _ in outcomes:
        if why:
            print(f"WRONG: {name}: {why}", flush=True)
    right = sum(not why for why, _ in outcomes)
    return ScoreLine(
        name=WAYS[name].asked,
        asked="saved whole",
        measured=f"{max(seconds for _, seconds in outcomes):.1f} s into the training at most",
        share=f"{right} of {len(outcomes)}",
        ok=right == len(outcomes),
    )


def one_run(room: SlurmRoom, way: Way) -> tuple[str, float]:
    """What is wrong, "" nothing; and seconds from the start of the training to its save."""
    with _one_at_a_time:
        port = free_ports(1)[0]
    folder = room.folder / f"run-{port}"
    folder.mkdir()
    text = _JOB.format(start=way.start, folder=folder, port=port)
    try:
        job = room.submit(text, "--nodes=1", "--ntasks=1", "--cpus-per-task=8", *way.options)
        until(lambda: all(_last_step(folder, rank) >= FIRST_STEP for rank in range(RANKS)), "it trains", START_S)
        began_s = time.time()
        if way.is_preempted:
            node = room.job(job)["NodeList"]
            other = room.submit("sleep 5", "--partition=high", f"--nodelist={node}", "--exclusive")
            room.wait_for_job(other, "RUNNING", "COMPLETED", seconds=END_S)
            ends = (room.job(job)["Restarts"],)
        else:
            ends = (room.wait_for_job(job, *way.ends, seconds=END_S)["JobState"],)
        saves = [[line for line in _lines(folder, rank) if "saved" in line] for rank in range(RANKS)]
        room.run("scancel", "--signal=KILL", "--full", job, check=False)
        room.run("scancel", job, check=False)
    except (OSError, TimeoutError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}; {_said(room, folder)}", 0.0
    if not set(ends) <= set(way.ends):
        return f"it ended as {ends}", 0.0
    return _judged(saves, way, began_s)


def _judged(saves: Sequence[Sequence[Mapping[str, Any]]], way: Way, began_s: float) -> tuple[str, float]:
    if not all(saves) or len({len(each) for each in saves}) > 1:
        return f"saves of the ranks: {[len(each) for each in saves]}", 0.0
    for of_ranks in zip(*saves, strict=True):
        if len({each["saved"] for each in of_ranks}) > 1 or not all(each["whole"] for each in of_ranks):
            return f"not whole: {of_ranks}", 0.0
    reasons = [each["reason"] for each in saves[0]]
    if way.reason not in reasons:
        return f"asked by {reasons}, not {way.reason}", 0.0
    asked = next(each for each in saves[0] if each["reason"] == way.reason)
    return "", max(0.0, asked["time"] - began_s)


def _last_step(folder: Path, rank: int) -> int:
    return max((int(line["step"]) for line in _lines(folder, rank) if "step" in line), default=0)


def _lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"truth-{rank}.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def _said(room: SlurmRoom, folder: Path) -> str:
    found = [path.read_text(errors="replace")[-300:] for path in room.folder.glob("*.out") if path.stem.isdigit()]
    return f"{folder.name}: {found}"


if __name__ == "__main__":
    sys.exit(main())
