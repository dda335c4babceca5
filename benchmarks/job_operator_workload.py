"""The ranks that ``job_operator`` records: four processes, three groups, small collectives, 200 a second and rank.

That is the pace of the issue's own agent load, less what a busy machine delays. Run by torchrun; knows nothing of
whichrank. Arguments: number of steps, steps a second.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist

CALLS_PER_S = 200


def main() -> None:
    steps, steps_per_s = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    pairs: list[Any] = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    everyone: Any = dist.new_group([0, 1, 2, 3])
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # One clock paces all: were each rank to count from its own last step, whom a busy machine held up once would come
    # late for ever, and would rightly be told to be slow.
    start = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.broadcast(start, src=0)
    for step in range(steps):
        end = float(start) + (step + 1) / steps_per_s
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for call in range(CALLS_PER_S // steps_per_s - 2):
            if call % 3 == 0:
                dist.all_reduce(torch.zeros(64 + call), group=pairs[rank // 2])
            else:
                dist.all_reduce(torch.zeros(256), group=everyone if call % 3 == 1 else None)
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            dist.all_reduce(gradient)
        optimizer.step()
        time.sleep(max(0.0, end - time.monotonic()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
