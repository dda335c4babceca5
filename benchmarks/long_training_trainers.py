"""The long trainings of Hugging Face's Trainer and of Lightning: each saves and resumes by its own means."""
# mypy: ignore-errors

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist

from benchmarks.long_training_course import BATCH, Course, forget_old
from benchmarks.long_training_faults import EVERY

WIDTH, HIDDEN, LEARNING_RATE = 32, 64, 0.01


class Net(torch.nn.Module):
    """Two layers; a step's time passes in its forward pass, as long as it trains."""

    def __init__(self, course: Course) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
        self.course, self.number = course, 0

    def forward(self, samples):
        self.course.works(self.number)
        return self.layers(samples)


class Samples(torch.utils.data.Dataset):
    """Sample n of step s is number s * BATCH + n."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        made = torch.randn(WIDTH + 1, generator=torch.Generator().manual_seed(index))
        return {"samples": made[:WIDTH], "wanted": made[:1] * 2 + made[WIDTH:]}


def train_hf(course: Course) -> None:
    """Trainer with AdamW and a schedule, its own checkpoints, ``resume_from_checkpoint``."""
    from safetensors import SafetensorError
    from transformers import Trainer, TrainerCallback, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(course.checkpoints),
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=BATCH // course.world,
        max_steps=course.plan.steps,
        learning_rate=LEARNING_RATE,
        save_steps=EVERY,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    torch.manual_seed(0)
    net = Net(course)

    class Long(Trainer):
        def _get_train_sampler(self, *arguments, **named):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model, inputs, *arguments, **named):
            net.number = self.state.global_step + 1
            loss = (model(inputs["samples"]) - inputs["wanted"]).square().mean()
            self.whole_loss = course.loss_over_ranks(loss, net.number)
            return loss

        def _save_checkpoint(self, *arguments, **named):
            step, error = self.state.global_step, None
            course.saving(step)
            try:
                super()._save_checkpoint(*arguments, **named)
            except (OSError, RuntimeError, SafetensorError) as raised:
                error = raised
            course.saved(step, error)
            if course.rank == 0:
                forget_old(course.checkpoints, failed=f"checkpoint-{step}" if error is not None else "")
                if error is None:
                    course.upload({name: value.clone() for name, value in net.state_dict().items()}, step)

    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            course.done(state.global_step, trainer.whole_loss)

    trainer = Long(net, arguments, train_dataset=Samples(BATCH * course.plan.steps), callbacks=[Steps()])
    course.join()
    found = [_newest_of_hf(course)]
    dist.broadcast_object_list(found)
    course.resumed(found[0])
    trainer.train(resume_from_checkpoint=str(course.checkpoints / f"checkpoint-{found[0]}") if found[0] else None)


def _newest_of_hf(course: Course) -> int:
    newest = 0
    for place in course.checkpoints.glob("checkpoint-*/trainer_state.json"):  # the last that it writes
        try:
            newest = max(newest, int(json.loads(place.read_text())["global_step"]))
        except (ValueError, KeyError):
            continue
    return newest


def train_lightning(course: Course) -> None:
    """Trainer under DDP, with ``ModelCheckpoint`` and ``ckpt_path``."""
    import lightning
    from lightning.fabric.plugins.io import TorchCheckpointIO
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net(course)

        def training_step(self, batch, index):
            step = self.net.number = self.trainer.global_step + 1
            size = BATCH // course.world
            first = step * BATCH + course.rank * size
            mine = [SAMPLES[index] for index in range(first, first + size)]
            predicted = self.net(torch.stack([one["samples"] for one in mine]).double())
            loss = (predicted - torch.stack([one["wanted"] for one in mine]).double()).square().mean()
            self.whole_loss = course.loss_over_ranks(loss, step)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)

        def on_save_checkpoint(self, checkpoint):
            course.saving(self.trainer.global_step)

    class Steps(Callback):
        def on_fit_start(self, trainer, module):
            course.join()

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            course.done(trainer.global_step, module.whole_loss)

    class Careful(TorchCheckpointIO):
        """Where the disk takes no checkpoint, training goes on."""

        def save_checkpoint(self, checkpoint, path, storage_options=None):
            step, error = int(checkpoint["global_step"]), None
            try:
                super().save_checkpoint(checkpoint, path, storage_options)
            except (OSError, RuntimeError) as raised:
                error = raised
            course.saved(step, error)
            forget_old(course.checkpoints, failed=f"step-{step}.ckpt" if error is not None else "")
            if error is None:
                course.upload({name: value.clone() for name, value in checkpoint["state_dict"].items()}, step)

    SAMPLES = Samples(BATCH * (course.plan.steps + 2))
    newest = _newest_of_lightning(course)
    course.resumed(newest)
    saves = ModelCheckpoint(
        dirpath=course.checkpoints, filename="step-{step}", auto_insert_metric_name=False, every_n_train_steps=EVERY,
        save_top_k=-1, enable_version_counter=False,
    )  # fmt: skip
    torch.manual_seed(0)
    lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        # Adam at a constant rate makes much of what is rounded otherwise on fewer ranks.
        precision="64-true",
        max_steps=course.plan.steps,
        plugins=[Careful()],
        callbacks=[Steps(), saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    ).fit(
        Module(),
        torch.utils.data.DataLoader(range(2 * course.plan.steps)),
        ckpt_path=str(course.checkpoints / f"step-{newest}.ckpt") if newest else None,
    )


def _newest_of_lightning(course: Course) -> int:
    """All ranks look at the same files before any writes: its process group is not there yet."""
    for place in sorted(course.checkpoints.glob("step-*.ckpt"), key=lambda one: -int(one.stem.partition("-")[2])):
        try:
            torch.load(place, weights_only=False)
        except (OSError, RuntimeError, EOFError, ValueError):
            continue
        return int(place.stem.partition("-")[2])
    return 0
