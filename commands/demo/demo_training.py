"""The job of ``whichrank demo``: an ordinary DDP training on gloo and CPU, in which one rank goes wrong.

What goes wrong, where and when stands in a plan file; the guilty rank writes what it is about to do, and when, to a
truth file that only the demo's checker reads, after the run. Nothing here calls whichrank. Started by torchrun.
The lines marked ``fault:`` are where the guilty rank is stuck or raises; the checker finds them by these marks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 4000
BATCH = 16
FEATURES = 64
#: Reading one sample takes this long, so that a step is paced by its data and not by how busy the machine is.
READ_S = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Which rank goes wrong at which step, how (``kind``), and the file in which it says so."""

    rank: int
    step: int
    kind: str
    truth: str


class PlannedFault:
    """The planned fault of this rank; on every other rank it never strikes."""

    def __init__(self, plan: FaultPlan, rank: int) -> None:
        self._plan = plan
        self._mine = plan.rank == rank
        self.step = 0

    def strikes(self, kind: str) -> bool:
        """True once, on the guilty rank, at the planned step, if the fault is of this kind.

        The truth is written before.
        """
        if not self._mine or self._plan.kind != kind or self.step != self._plan.step:
            return False
        truth = {**asdict(self._plan), "pid": os.getpid(), "time": time.time()}
        path = Path(self._plan.truth)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(truth))
        temporary.replace(path)
        self._mine = False
        return True


class TrainingSamples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random regression samples; the loader's fault is a read that never returns."""

    def __init__(self, fault: PlannedFault) -> None:
        self._fault = fault

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._fault.strikes("loader_blocked"):
            storage, _ = os.pipe()
            os.read(storage, 1)  # fault: loader_blocked
        time.sleep(READ_S)
        generator = torch.Generator().manual_seed(index)
        sample = torch.randn(FEATURES, generator=generator)
        return sample, sample.sum().unsqueeze(0)


class Model(nn.Module):
    """Two layers, and the faults that strike inside a forward pass."""

    def __init__(self, fault: PlannedFault) -> None:
        super().__init__()
        self._fault = fault
        self.layers = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """A forward pass. On the guilty rank, at its step, the fault strikes in it: ValueError, or it never returns."""
        if self._fault.strikes("sleep_in_forward"):
            time.sleep(3600)  # fault: sleep_in_forward
        if self._fault.strikes("gil_held"):
            ctypes.PyDLL(None).sleep(3600)  # fault: gil_held
        if self._fault.strikes("exception"):
            raise ValueError("sample out of range")  # fault: exception
        prediction: torch.Tensor = self.layers(samples)
        return prediction


def spin() -> None:
    """A loop that never ends."""
    turns = 0
    while True:  # fault: busy_loop
        turns += 1  # fault: busy_loop


def train(plan: FaultPlan) -> None:
    """Trains on gloo until the data end, or the planned fault strikes on its rank."""
    dist.init_process_group("gloo")
    fault = PlannedFault(plan, dist.get_rank())
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(fault))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(TrainingSamples(fault), batch_size=BATCH, num_workers=0)
    for step, (samples, targets) in enumerate(loader):
        fault.step = step
        loss = nn.functional.mse_loss(model(samples), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # fault: skipped_collective
        if fault.strikes("busy_loop"):
            spin()
        optimizer.step()
        optimizer.zero_grad()
        average = loss.detach().clone()
        if fault.strikes("sigstop"):
            os.kill(os.getpid(), signal.SIGSTOP)  # fault: sigstop
        if fault.strikes("sigkill"):
            os.kill(os.getpid(), signal.SIGKILL)  # fault: sigkill
        if fault.strikes("wrong_op"):
            dist.broadcast(average, src=dist.get_rank())  # fault: wrong_op
        if fault.strikes("wrong_size"):
            dist.all_reduce(average.repeat(1000))  # fault: wrong_size
        if not fault.strikes("skipped_collective"):
            dist.all_reduce(average)
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step} loss {average.item() / dist.get_world_size():.3f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Trains as one rank, with the plan in the file of ``--plan``; torchrun starts it once a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    train(FaultPlan(**json.loads(parser.parse_args().plan.read_text())))


if __name__ == "__main__":
    main()
