"""Data-parallel perceptron on the test process group: a kernel, buckets of gradients and a mean loss in every step."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import torch
import torch.distributed as dist
from course import FEATURES
from device_course import DeviceCourse
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = DeviceCourse()


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            hidden = self.layers[:2](x)
            hidden.register_hook(lambda gradient: course.point("backward") or None)
            return self.layers[2:](hidden)


def main() -> None:
    course.start()
    model = DistributedDataParallel(Perceptron(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        course.point("batch", x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if not course.point("metrics", mean):
            dist.all_reduce(mean)
        course.end()
    course.finish()


if __name__ == "__main__":
    main()
