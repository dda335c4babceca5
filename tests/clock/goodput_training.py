"""A training job that writes down itself what it does when: steps, checkpoints, data, its own death. No whichrank.

How late a thread of each rank was woken at most is written down as well: nobody else here is woken sooner.

Arguments: folder, steps, step at which rank 2 of the first attempt is killed. Each rank appends JSON lines to its own
file in the folder: what, and Unix nanoseconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

BEGAN_NS = time.time_ns()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

FOLDER, STEPS, KILLED_AT = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
SAVE_EVERY = 10
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def note(what: str, begin_ns: int, end_ns: int = 0, step: int = -1) -> None:
    line = {"what": what, "rank": RANK, "attempt": ATTEMPT, "begin_ns": begin_ns, "end_ns": end_ns, "step": step}
    with open(FOLDER / f"truth-{RANK}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def note_lateness() -> None:
    """Of sleeps of 10 ms, each time that one is later than all before."""
    latest_ns = 0
    while True:
        begin_ns = time.time_ns()
        time.sleep(0.01)
        end_ns = time.time_ns()
        if end_ns - begin_ns > latest_ns + 10_000_000:
            latest_ns = end_ns - begin_ns
            note("late", begin_ns + 10_000_000, end_ns)


class SlowData(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.full((8,), float(place % 7))


class SlowFile:
    """A file on a slow disk: the first write or read takes its time."""

    def __init__(self, path: Path, mode: str, seconds: float) -> None:
        self._file = open(path, mode)  # noqa: SIM115
        self._left_s = seconds

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "read", "readinto") and self._left_s:
            time.sleep(self._left_s)
            self._left_s = 0.0
        return getattr(self._file, name)


def main() -> None:
    note("began", BEGAN_NS)
    threading.Thread(target=note_lateness, daemon=True).start()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    checkpoint, first = FOLDER / "checkpoint.pt", 0
    if checkpoint.exists():
        begin_ns = time.time_ns()
        saved = torch.load(SlowFile(checkpoint, "rb", 0.5), weights_only=True)
        model.load_state_dict(saved["model"])
        first = int(saved["step"])
        note("load", begin_ns, time.time_ns(), first)
    batches = iter(DataLoader(SlowData(), batch_size=1))
    for step in range(first, STEPS):
        begin_ns = time.time_ns()
        batch = next(batches)
        note("data", begin_ns, time.time_ns(), step)
        if RANK == 2 and ATTEMPT == 0 and step == KILLED_AT:
            note("killed", time.time_ns(), step=step)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note("step", begin_ns, time.time_ns(), step)
        if (step + 1) % SAVE_EVERY == 0 and step + 1 < STEPS:
            begin_ns = time.time_ns()
            if RANK == 0:
                partial = FOLDER / "checkpoint.partial"
                torch.save({"model": model.state_dict(), "step": step + 1}, SlowFile(partial, "wb", 0.3))
                partial.replace(checkpoint)
            note("save", begin_ns, time.time_ns(), step + 1)
            dist.barrier()
    dist.destroy_process_group()


main()
