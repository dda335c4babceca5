"""Two ranks that try every manner of the test process group; what they saw goes to ``RESULT`` as JSON, line by line.

Argument "stuck": the device of rank 1 stands still at the end, until the watchdogs end both; "gone": rank 1 leaves.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from tests.device_backend import register, stream
from tests.device_backend.group import groups, wait_for_futures

RANK = int(os.environ["RANK"])
SEEN: dict[str, Any] = {}


def status(group: int = 0) -> tuple[int, int, int]:
    """Enqueued, started, completed as torch's own dump function tells them."""
    time.sleep(0.25)  # the watchdog looks ten times a second
    text = c10d._dump_fr_trace_json(includeCollectives=False, backend="device")
    entry = json.loads(text)["pg_status"][str(group)]
    return tuple(entry[f"last_{word}_collective"] for word in ("enqueued", "started", "completed"))


def try_results() -> None:
    """While the host still waits, results are those of a real group."""
    total = torch.full((3,), float(RANK + 1))
    dist.all_reduce(total)
    gathered = torch.zeros(4)
    dist.all_gather_into_tensor(gathered, torch.full((2,), float(RANK)))
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, torch.arange(4.0))
    sent = torch.full((1,), float(RANK))
    dist.broadcast(sent, src=1)
    SEEN["results"] = [total.tolist(), gathered.tolist(), part.tolist(), sent.tolist()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    model(torch.full((1, 2), float(RANK))).sum().backward()
    SEEN["gradient"] = model.module.weight.grad.tolist()


def try_calls() -> None:
    """Rank 1's device is 0.6 s late: the calls of rank 0 are not, and their wait neither."""
    if RANK == 1:
        stream().compute(0.6)
    before = status()[2]
    began = time.monotonic()
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    SEEN["calls_took"] = time.monotonic() - began
    SEEN["late"] = [number - before for number in status()]
    stream().synchronize()
    SEEN["then"] = [number - before for number in status()]
    calls = list(groups()[0].order)
    SEEN["in_order"] = calls == sorted(calls)


def try_running_ahead() -> None:
    """Eight steps of 0.1 s, launched as fast as the queue allows."""
    ended: list[int] = []
    lead = []
    for step in range(12):
        wait_for_futures()
        stream().compute(0.1)
        dist.all_reduce(torch.ones(2))
        stream().launch(lambda step=step: ended.append(step))  # type: ignore[misc]
        lead.append(step - len(ended))
    SEEN["lead"] = max(lead)
    SEEN["held_up_s"] = stream().stalled_s
    stream().synchronize()
    SEEN["steps_in_order"] = ended == list(range(12))


def try_replay() -> None:
    """The device does what is in a graph, and nobody hears of it."""
    heard: list[Any] = []
    world: Any = dist.group.WORLD
    world.register_pre_hook(77, lambda args: heard.append(args.op_id))
    before = status()
    done = groups()[0].replay_graph()
    dist.all_reduce(torch.ones(1))
    stream().synchronize()
    SEEN["replay"] = [done.query(), len(heard), status()[0] - before[0]]
    world.unregister_pre_hook(77)


def write() -> None:
    Path(os.environ["RESULT"]).write_text(json.dumps(SEEN))


def main() -> None:
    register()
    store = c10d.FileStore(os.environ["STORE"], 2)
    dist.init_process_group("device", store=store, rank=RANK, world_size=2, timeout=timedelta(seconds=4))
    if sys.argv[1] == "gone":
        stream().run_ahead()
        dist.all_reduce(torch.ones(1))
        if RANK == 1:
            stream().synchronize()
            os._exit(0)
        dist.all_reduce(torch.ones(1))
        time.sleep(60)
    try_results()
    stream().run_ahead()
    try_calls()
    try_running_ahead()
    try_replay()
    if RANK == 1:
        stream().launch(lambda: time.sleep(60))
    before = status()
    dist.all_reduce(torch.ones(7))
    SEEN["stuck"] = [number - before[2] for number in status()]
    write()
    time.sleep(60)


if __name__ == "__main__":
    main()
