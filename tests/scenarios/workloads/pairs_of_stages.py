"""Tensor x pipeline parallel: pairs of ranks share a stage, and its halves pass activations on to the next pair's."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from course import BATCH, FEATURES, Course
from tensor_parallel import ParallelMlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

course = Course()


class Stage(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.mlp = ParallelMlp(group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            hidden = x * 1.0
        hidden.register_hook(lambda gradient: course.point("backward") or None)
        return self.mlp(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (course.world_size // 2, 2), mesh_dim_names=("pp", "tp"))
    pairs, line = mesh.get_group("tp"), mesh.get_group("pp")
    place, last = dist.get_rank(line), line.size() - 1
    stage = Stage(pairs)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.001)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        dist.broadcast(x, group=pairs, group_src=0)
        dist.broadcast(y, group=pairs, group_src=0)
        if place > 0:
            x = torch.empty(BATCH, FEATURES)
            dist.recv(x, group=line, group_src=place - 1)
        x.requires_grad_()
        out = stage(x)
        if place < last:
            dist.send(out.detach(), group=line, group_dst=place + 1)
            gradient = torch.empty(BATCH, FEATURES)
            dist.recv(gradient, group=line, group_src=place + 1)
            out.backward(gradient)
        else:
            nn.functional.mse_loss(out.sum(dim=1, keepdim=True), y).backward()
        if place > 0:
            dist.send(x.grad, group=line, group_dst=place - 1)
        norm = torch.stack([parameter.grad.square().sum() for parameter in stage.parameters()]).sum()
        dist.all_reduce(norm)
        optimizer.step()
        optimizer.zero_grad()
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
