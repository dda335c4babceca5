"""A small training with an emergency save, for ``emergency_saves``; it writes down its weights after each step.

Run by torchrun: ``emergency_training.py FOLDER STEPS HANG_RANK HANG_STEP`` (-1: nobody hangs).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import whichrank

STEP_S = 0.05
#: Between a SIGTERM and the end of what a rank may do about it.
GRACE_S = 12.0


def main(folder: Path, steps: int, hang_rank: int, hang_step: int) -> None:
    """Trains; each rank's lines go to ``truth-RANK.jsonl``."""
    dist.init_process_group("gloo")
    if os.environ.get("EMERGENCY_BY_STORE"):
        os.environ["LOCAL_WORLD_SIZE"] = "0"  # as if others were elsewhere: the ranks agree in the store
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    truth = (folder / f"truth-{rank}.jsonl").open("a", buffering=1)  # open also while an exception unwinds

    def say(**what: object) -> None:
        print(json.dumps({"time": time.time(), **what}), file=truth)

    def weights() -> float:
        return sum(float(each.detach().double().sum()) for each in model.parameters())

    def save(reason: str, seconds_left: float, whole: bool) -> None:
        torch.save(model.state_dict(), folder / f"emergency-{rank}.pt")
        say(saved=weights(), reason=reason, seconds_left=seconds_left, whole=whole)

    say(pid=os.getpid(), listens=whichrank.on_checkpoint(save, grace_s=GRACE_S))
    for step in range(1, steps + 1):
        if (rank, step) == (hang_rank, hang_step):
            say(hangs=step)
            time.sleep(3600)
        time.sleep(STEP_S)
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        say(step=step, weights=weights())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
