"""Object collectives of ever other sizes, and metrics that a second thread reduces in a group of its own."""
# mypy: ignore-errors

import queue
import threading

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


def reduce_metrics(metrics: "queue.Queue[torch.Tensor | None]", group: dist.ProcessGroup) -> None:
    while (mean := metrics.get()) is not None:
        dist.all_reduce(mean, group=group)


def main() -> None:
    dist.init_process_group("gloo")
    group = dist.new_group()
    metrics = queue.Queue()
    helper = threading.Thread(target=reduce_metrics, args=(metrics, group))
    helper.start()
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
        metrics.put(loss.detach().clone())
        if step % 5 == 0:
            lengths = [None] * course.world_size
            dist.all_gather_object(lengths, "x" * (17 * course.rank + step))
            told = [{"step": step, "lengths": lengths} if course.rank == 0 else None]
            dist.broadcast_object_list(told, src=0)
            parts = [None]
            dist.scatter_object_list(
                parts, ["y" * rank for rank in range(course.world_size)] if course.rank == 0 else []
            )
        course.end()
    metrics.put(None)
    helper.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
