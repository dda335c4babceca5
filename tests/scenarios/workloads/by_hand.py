"""The one workload that uses whichrank's API: a loop without DDP, torch optimizer or DataLoader, told by hand."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import time

import torch
import torch.distributed as dist
from course import BATCH, FEATURES, Course

import whichrank

course = Course()


def main() -> None:
    whichrank.init()
    dist.init_process_group("gloo")
    weights = torch.zeros(FEATURES, 1)
    for step in range(course.steps):
        course.begin(step)
        with whichrank.phase("data"), course.part("data"):
            x = torch.randn(BATCH, FEATURES)
        with whichrank.phase("forward"), course.part("forward"):
            error = x @ weights - x.sum(dim=1, keepdim=True)
        with whichrank.phase("backward"):
            gradient = x.T @ error / BATCH
            dist.all_reduce(gradient)
        weights -= 0.01 * gradient / course.world_size
        whichrank.step(loss=float(error.square().mean()))
        course.end()
    with whichrank.phase("checkpoint"):
        time.sleep(0.2)
        dist.barrier()
    # Its groups are left to the end of the process, as many scripts leave them.


if __name__ == "__main__":
    main()
