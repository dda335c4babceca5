"""Ranks with fewer batches than others under DDP's ``join``: who is through takes part in the others' steps."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.distributed.algorithms.join import Join
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(course.loader())
    rounds = 4
    for turn in range(rounds):  # an epoch each, whose shards are of different size on each rank
        first, end = course.steps * turn // rounds, course.steps * (turn + 1) // rounds
        fewer = (course.rank + turn) % course.world_size * (end - first) // (3 * course.world_size)
        with Join([model]):
            for step in range(first, end - fewer):
                course.begin(step)
                x, y = next(batches)
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                course.end()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
