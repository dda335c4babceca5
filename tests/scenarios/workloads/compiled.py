"""Data-parallel training of a model under torch.compile (inductor), which compiles anew when the batch changes."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from course import BATCH, FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


@torch.compiler.disable
def pace(hidden: torch.Tensor) -> torch.Tensor:
    """Work that no compiler can see into, as a custom kernel's."""
    with course.part("forward"):
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: course.point("backward") or None)
    return hidden


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64))
        self.second = nn.Sequential(nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(pace(self.first(x) * 1.0))


def main() -> None:
    dist.init_process_group("gloo")
    if course.options.get("compiled_inside"):
        model = DistributedDataParallel(torch.compile(Net(), dynamic=False))
    else:
        model = torch.compile(DistributedDataParallel(Net()), dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(course.loader())
    changes = int(course.options.get("recompile_every", 0))
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        if changes:  # a shape that has not been seen yet, until there are no more
            rows = max(1, BATCH - step // changes)
            x, y = x[:rows], y[:rows]
        course.point("batch", x)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if not course.point("metrics", mean):
            dist.all_reduce(mean)
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
