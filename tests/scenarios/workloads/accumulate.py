"""Data-parallel training with gradient accumulation: several microsteps under no_sync, one optimizer step."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import contextlib

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            return self.layers(x)


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(course.loader())
    microsteps = int(course.options["microsteps"])
    for step in range(course.steps):
        course.begin(step)
        for microstep in range(microsteps):
            x, y = next(batches)
            last = microstep == microsteps - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (nn.functional.mse_loss(model(x), y) / microsteps).backward()
        optimizer.step()
        optimizer.zero_grad()
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
