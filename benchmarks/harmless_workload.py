"""A training job for benchmarks/harmless.py: ordinary DDP, FSDP2 or compiled training; knows nothing of whichrank.

    torchrun --nproc-per-node 2 harmless_workload.py DIRECTORY MODEL STEPS EXIT_CODE

Dropout and two loader workers with random augmentation, so that every random stream takes part in every loss. Each rank
writes its losses bit by bit (float.hex) into DIRECTORY/losses-RANK, and rank 0 the steps done so far into
DIRECTORY/step, so that abuse can strike in mid-run. MODEL "leaving" averages gradients by hand and ends as many scripts
do: right after an asynchronous collective, its process groups left to the end of the interpreter. (With DDP
torch lets go of them in another order, in which nothing of ours was ever in the way.)
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class NoisySamples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that depend on the worker's random streams."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16) + index % 7 + random.random()


def make_model(kind: str) -> torch.nn.Module:
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)]
    model = torch.nn.Sequential(*layers)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in (layers[0], layers[3]):
            fully_shard(layer)
        fully_shard(model)
        return model
    if kind == "leaving":
        return model
    if kind == "compiled":
        return torch.compile(DistributedDataParallel(model))  # type: ignore[return-value]
    return DistributedDataParallel(model)


def main() -> None:
    directory, kind, steps, exit_code = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234 + rank)
    random.seed(rank)
    model = make_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(NoisySamples(), batch_size=8, num_workers=2, shuffle=True)
    losses = []
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        if kind == "leaving":
            gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                if work is not None:
                    work.wait()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if rank == 0 and step % 10 == 0:
            (directory / "step").write_text(str(step))
        if step + 1 == steps:
            break
    noise = (torch.rand(1).item(), random.random())  # where the random streams ended up
    (directory / f"losses-{rank}").write_text("\n".join(value.hex() for value in (*losses, *noise)) + "\n")
    dist.barrier()
    if kind == "leaving":
        # Nobody asks whether they have ended; the last one's future shows only that there is nothing left to wait for.
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(200)]
        works[-1].get_future().wait()
        del works
        sys.exit(exit_code if rank == 0 else 0)
    if kind != "compiled":  # many scripts leave that to the end of the process
        dist.destroy_process_group()
    sys.exit(exit_code if rank == 0 else 0)


if __name__ == "__main__":
    # Not at import: loader workers would do it again.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
