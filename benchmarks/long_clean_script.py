"""What the ranks of a clean run train: ``long_clean_script.py FOLDER``, its plan lies in there. No fault comes."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.long_clean_runs import STEP_S, STEPS, CleanPlan

#: Work, and sleep between two pieces of it: many runs go side by side.
_WORK_S, _REST_S = 0.004, 0.05


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
