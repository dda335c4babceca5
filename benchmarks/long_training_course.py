"""What each rank of a long training does beside training: writes down the truth, and does the faults that are due.

Knows nothing of whichrank. A fault comes once: who does it leaves a file behind first. Only the first that has not been
is due, so that faults come one after the other whatever they cost.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.long_training_faults import (
    CHECKPOINTS,
    EVERY,
    FILLER,
    SLOW_S,
    SLOW_STEPS,
    UPLOADS,
    Fault,
    FaultKind,
    Place,
    read_plan,
)

#: Samples of a step over all ranks: the same whatever their number, which divides it.
BATCH = 24
_FOREVER_S = 86_400.0
KEEP = 2


class Course:
    """One rank's. Make it before ``init_process_group``; call ``join`` after it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan = folder, read_plan(folder)
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.checkpoints = folder / CHECKPOINTS
        self._node, self._nodes = int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])
        self._first_step = 0
        self._second: Any = None
        self._upload: threading.Thread | None = None
        self.say(born=1, world=self.world)

    def join(self) -> None:
        """Makes a second group of all ranks, in which a rank can wait for those that wait for it in the first."""
        self._second = dist.new_group()

    def say(self, **what: float | str) -> None:
        """A line of the truth."""
        with (self.folder / f"truth-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps({"time": time.time(), **what}) + "\n")

    def resumed(self, step: int) -> None:
        """Steps that the checkpoint holds from which this start goes on."""
        self._first_step = step + 1
        self.say(resumed=step)

    # --- a step -------------------------------------------------------------------------------------------------------
    def sleeps_s(self, step: int) -> float:
        """How long this rank sleeps in this step: as a device works while its process waits."""
        slow = self._due(step, FaultKind.SLOW)
        if slow is not None and self._is_slow(slow):
            self._happens(slow, step, text=str(step))
        mine = [one for one in self.plan.faults if one.kind is FaultKind.SLOW and self._is_slow(one)]
        return self.plan.step_s + sum(SLOW_S for one in mine if 0 <= step - self._since(one) < SLOW_STEPS)

    def _is_slow(self, fault: Fault) -> bool:
        if self._nodes == 1:
            return fault.rank % self.world == self.rank
        return fault.node % self._nodes == self._node

    def _since(self, fault: Fault) -> int:
        try:
            return int(self._mark(fault).read_text() or "0")
        except (OSError, ValueError):
            return 1 << 60

    def works(self, step: int) -> None:
        """A step's work, in which ranks hang, are killed, stop or raise."""
        fault = self._due(step)
        if fault is not None and fault.kind is FaultKind.DISK and self.rank == 0:
            self._happens(fault, step)  # whoever watches fills the disk
        if fault is not None and fault.rank % self.world == self.rank and _is_in_step(fault, step == self._first_step):
            self._happens(fault, step)
            _do(fault)
        time.sleep(self.sleeps_s(step))

    def loss_over_ranks(self, loss: torch.Tensor, step: int) -> float:
        """The mean over all ranks; a rank that skips it waits in another group instead, so that each waits for each."""
        whole = loss.detach().clone().double()
        fault = self._due(step, FaultKind.DEADLOCK)
        if fault is not None and fault.rank % self.world == self.rank:
            self._happens(fault, step)
            dist.barrier(group=self._second)
        dist.all_reduce(whole)
        return float(whole) / self.world

    def done(self, step: int, loss: float) -> None:
        """A step has been made."""
        if self.rank == 0:
            self.say(done=step, loss=loss)

    # --- a save -------------------------------------------------------------------------------------------------------
    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % EVERY == 0

    def saving(self, step: int) -> None:
        """In a save, in which ranks hang."""
        fault = self._due(step, FaultKind.HANG)
        if fault is not None and fault.place is Place.SAVE and fault.rank % self.world == self.rank:
            self._happens(fault, step)
            _do(fault)

    def saved(self, step: int, error: BaseException | None = None) -> None:
        """A save has ended, well or not."""
        if self.rank:
            return
        if error is None:
            self.say(saved=step)
        else:
            self.say(save_failed=step, error=f"{type(error).__name__}: {error}"[:300])

    def upload(self, state: Any, step: int) -> None:
        """Copies rank 0's state to where checkpoints are kept, in a thread of its own; a server may be out of reach."""
        if self.rank:
            return
        if self._upload is not None:
            self._upload.join()
        self._upload = threading.Thread(target=self._copy, args=(state, step, self.upload_folder(step)), daemon=True)
        self._upload.start()

    def end(self) -> None:
        """The last step is made; what is being uploaded is waited for."""
        if self._upload is not None:
            self._upload.join()
        self.say(end=self.plan.steps)

    def upload_folder(self, step: int) -> Path:
        """Where an upload of this step goes; out of reach where that is its fault."""
        fault = self._due(step, FaultKind.UPLOAD)
        if fault is None:
            return self.folder / UPLOADS
        if self.rank == 0:
            self._happens(fault, step)
        return self.folder / UPLOADS / "out-of-reach" / "bucket"

    def _copy(self, state: Any, step: int, place: Path) -> None:
        try:
            torch.save(state, place / f"step-{step}.pt")
            for old in sorted(place.glob("step-*.pt"), key=lambda path: path.stat().st_mtime)[:-KEEP]:
                old.unlink()
        except (OSError, RuntimeError) as error:
            self.say(upload_failed=step, error=f"{type(error).__name__}: {error}"[:300])

    # --- faults -------------------------------------------------------------------------------------------------------
    def _mark(self, fault: Fault) -> Path:
        return self.folder / f"fault-{fault.number}"

    def _due(self, step: int, kind: FaultKind | None = None) -> Fault | None:
        """The next fault, if it is due and of this kind."""
        for fault in self.plan.faults:
            comes_again = fault.kind is FaultKind.ALWAYS
            if comes_again or not self._mark(fault).exists():
                is_due = step == fault.step if comes_again else step >= fault.step
                is_due |= fault.place is Place.FIRST and step == self._first_step
                return fault if is_due and kind in (None, fault.kind) else None
        return None

    def _happens(self, fault: Fault, step: int, text: str = "") -> None:
        self.say(fault=fault.number, kind=fault.kind.value, step=step)
        self._mark(fault).write_text(text)


def forget_old(folder: Path, *, failed: str = "") -> None:
    """Keeps the newest checkpoints (``NAME-STEP``, folders or files), and nothing of one that ``failed``, by name.

    On a full disk no old one goes: whoever fills it would have to be faster than the save that comes next.
    """
    if failed:
        _remove(folder / failed)
    if failed or (folder / FILLER).exists():
        return
    places = sorted(folder.glob("*-*"), key=lambda place: int(place.stem.partition("-")[2]))
    for place in places[:-KEEP]:
        _remove(place)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _is_in_step(fault: Fault, is_first: bool) -> bool:
    if fault.kind is FaultKind.HANG:
        return fault.place is Place.STEP or (fault.place is Place.FIRST and is_first)
    return fault.kind in (FaultKind.KILL, FaultKind.STOP, FaultKind.ONCE, FaultKind.ALWAYS)


def _do(fault: Fault) -> None:
    if fault.kind is FaultKind.HANG:
        until_s = time.monotonic() + _FOREVER_S
        while time.monotonic() < until_s:  # whatever a signal's handler does
            time.sleep(_FOREVER_S)
    elif fault.kind is FaultKind.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind is FaultKind.STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise RuntimeError("the batch cannot be read")
