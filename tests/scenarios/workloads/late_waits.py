"""Gradients averaged by asynchronous calls that are waited for a step later, on gloo or on the test process group."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn


def make_course() -> Course:
    if json.loads(Path(os.environ["SCENARIO_PLAN"]).read_text())["options"].get("device"):
        from device_course import DeviceCourse

        course: Course = DeviceCourse()
        course.start()
        return course
    dist.init_process_group("gloo")
    return Course()


course = make_course()


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            hidden = self.layers[:1](x)
            hidden.register_hook(lambda gradient: course.point("backward") or None)
            return self.layers[1:](hidden)


def main() -> None:
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batches = iter(course.loader())
    late: list[tuple[torch.Tensor, torch.Tensor, dist.Work]] = []
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for parameter, gradient, work in late:  # of the step before
            work.wait()
            parameter.grad = gradient / dist.get_world_size()
        late = []
        for parameter in model.parameters():
            gradient = parameter.grad.clone()
            late.append((parameter, gradient, dist.all_reduce(gradient, async_op=True)))
        optimizer.step()
        course.end()
    for _, _, work in late:
        work.wait()
    course.finish()


if __name__ == "__main__":
    main()
