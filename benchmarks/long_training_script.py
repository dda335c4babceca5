"""What the ranks of a long training run under torchrun: ``long_training_script.py FOLDER``, the plan lies in there.

Five kinds, all with a state that follows from the step alone, so that a training that went on has the losses of one
that was never interrupted, also on fewer ranks. Each start goes on from the newest whole checkpoint.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from benchmarks.long_training_course import BATCH, Course, forget_old

WIDTH, HIDDEN = 32, 64


class Model(torch.nn.Module):
    """Two layers; a step's time passes in its forward pass."""

    def __init__(self, course: Course) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, 1)
        self._course = course
        self.step = 0

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Works for a while, then predicts."""
        self._course.works(self.step)
        predicted: torch.Tensor = self.down(torch.relu(self.up(samples)))
        return predicted


def samples_of(step: int, part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This part of a step's samples, and what is to be predicted of them, with noise, so that the loss stays."""
    generator = torch.Generator().manual_seed(step)
    whole, noise = torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 1, generator=generator)
    size = BATCH // parts
    mine = slice(part * size, (part + 1) * size)
    return whole[mine], whole[mine, :1] * 2 + noise[mine]


class TorchTraining:
    """DDP, FSDP2, or FSDP2 beside tensor parallelism, by torch alone."""

    def __init__(self, course: Course) -> None:
        self.course = course
        torch.manual_seed(0)
        self.model = Model(course)
        self.wrapped: torch.nn.Module = self.model
        self.part, self.parts = course.rank, course.world
        self._pending: tuple[int, Any] | None = None
        self._wrap(course.plan.kind)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), 0.02)

    def _wrap(self, kind: str) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if kind == "ddp":
            self.wrapped = torch.nn.parallel.DistributedDataParallel(self.model)
        elif kind == "fsdp2":
            fully_shard(self.model, mesh=init_device_mesh("cpu", (self.parts,)))
            self._saves: Any = dist.new_group()  # of what is saved beside training
        else:
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            mesh = init_device_mesh("cpu", (self.parts // 2, 2), mesh_dim_names=("dp", "tp"))
            parallelize_module(self.model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(self.model, mesh=mesh["dp"])
            self.part, self.parts = mesh.get_local_rank("dp"), mesh["dp"].size()

    def step(self, number: int) -> float:
        """One step; its loss."""
        self.model.step = number
        samples, wanted = samples_of(number, self.part, self.parts)
        loss = (self.wrapped(samples) - wanted).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return self.course.loss_over_ranks(loss, number)

    # --- checkpoints --------------------------------------------------------------------------------------------------
    def resume(self) -> int:
        """Steps in the newest whole checkpoint, which is loaded; 0: there is none."""
        found = [self._newest()]
        dist.broadcast_object_list(found)
        newest = found[0]
        if not newest:
            return 0
        place = self.course.checkpoints / f"step-{newest}"
        if self.course.plan.kind == "ddp":
            self.model.load_state_dict(torch.load(place / "model.pt"))
        else:
            from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
            from torch.distributed.checkpoint.state_dict_loader import load

            state = get_model_state_dict(self.wrapped)
            load(state, checkpoint_id=str(place))
            set_model_state_dict(self.wrapped, state)
        return newest

    def _newest(self) -> int:
        last = "model.pt" if self.course.plan.kind == "ddp" else ".metadata"  # what is written last, and appears whole
        whole = [int(place.parent.name.partition("-")[2]) for place in self.course.checkpoints.glob(f"step-*/{last}")]
        return max(whole, default=0)

    def save(self, step: int) -> None:
        """A checkpoint; where the disk takes none, training goes on."""
        self.course.saving(step)
        place, error = self.course.checkpoints / f"step-{step}", None
        try:
            if self.course.plan.kind == "ddp":
                self._save_whole(place, step)
            elif self.course.plan.kind == "fsdp2":
                self._save_beside(place, step)
                return
            else:
                from torch.distributed.checkpoint.state_dict import get_model_state_dict
                from torch.distributed.checkpoint.state_dict_saver import save

                state: dict[str, Any] = get_model_state_dict(self.wrapped)
                save(state, checkpoint_id=str(place))
                self.course.upload({name: value.to_local().clone() for name, value in state.items()}, step)
        except (OSError, RuntimeError, CheckpointException) as raised:
            error = raised
        self._saved(step, error)

    def _save_whole(self, place: Path, step: int) -> None:
        try:
            if self.course.rank == 0:
                place.mkdir(exist_ok=True)
                torch.save(self.model.state_dict(), place / "new.tmp")
                (place / "new.tmp").rename(place / "model.pt")
        finally:
            dist.barrier()
        self.course.upload({name: value.clone() for name, value in self.model.state_dict().items()}, step)

    def _save_beside(self, place: Path, step: int) -> None:
        """Shards are written while training goes on; an upload that is out of reach is found out at the next."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.wait_for_save()
        target = self.course.upload_folder(step)
        is_upload = target.name == "bucket"
        if is_upload:
            target.parent.parent.mkdir(exist_ok=True)
            target.parent.touch()  # no folder
        future = async_save(
            get_model_state_dict(self.wrapped),
            checkpoint_id=str(target / f"step-{step}" if is_upload else place),
            process_group=self._saves,
        )
        self._pending = step, future

    def wait_for_save(self) -> None:
        """Until the save that goes on beside training has ended."""
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except (OSError, RuntimeError, CheckpointException) as raised:
            self._saved(step, raised)
        else:
            self._saved(step, None)

    def _saved(self, step: int, error: BaseException | None) -> None:
        self.course.saved(step, error)
        if self.course.rank == 0:
            forget_old(self.course.checkpoints, failed=f"step-{step}" if error is not None else "")


def main() -> None:
    """Trains to the end."""
    course = Course(Path(sys.argv[1]))
    if course.plan.kind in ("hf", "lightning"):
        from benchmarks import long_training_trainers as trainers

        (trainers.train_hf if course.plan.kind == "hf" else trainers.train_lightning)(course)
    else:
        timeout = timedelta(seconds=course.plan.timeout_s) if course.plan.timeout_s else None
        dist.init_process_group("gloo", timeout=timeout)
        course.join()
        training = TorchTraining(course)
        first = training.resume()
        course.resumed(first)
        for number in range(first + 1, course.plan.steps + 1):
            course.done(number, training.step(number))
            if course.saves(number):
                training.save(number)
        training.wait_for_save()
    course.end()
    with contextlib.suppress(ValueError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
