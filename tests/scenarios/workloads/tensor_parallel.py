"""Tensor x data parallel on a 2-D DeviceMesh: activations summed in the tp group, gradients averaged in dp."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

course = Course()


class SumForward(torch.autograd.Function):
    """Megatron's g: sum of partial results forward, identity backward."""

    @staticmethod
    def forward(ctx, partial, group):
        total = partial.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SumBackward(torch.autograd.Function):
    """Megatron's f: identity forward, sum of gradients backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ParallelMlp(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.column = nn.Linear(FEATURES, 96 // group.size())
        self.row = nn.Linear(96 // group.size(), FEATURES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SumForward.apply(self.row(torch.relu(self.column(SumBackward.apply(x, self.group)))), self.group)


class Model(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.first, self.second = ParallelMlp(group), ParallelMlp(group)
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        with course.part("forward"):
            hidden = hidden + x
        hidden.register_hook(lambda gradient: course.point("backward") or None)
        return self.head(self.second(hidden))


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (course.world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    data_parallel = mesh.get_group("dp")
    model = Model(mesh.get_group("tp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        dist.broadcast(x, group=mesh.get_group("tp"), group_src=0)
        dist.broadcast(y, group=mesh.get_group("tp"), group_src=0)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data_parallel)
            parameter.grad /= data_parallel.size()
        optimizer.step()
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
