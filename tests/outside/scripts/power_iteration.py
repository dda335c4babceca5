"""Linear algebra: the largest eigenvalue of a matrix whose rows lie on the ranks."""

import os
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
rows = torch.randn(400, 400 * world)
vector = torch.ones(400 * world)
for turn in range(int(os.environ.get("TURNS", "100000"))):
    time.sleep(TURN_S)
    mine = rows @ vector
    parts = [torch.empty(400) for _ in range(world)]
    dist.all_gather(parts, mine)
    vector = torch.cat(parts)
    norm = vector.square().sum()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX)
    vector = vector / norm.sqrt()
dist.destroy_process_group()
