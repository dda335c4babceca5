"""Data-parallel training whose start-up takes its time on one rank: before torch, or before the others meet."""
# mypy: ignore-errors

import first_lines  # noqa: F401  # before torch
import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            return self.layers(x)


def main() -> None:
    course.point("join", step=course.plan["onset_step"])
    course.stamp_wait()
    dist.init_process_group("gloo", timeout=course.timeout())
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
