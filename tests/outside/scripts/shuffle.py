"""Data is shuffled between the ranks, and counted: sizes differ from turn to turn."""

import os
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = 0
for turn in range(int(os.environ.get("TURNS", "100000"))):
    time.sleep(TURN_S)
    records = torch.randint(0, 1000, (5000 + 37 * ((turn * 7 + rank * 3) % 11),))
    parts = [records[records % world == owner] for owner in range(world)]
    sizes = torch.tensor([len(part) for part in parts])
    all_sizes = [torch.empty_like(sizes) for _ in range(world)]
    dist.all_gather(all_sizes, sizes)
    most = int(torch.stack(all_sizes).max())
    padded = torch.zeros(world, most, dtype=torch.long)
    for owner, part in enumerate(parts):
        padded[owner, : len(part)] = part
    everything = [torch.empty(world, most, dtype=torch.long) for _ in range(world)]
    dist.all_gather(everything, padded)
    mine = torch.cat([each[rank, : int(size[rank])] for each, size in zip(everything, all_sizes)])
    total += int(torch.bincount(mine, minlength=1000).max())
    if turn % 50 == 0:
        dist.barrier()
dist.destroy_process_group()
