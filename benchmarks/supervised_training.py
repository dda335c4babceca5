"""A small training with a fault, started again by its supervisor: what ``supervised_runs`` runs under torchrun.

``supervised_training.py KIND FAULT FOLDER STEPS EVERY STEP``. KIND: ddp or fsdp2. Rank 0 writes a checkpoint every few
steps; each start goes on from the newest whole one. What was done is written down: the truth.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: How long a step takes at least, and a pause in which rank 0 is at work.
STEP_S, PAUSE_S = 0.05, 70.0
SLOW_S = 0.15


class Training:
    """A linear model on two ranks, whose batches follow from the step alone: a run that went on has the same losses."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder, self.rank = folder, dist.get_rank()
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.is_sharded = kind == "fsdp2"
        if self.is_sharded:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            self.model = model
        else:
            self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)

    def say(self, **what: float | str) -> None:
        """A line of the truth."""
        with (self.folder / f"truth-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), "time": time.time(), **what}) + "\n")

    def resume(self) -> int:
        """Steps in the newest checkpoint, which is loaded; 0 there is none."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        places = sorted(self.folder.glob("step-*.pt"), key=lambda place: int(place.stem.partition("-")[2]))
        if not places:
            return 0
        state = torch.load(places[-1])
        set_model_state_dict(self.model, state, options=StateDictOptions(full_state_dict=True))
        return int(places[-1].stem.partition("-")[2])

    def step(self, number: int) -> float:
        """One step; its loss, summed up over the ranks."""
        torch.manual_seed(1000 * number + self.rank)
        data = torch.randn(16, 32)
        loss = (self.model(data) - data[:, :1] * 2).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        return float(whole)

    def save(self, number: int) -> None:
        """A whole state in one file, which appears whole."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        state = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self.rank == 0:
            torch.save(state, self.folder / "new.tmp")
            (self.folder / "new.tmp").rename(self.folder / f"step-{number}.pt")
        dist.barrier()


def fail(fault: str, training: Training, number: int, at: int) -> None:
    """The fault, at its step. Those that pass leave a mark, so that they come once."""
    mark = training.folder / "happened"
    is_due = number == at and (fault == "always" or not mark.exists())
    if fault == "slow" and training.rank == 1 and number >= at:
        work_until = time.perf_counter() + SLOW_S
        while time.perf_counter() < work_until:
            torch.randn(64, 64) @ torch.randn(64, 64)
    if not is_due or training.rank != (0 if fault == "evaluates" else 1) or fault in ("slow", "none"):
        return
    training.say(fault=fault, step=number)
    mark.touch()
    if fault == "hang":
        time.sleep(86_400)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault in ("once", "always"):
        raise RuntimeError("the batch cannot be read")
    elif fault == "evaluates":
        until = time.monotonic() + PAUSE_S
        while time.monotonic() < until:
            torch.randn(128, 128) @ torch.randn(128, 128)
            time.sleep(0.01)


def main() -> None:
    """Trains to the end."""
    kind, fault, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    steps, every, at = map(int, sys.argv[4:7])
    dist.init_process_group("gloo")
    training = Training(kind, folder)
    first = training.resume()
    training.say(resumed=first)
    for number in range(first + 1, steps + 1):
        began = time.monotonic()
        fail(fault, training, number, at)
        training.say(done=number, loss=training.step(number))
        if number % every == 0:
            training.save(number)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
    training.say(end=steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
