"""Each rank trains for itself with an optimizer, and weights are averaged every eighth step."""

import os
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(int(os.environ.get("TURNS", "100000"))):
    time.sleep(TURN_S)
    samples = torch.randn(256, 128)
    loss = (model(samples) - samples.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        for weight in model.parameters():
            dist.all_reduce(weight.data)
            weight.data /= dist.get_world_size()
dist.destroy_process_group()
