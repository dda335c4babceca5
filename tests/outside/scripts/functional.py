"""torch.func: gradients of a functional call, summed as one flat tensor."""

import os
import time

import torch
import torch.distributed as dist
from torch.func import functional_call, grad_and_value

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
weights = {name: value.detach().clone() for name, value in model.named_parameters()}


def loss_of(weights, samples, labels):
    return torch.nn.functional.cross_entropy(functional_call(model, weights, (samples,)), labels)


for turn in range(int(os.environ.get("TURNS", "100000"))):
    samples, labels = torch.randn(256, 64), torch.randint(0, 8, (256,))
    time.sleep(TURN_S)
    grads, loss = grad_and_value(loss_of)(weights, samples, labels)
    flat = torch.cat([grad.flatten() for grad in grads.values()])
    dist.all_reduce(flat)
    place = 0
    for name, grad in grads.items():
        part = flat[place : place + grad.numel()].view_as(grad)
        weights[name] = weights[name] - 0.01 * part / dist.get_world_size()
        place += grad.numel()
dist.destroy_process_group()
