"""Runs in which nothing may be done: rank 0 is at work for minutes while the others wait, or a first step takes long.

Each is a torchrun job of two ranks under ``whichrank run --restarts`` that trains, pauses once, and trains on. In the
pause rank 0 moves: it evaluates, saves, uploads or samples. Started with a folder as its argument, this file is also
what the ranks run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.long_training_jobs import PROGRAM, RESTARTS, RESTARTS_PER_HOUR, ROOT
from tests.ports import free_ports

PAUSES = ("evaluates", "saves", "uploads", "samples")
SHORTEST_S, LONGEST_S, FIRST_STEP_S = 60.0, 300.0, 90.0
STEPS, STEP_S = 60, 0.2
START_S = 300.0
#: Work, and sleep between two pieces of it: many runs go side by side.
_WORK_S, _REST_S = 0.004, 0.05


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
            f"--master-port={port}", str(Path(__file__).resolve()), str(folder),
        ]  # fmt: skip
        environ = os.environ | {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WHICHRANK_RESTARTS_PER_HOUR": str(RESTARTS_PER_HOUR)
        }  # fmt: skip
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:
            code = job.wait(START_S + plan.pause_s + plan.first_step_s + 2 * STEPS * STEP_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(60)
            code = -1
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


# --- what the ranks run -----------------------------------------------------------------------------------------------
def train(folder: Path) -> None:
    """Trains, with the pause of its plan."""
    plan = CleanPlan(**json.loads((folder / "plan.json").read_text()))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        (folder / ("again" if (folder / "began").exists() else "began")).touch()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(STEPS):
        if step == 0 and rank == 1 and plan.first_step_s:
            _work(plan.first_step_s, lambda: torch.randn(64, 64) @ torch.randn(64, 64))
        if step == plan.at and rank == 0:
            _pause(plan, layers, folder)
        samples = torch.randn(16, 32)
        loss = (model(samples) - samples[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)
    dist.barrier()
    if rank == 0:
        (folder / "end").touch()
    dist.destroy_process_group()


def _pause(plan: CleanPlan, layers: torch.nn.Module, folder: Path) -> None:
    if plan.pause == "evaluates":
        layers.eval()
        with torch.no_grad():
            _work(plan.pause_s, lambda: layers(torch.randn(256, 32)))
        layers.train()
    elif plan.pause == "samples":
        state = [torch.zeros(1, 32)]

        def next_one() -> None:
            with torch.no_grad():
                state[0] = torch.tanh(state[0] + layers(state[0]) + torch.randn(1, 32))

        _work(plan.pause_s, next_one)
    elif plan.pause == "saves":
        with (folder / "large.bin").open("wb") as file:

            def write() -> None:
                file.seek(0)
                file.write(os.urandom(1 << 16))
                os.fsync(file.fileno())

            _work(plan.pause_s, write)
    else:
        _upload(plan.pause_s)


def _work(seconds: float, piece: Callable[[], object]) -> None:
    """Pieces of work with rests between them."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begin = time.monotonic()
        while time.monotonic() - begin < _WORK_S:
            piece()
        time.sleep(_REST_S)


def _upload(seconds: float) -> None:
    """To a server that takes it slowly."""
    ours, theirs = socket.socketpair()

    def take() -> None:
        while theirs.recv(1 << 14):
            time.sleep(_REST_S)

    server = threading.Thread(target=take, daemon=True)
    server.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ours.sendall(b"\0" * (1 << 14))
    ours.close()
    server.join(30.0)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
