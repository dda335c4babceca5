"""Data-parallel training of a compiled net: compiles in its first step, and again when the batches get another size."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            return self.inner(x)

    @torch.compile(dynamic=False)
    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    # What an earlier run compiled would be found, and nothing be compiled in this one.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="scenario-inductor-")
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        if step >= course.steps // 2:
            x, y = x[:-1], y[:-1]  # another shape: it is compiled anew
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        course.between_steps(model)
        course.end()
    dist.destroy_process_group()
    shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


if __name__ == "__main__":
    main()
