"""Ranks that work for given times: they sleep most of each, compute a little, reduce and step, in DDP or by hand.

In the folder SLOW_FOLDER lie ``own.npy``, seconds by (step, rank), and what comes of it: each rank writes the end of
each step (Unix seconds) and how long its own work took. With SLOW_WORKS all of the time is computed instead, by as many
multiplications in each step as the mean takes: that shows what the jitter of a real machine looks like.
"""

import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
folder, rank = Path(os.environ["SLOW_FOLDER"]), dist.get_rank()
own_s = np.load(folder / "own.npy")[:, rank]
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
net = DistributedDataParallel(model) if "SLOW_DDP" in os.environ else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

turns = 0
if "SLOW_WORKS" in os.environ:
    large, begin = torch.randn(192, 192), time.perf_counter()
    for _ in range(100):
        large @ large
    turns = max(1, round(own_s.mean() * 100 / (time.perf_counter() - begin)))

with (folder / f"own-{rank}.txt").open("w", buffering=1) as file:
    for seconds in own_s:
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = net(torch.randn(16, 64)).square().mean()
        for _ in range(turns):
            large @ large
        if not turns:
            time.sleep(max(0.0, seconds - (time.perf_counter() - begin)))
        took_s = time.perf_counter() - begin
        loss.backward()
        if net is model:
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
        optimizer.step()
        file.write(f"{time.time():.4f} {took_s:.6f}\n")
dist.barrier()
dist.destroy_process_group()
