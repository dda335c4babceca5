"""Pipeline by hand: each rank is a stage; activations go down and gradients come back by send and recv."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import torch
import torch.distributed as dist
from course import BATCH, FEATURES, Course
from torch import nn

course = Course()


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            return self.layers(x)


def main() -> None:
    dist.init_process_group("gloo")
    rank, last = course.rank, course.world_size - 1
    stage = Stage()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        if rank > 0:
            x = torch.empty(BATCH, FEATURES)
            dist.recv(x, src=rank - 1)
        x.requires_grad_()
        out = stage(x)
        if rank < last:
            dist.send(out.detach(), dst=rank + 1)
            gradient = torch.empty(BATCH, FEATURES)
            dist.recv(gradient, src=rank + 1)
            out.backward(gradient)
        else:
            nn.functional.mse_loss(out.sum(dim=1, keepdim=True), y).backward()
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
        optimizer.step()
        optimizer.zero_grad()
        course.end()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
