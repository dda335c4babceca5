"""Data-parallel training as long jobs do it: rank 0 saves now and then, and a job started again goes on from there."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import os
from pathlib import Path

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()
CHECKPOINT = Path(os.environ["SCENARIO_PLAN"]).parent / "model.pt"


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            hidden = self.layers[:2](x)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: course.point("backward") or None)
            return self.layers[2:](hidden)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """In one piece: a job that dies while it saves finds the checkpoint before."""
    part = CHECKPOINT.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
    part.rename(CHECKPOINT)


def main() -> None:
    dist.init_process_group("gloo", timeout=course.timeout())
    model = Perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    wrapped = DistributedDataParallel(model)
    batches = iter(course.loader(first))
    every = int(course.options["save_each"])
    for step in range(first, course.steps):
        course.begin(step)
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if not course.point("metrics", mean):
            dist.all_reduce(mean)
        leaves = course.shift_is_over(first)
        if course.rank == 0 and ((step + 1) % every == 0 or leaves):
            save(model, optimizer, step)
        course.end()
        if leaves:
            break
    course.finish()


if __name__ == "__main__":
    main()
