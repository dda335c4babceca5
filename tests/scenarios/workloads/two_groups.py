"""Generator and critic metrics, each reduced in its own process group over the same ranks, one after the other."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            return self.layers(x)


def main() -> None:
    dist.init_process_group("gloo")
    groups = [dist.new_group(), dist.new_group()]
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        metrics = [loss.detach().clone(), loss.detach().square()]
        order = [1, 0] if course.point("order") else [0, 1]
        for index in order:
            dist.all_reduce(metrics[index], group=groups[index])
        course.end()
    # Its groups are left to the end of the process, as many scripts leave them.


if __name__ == "__main__":
    main()
