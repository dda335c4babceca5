"""Each rank is a stage: it receives, computes and sends on; the last one's loss is told to all."""

import os
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
stage = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
with torch.no_grad():
    for turn in range(int(os.environ.get("TURNS", "100000"))):
        for micro in range(4):
            values = torch.randn(64, 256) if rank == 0 else torch.empty(64, 256)
            if rank > 0:
                dist.recv(values, rank - 1)
            time.sleep(TURN_S)
            values = stage(values)
            if rank < world - 1:
                dist.send(values, rank + 1)
        score = values.mean().reshape(1)
        dist.broadcast(score, src=world - 1)
dist.destroy_process_group()
