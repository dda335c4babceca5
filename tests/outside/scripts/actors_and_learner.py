"""Actors play and send what they saw to the learner (rank 0), which learns and gives them its weights."""

import os
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
policy = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))


def play(steps):
    state, seen = torch.randn(16), []
    for _ in range(steps):
        with torch.no_grad():
            action = policy(state).softmax(0).multinomial(1)
        state = 0.9 * state + 0.1 * torch.randn(16)
        seen.append(torch.cat([state, action.float()]))
    return torch.stack(seen)


def learn(seen):
    for _ in range(3):
        loss = policy(seen[:, :16]).square().mean()
        policy.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in policy.parameters():
                weight -= 0.01 * weight.grad


for turn in range(int(os.environ.get("TURNS", "100000"))):
    time.sleep(TURN_S)
    rollout = play(64) if rank > 0 else torch.zeros(64, 17)
    parts = [torch.empty(64, 17) for _ in range(world)] if rank == 0 else None
    dist.gather(rollout, parts, dst=0)
    if rank == 0:
        learn(torch.cat(parts[1:]))
    for weight in policy.parameters():
        dist.broadcast(weight.data, src=0)
dist.destroy_process_group()
