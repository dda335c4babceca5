"""Run as a program: gloo jobs of four ranks, each with one fault, that dump their flight recorders and end.

    python dumping_job.py OUT SCENARIO...

Writes OUT/SCENARIO/pickle/rank_N and OUT/SCENARIO/json/rank_N.json. torch is imported once; ranks are forks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

RANKS = 4
#: From the first call of the training to the dump: the faults show at once.
DUMP_S = 3.0
#: On a busy machine. Torch takes its time to look up the lines of the stacks in a pickle: 60 s have been seen.
TIMEOUT_S = 90


def main(out: Path, scenarios: list[str]) -> None:
    """All at once: they spend their time waiting."""
    children = []
    for scenario in scenarios:
        folder = out / scenario
        (folder / "pickle").mkdir(parents=True)
        (folder / "json").mkdir()
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                run_rank(rank, folder, scenario)
            children.append(child)
    for child in children:
        os.waitpid(child, 0)


def run_rank(rank: int, folder: Path, scenario: str) -> None:
    begun = threading.Event()
    threading.Thread(target=dump_and_leave, args=(rank, folder, begun), daemon=True).start()
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        train(rank, scenario, begun)
    except Exception as trouble:
        sys.stderr.write(f"rank {rank}: {str(trouble)[:120]}\n")
    time.sleep(TIMEOUT_S)


def dump_and_leave(rank: int, folder: Path, begun: threading.Event) -> None:
    """Leave together: a rank that is gone ends its peers' calls. JSON first: after a pickle all may be over."""
    begun.wait(TIMEOUT_S)
    time.sleep(DUMP_S)
    try:
        text = recorder("_json")()
        (folder / "json" / f"rank_{rank}.json").write_bytes(text.encode() if isinstance(text, str) else text)
        dumped = recorder("")()
        assert isinstance(dumped, bytes)
        (folder / "pickle" / f"rank_{rank}").write_bytes(dumped)
        until = time.monotonic() + TIMEOUT_S
        while len(list((folder / "pickle").iterdir())) < RANKS and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)
    finally:
        os._exit(0)


def recorder(form: str) -> Callable[[], bytes | str]:
    """What dumps in this torch: any backend's recorder in newer ones, NCCL's alone before."""
    dump: Callable[[], bytes | str] | None = getattr(c10d, f"_dump_fr_trace{form}", None)
    return dump or getattr(c10d, f"_dump_nccl_trace{form}")


def subgroup(members: list[int], name: str) -> dist.ProcessGroup | None:
    """None for who is no member: it must take part in making the group, and does not use it."""
    group = dist.new_group(members, group_desc=name)
    return group if isinstance(group, dist.ProcessGroup) else None


def train(rank: int, scenario: str, begun: threading.Event) -> None:
    tensor = torch.ones(16)
    halves = [subgroup([0, 1], "half"), subgroup([2, 3], "half")]
    pairs = [subgroup([0, 2], "pair"), subgroup([1, 3], "pair")]
    half, pair = halves[rank // 2], pairs[rank % 2]
    for _ in range(3):
        dist.all_reduce(tensor, group=half)
        dist.all_reduce(tensor, group=pair)
        dist.broadcast(tensor, 0)
    begun.set()
    if scenario == "rank_0_sleeps" and rank == 0:
        time.sleep(TIMEOUT_S)
    if scenario == "rank_3_skips" and rank == 3:
        dist.broadcast(tensor, 0)
    if scenario == "other_order":
        first, second = (half, pair) if rank in (0, 3) else (pair, half)
        dist.all_reduce(tensor, group=first)
        dist.all_reduce(tensor, group=second)
    if scenario == "nested_1_sleeps":
        if rank == 1:
            time.sleep(TIMEOUT_S)
        dist.all_reduce(tensor, group=half)
        dist.all_reduce(tensor, group=pair)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
