"""A model is evaluated: each batch's counts are summed over all ranks, and nothing is trained."""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

TURN_S = 0.01  # of each turn, as a device would work


def evaluate(model, loader):
    right = torch.zeros(1)
    seen = torch.zeros(1)
    with torch.no_grad():
        for samples, labels in loader:
            time.sleep(TURN_S)
            predicted = model(samples).argmax(1)
            counts = torch.stack([(predicted == labels).sum(), torch.tensor(len(labels))]).float()
            dist.all_reduce(counts)
            right += counts[0]
            seen += counts[1]
    return float(right / seen)


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).eval()
data = TensorDataset(torch.randn(2048, 256), torch.randint(0, 10, (2048,)))
for epoch in range(int(os.environ.get("TURNS", "100000")) // 16 + 1):
    accuracy = evaluate(model, DataLoader(data, batch_size=128))
    if dist.get_rank() == 0:
        print("epoch", epoch, "accuracy", accuracy)
dist.destroy_process_group()
