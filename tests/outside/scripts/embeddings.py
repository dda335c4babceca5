"""Embeddings are extracted and gathered on rank 0, which writes them to a file now and then."""

import os
import tempfile
import time

import torch
import torch.distributed as dist

TURN_S = 0.01  # of each turn, as a device would work
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64)).eval()
kept = []
with torch.inference_mode(), tempfile.TemporaryFile() as file:
    for batch in range(int(os.environ.get("TURNS", "100000"))):
        time.sleep(TURN_S)
        found = torch.nn.functional.normalize(model(torch.randn(128, 512)))
        parts = [torch.empty_like(found) for _ in range(world)] if rank == 0 else None
        dist.gather(found, parts, dst=0)
        if rank == 0:
            kept.append(torch.cat(parts))
            if len(kept) == 20:
                torch.save(torch.cat(kept), file)
                file.seek(0)
                kept.clear()
dist.destroy_process_group()
