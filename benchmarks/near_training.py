"""The job of ``near_checkpoints``: a state that tells by itself whether it is torn, saved near the job each step.

    torchrun ... near_training.py FOLDER MEBIBYTES STEPS PAUSE_S

Node n of two has its slots in FOLDER/node-n; storage is FOLDER/storage. After ``load`` each rank appends to
FOLDER/rank-R.jsonl what it got: step, source, and whether each element is what step and rank make it; later each step
that it knows to be whole.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from whichrank.checkpoint import NearCheckpoints

TENSORS = 8


def element(step: int, rank: int, tensor: int) -> float:
    """What all elements of a rank's tensor are after a step: exact in 32 bits."""
    return float(step * 1000 + rank * 10 + tensor)


def main(folder: Path, mebibytes: int, steps: int, pause_s: float) -> None:
    """One attempt."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    near = NearCheckpoints(
        "training", local=folder / f"node-{2 * rank // world}", persistent=folder / "storage", persistent_every=4,
        keep_persistent=2,
    )  # fmt: skip
    count = mebibytes * (1 << 18) // TENSORS
    # Under a key of the rank's own: to DCP a plain tensor under one key is the same tensor on all ranks.
    mine = f"rank-{rank}"
    state: dict[str, Any] = {mine: [torch.zeros(count) for _ in range(TENSORS)], "step": 0, "note": {"of": -1}}
    with open(folder / f"rank-{rank}.jsonl", "a", buffering=1, encoding="utf-8") as log:

        def tell(**said: Any) -> None:
            log.write(json.dumps(said) + "\n")

        restored = near.load(state)
        step = state["step"]
        is_right = all(
            bool((each == (element(step, rank, number) if step else 0.0)).all())
            for number, each in enumerate(state[mine])
        )
        digest = hashlib.blake2b(b"".join(bytes(memoryview(each.numpy())) for each in state[mine])).hexdigest()
        tell(
            restored=-1 if restored is None else restored.step, source="" if restored is None else restored.source,
            step=step, note=state["note"]["of"], is_right=is_right, digest=digest,
        )  # fmt: skip
        whole: int | None = None
        for now in range(step + 1, step + steps + 1):
            time.sleep(pause_s)
            for number, each in enumerate(state[mine]):
                each.fill_(element(now, rank, number))
            state["step"], state["note"] = now, {"of": now}
            near.save(state, now)
            if now == step + 1:
                near.wait(60.0)  # its writers have met by then: saves before that may be left out
            if near.newest_whole_step() != whole:
                whole = near.newest_whole_step()
                tell(whole=whole, copied=near.newest_copied_step())
        near.wait(60.0)
        digest = hashlib.blake2b(b"".join(bytes(memoryview(each.numpy())) for each in state[mine])).hexdigest()
        tell(whole=near.newest_whole_step(), copied=near.newest_copied_step(), at=state["step"], digest=digest)
        dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
