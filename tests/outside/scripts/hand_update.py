"""Gradients are summed and applied by hand: no optimizer."""

import os
import sys
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
turns = int(os.environ.get("TURNS", "100000"))
for turn in range(turns):
    time.sleep(TURN_S)
    samples = torch.randn(256, 128)
    loss = (model(samples) - samples.sum(1, keepdim=True)).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= 0.001 * parameter.grad / dist.get_world_size()
    if turn % 100 == 0 and dist.get_rank() == 0:
        print(turn, float(loss), file=sys.stderr)
dist.destroy_process_group()
