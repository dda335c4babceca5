"""Runs in which nothing may be done: rank 0 is at work for minutes while the others wait, or a first step takes long.

Each is a torchrun job of two ranks under ``whichrank run --restarts`` that trains, pauses once, and trains on. In the
pause rank 0 moves: it evaluates, saves, uploads or samples (``long_clean_script``).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.long_training_jobs import PROGRAM, RESTARTS, RESTARTS_PER_HOUR, ROOT, STOP
from tests.ports import free_ports

PAUSES = ("evaluates", "saves", "uploads", "samples")
SHORTEST_S, LONGEST_S, FIRST_STEP_S = 60.0, 300.0, 90.0
STEPS, STEP_S = 60, 0.2
START_S = 300.0
SCRIPT = Path(__file__).with_name("long_clean_script.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """first_step_s: of rank 1; 0: as any. at: the step before which rank 0 pauses."""

    number: int
    seed: int
    pause: str
    pause_s: float
    first_step_s: float
    at: int


def clean_plans(runs: int, seed: int) -> list[CleanPlan]:
    """Draws them: all kinds of pauses by turns, a first step of 90 s in every third."""
    draw = random.Random(f"clean/{seed}")
    return [
        CleanPlan(
            number=number,
            seed=seed,
            pause=PAUSES[number % len(PAUSES)],
            pause_s=round(draw.uniform(SHORTEST_S, LONGEST_S), 1),
            first_step_s=FIRST_STEP_S if number % 3 == 0 else 0.0,
            at=draw.randrange(10, STEPS - 10),
        )
        for number in range(runs)
    ]


def one_clean_run(plan: CleanPlan) -> dict[str, object]:
    """One of them, as a file of results has it."""
    with tempfile.TemporaryDirectory(prefix="whichrank-clean-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(asdict(plan)))
        (port,) = free_ports(1)
        command = [
            *PROGRAM, "run", "--out", str(folder / "out"), "--view", "lines", "--restarts", str(RESTARTS),
            "--on", "hang,crash,slow-node", "--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
            f"--master-port={port}", str(SCRIPT), str(folder),
        ]  # fmt: skip
        environ = os.environ | {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WHICHRANK_RESTARTS_PER_HOUR": str(RESTARTS_PER_HOUR)
        }  # fmt: skip
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + START_S + plan.pause_s + plan.first_step_s + 2 * STEPS * STEP_S
        while job.poll() is None and time.monotonic() < until and not STOP.is_set():
            time.sleep(1.0)
        code = -1 if job.poll() is None else job.returncode
        if code == -1:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(60)
        incidents = _lines(folder / "out" / "incidents.jsonl")
        audit = _lines(folder / "out" / "respond-audit.jsonl")
        return {
            "state": "timed out" if code == -1 else "ended",
            "plan": asdict(plan),
            "code": code,
            "reached": code == 0 and (folder / "end").exists() and not (folder / "again").exists(),
            "acts": sum(line["outcome"] == "begun" for line in audit),
            "incidents": sorted({f"{line['kind']} {line['severity']}" for line in incidents}),
            "log": (folder / "log").read_text(errors="replace")[-1500:] if code else "",
        }


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
