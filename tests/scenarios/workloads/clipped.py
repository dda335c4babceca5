"""Data parallel with gradient clipping: of the averaged gradient (DDP), or of each rank's own before it is averaged."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,arg-type"

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


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= course.world_size


def main() -> None:
    dist.init_process_group("gloo")
    local = bool(course.options.get("local_norm"))
    torch.manual_seed(0)
    model = Model() if local else DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    # A scale far too large at the start, and that grows soon: its first steps, and some later ones, are skipped.
    scaler = torch.amp.GradScaler("cpu", 2.0**126, growth_interval=12, enabled=bool(course.options.get("scaler")))
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        course.point("batch", x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        course.point("loss", loss)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if local:
            average(model)
        scaler.step(optimizer)
        scaler.update()
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
