"""Scripts of which the pictures are made, beside the README's own: each a whole ``train.py`` with one fault."""

from __future__ import annotations

_LOOP = """import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load(step):
    time.sleep(0.03)
{fault}
    return torch.randn(32, 64)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    samples = load(step)
    optimizer.zero_grad()
    model(samples).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""

#: Rank 2 does nothing for a while; the job goes on afterwards.
HANGS = _LOOP.format(
    steps=120,
    fault="""    if step == 60 and dist.get_rank() == 2:
        time.sleep(14)  # a lock that is not released""",
)
#: From step 90 on rank 2 takes three times as long to load its batch.
SLOWS = _LOOP.format(
    steps=240,
    fault="""    if step >= 90 and dist.get_rank() == 2:
        time.sleep(0.06)""",
)
