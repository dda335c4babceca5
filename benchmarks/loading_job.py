"""A small training job whose loader looks up each sample's file first; for ``noisy_neighbour``.

``loading_job.py FOLDER LOOKUPS STORM``: so many files of FOLDER ("" for none) are looked up for each sample. From the
moment at which the file STORM is there, another process of each rank's loader looks up, makes and removes files in
FOLDER without a pause. Runs until it is ended. It calls nothing of whichrank.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

STORMING_THREADS = 32
FILES = 4096
COMPUTE_S = 0.06


def name_of_file(number: int) -> str:
    return f"sample-{number % FILES:05d}"


def storm(folder: str, rank: int) -> None:
    """Until its parent ends."""

    def ask(own: int) -> None:
        mine = f"{folder}/index-{rank}-{own}"
        for number in itertools.count():
            os.stat(f"{folder}/{name_of_file(number)}")
            if number % 16 == 0:
                os.close(os.open(mine, os.O_CREAT | os.O_WRONLY, 0o600))
                os.unlink(mine)

    for own in range(STORMING_THREADS):
        threading.Thread(target=ask, args=(own,), daemon=True).start()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


class Samples(IterableDataset):  # type: ignore[type-arg]
    """Without an end."""

    def __init__(self, folder: str, lookups: int, sign: str) -> None:
        self._folder, self._lookups, self._sign = folder, lookups, sign

    def __iter__(self) -> Iterator[torch.Tensor]:
        context = multiprocessing.get_context("fork")
        storming: multiprocessing.context.ForkProcess | None = None
        for number in itertools.count(dist.get_rank() * self._lookups):
            if storming is None and self._sign and os.path.exists(self._sign):
                storming = context.Process(target=storm, args=(self._folder, dist.get_rank()), daemon=True)
                storming.start()
            for lookup in range(self._lookups if self._folder else 0):
                os.stat(f"{self._folder}/{name_of_file(number * self._lookups + lookup)}")
            yield torch.randn(16)


def main() -> None:
    folder, lookups, sign = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Samples(folder, lookups, sign), batch_size=4):
        time.sleep(COMPUTE_S)  # a device would compute here
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
