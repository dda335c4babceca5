"""Data-parallel convolutional net with batch norm (DDP broadcasts its buffers) and momentum."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import torch
import torch.distributed as dist
from course import Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv1d(8, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.head(self.body(self.stem(x.unsqueeze(1))).mean(dim=2))
        with course.part("forward"):
            hidden = self.stem(x.unsqueeze(1))
            hidden.register_hook(lambda gradient: course.point("backward") or None)
            return self.head(self.body(hidden).mean(dim=2))


def main() -> None:
    dist.init_process_group("gloo", timeout=course.timeout())
    course.calibrate()
    model = DistributedDataParallel(Convnet())
    course.hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        course.point("batch", x)
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if not course.point("metrics", mean):
            dist.all_reduce(mean)
        course.between_steps(model)
        course.end()
    course.finish()


if __name__ == "__main__":
    main()
