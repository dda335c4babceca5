"""A small training that saves in one of several ways, and writes down what it did: the truth of ``checkpoint_truth``.

Run by torchrun: ``checkpoint_training.py WAY FOLDER STEPS EVERY``. Goes on from the newest checkpoint that is whole.
"""

# mypy: disable-error-code="attr-defined,name-defined,misc,no-untyped-call"

from __future__ import annotations

import copy
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

WAYS = ("torch_save", "thread", "by_hand", "dcp_save", "dcp_async", "dcp_async_process")
#: What the storage takes for a save, and one step.
STORAGE_S, STEP_S = 0.4, 0.03


class SlowStorage(dcp.FileSystemWriter):
    """Files on storage that takes its time."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """As it is, later."""
        time.sleep(STORAGE_S)
        return super().write_data(*args, **kwargs)


class Training:
    """A linear model of two ranks. folder: of checkpoints and of the truth."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way, self.folder, self.rank = way, folder, dist.get_rank()
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.apart: Any = dist.new_group(backend="gloo")  # what saves in a thread must not cross the gradients' calls
        self.pending: Future[Any] | None = None

    def say(self, **what: int) -> None:
        """A line of the truth."""
        with (self.folder / f"truth-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), **what}) + "\n")

    def state(self) -> dict[str, Any]:
        """All that is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def resume(self) -> int:
        """Steps in the newest checkpoint that is whole, which is loaded; 0 for none."""
        places = {int(place.name.partition("-")[2].partition(".")[0]): place for place in self.folder.glob("step-*")}
        for step in sorted(places, reverse=True):
            if self._load(self.folder / f"step-{step}"):
                return step
        return 0

    def _load(self, place: Path) -> bool:
        """Whether it is whole."""
        if self.way.startswith("dcp"):
            if not (place / ".metadata").exists():
                return False
            dcp.load({"model": self.model.state_dict()}, checkpoint_id=str(place))
            return True
        if self.way == "by_hand" and not place.with_suffix(".opt").exists():
            return False
        try:
            self.model.load_state_dict(torch.load(place.with_suffix(".pt"))["model"])
        except (OSError, RuntimeError, EOFError, KeyError):  # cut short
            return False
        return True

    def step(self, number: int) -> None:
        """One step."""
        self.model(torch.randn(8, 64)).square().mean().backward()
        self.say(doing=number)  # killed between these two lines: nobody knows whether it was made
        self.optimizer.step()
        self.say(done=number)

    def save(self, step: int) -> None:
        """Saves as it is asked for."""
        place = self.folder / f"step-{step}"
        if self.way.startswith("dcp"):
            self._save_by_dcp(place)
        elif self.rank == 0:
            _BY_WAY[self.way](self, place)

    def _save_by_dcp(self, place: Path) -> None:
        if self.way == "dcp_save":
            dcp.save(self.state(), storage_writer=SlowStorage(str(place)))
            return
        if self.pending is not None:
            self.pending.result()
        kind = AsyncCheckpointerType.PROCESS if self.way.endswith("process") else AsyncCheckpointerType.THREAD
        found = dcp.async_save(
            self.state(),
            storage_writer=SlowStorage(str(place)),
            process_group=self.apart,
            async_checkpointer_type=kind,
        )
        self.pending = found if isinstance(found, Future) else found.upload_completion

    def save_plainly(self, place: Path) -> None:
        """One file, written where it stays."""
        torch.save(self.state(), place.with_suffix(".pt"))

    def save_in_thread(self, place: Path) -> None:
        """A copy, written by a thread."""
        state = copy.deepcopy(self.state())

        def write() -> None:
            time.sleep(STORAGE_S / 2)
            torch.save(state, place.with_suffix(".pt"))

        threading.Thread(target=write).start()

    def save_by_hand(self, place: Path) -> None:
        """Two files, which together are the checkpoint."""
        import whichrank

        with whichrank.phase("checkpoint"):
            torch.save({"model": self.model.state_dict()}, place.with_suffix(".pt"))
            time.sleep(STORAGE_S / 2)
            torch.save({"optimizer": self.optimizer.state_dict()}, place.with_suffix(".opt"))


_BY_WAY: dict[str, Callable[[Training, Path], None]] = {
    "torch_save": Training.save_plainly,
    "thread": Training.save_in_thread,
    "by_hand": Training.save_by_hand,
}


def main() -> None:
    """Trains to the end."""
    way, folder, steps, every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training = Training(way, folder)
    first = training.resume()
    training.say(resumed=first)
    for number in range(first + 1, steps + 1):
        training.step(number)
        if number % every == 0:
            training.save(number)
        time.sleep(STEP_S)
    if training.pending is not None:
        training.pending.result()
    training.say(end=steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
