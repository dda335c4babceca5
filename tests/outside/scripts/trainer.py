"""A trainer as people have it: DDP, AdamW, a loader with workers, an evaluation and a checkpoint after each epoch."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TURN_S = 0.02  # of each step, as a device would work


class Samples(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        values = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return values, values.sum()


def evaluate(model, loader):
    model.eval()
    total = torch.zeros(1)
    with torch.no_grad():
        for samples, targets in loader:
            total += (model(samples).squeeze(1) - targets).abs().mean()
    dist.all_reduce(total)
    model.train()
    return float(total) / len(loader) / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = Samples(16 * 50 * dist.get_world_size())
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=16, sampler=sampler, num_workers=1, persistent_workers=True)
    held_out = DataLoader(Samples(256), batch_size=32)
    for epoch in range(int(os.environ.get("TURNS", "100000")) // 50 + 1):
        sampler.set_epoch(epoch)
        for samples, targets in loader:
            time.sleep(TURN_S)
            loss = (model(samples).squeeze(1) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = evaluate(model.module, held_out)
        if dist.get_rank() == 0:
            print("epoch", epoch, "error", error)
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
