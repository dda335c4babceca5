"""The job of ``benchmarks.game_days``: a small DDP training on gloo that knows nothing of faults. Started by torchrun.

Arguments: steps, a folder for checkpoints of rank 0 ("-": none), and after how many steps each. The samples are read at
an even pace, so that a step is paced by its data and not by how busy the machine is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES, BATCH = 64, 16
READ_S, WORK_S = 0.02, 0.02


class Paced(nn.Module):
    """Layers whose forward pass takes a while of CPU time, as a larger model's would."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Works for WORK_S, then predicts."""
        until_s = time.thread_time() + WORK_S
        while time.thread_time() < until_s:
            self.layers(samples)
        prediction: torch.Tensor = self.layers(samples)
        return prediction


def main() -> None:
    """Trains for so many steps."""
    steps, folder, save_every = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Paced())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        time.sleep(READ_S)
        samples = torch.randn(BATCH, FEATURES)
        loss = nn.functional.mse_loss(model(samples), samples.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        average = loss.detach().clone()
        dist.all_reduce(average)
        if folder != "-" and step % save_every == save_every - 1 and dist.get_rank() == 0:
            torch.save(model.state_dict(), Path(folder) / f"step-{step:05d}.pt")
        if dist.get_rank() == 0 and step % 50 == 0:
            print(f"step {step} loss {average.item() / dist.get_world_size():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
