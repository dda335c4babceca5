"""Trainings of frameworks that save by their own means, and write down what they did: truth of ``checkpoint_truth``.

Run by torchrun: ``checkpoint_frameworks.py WAY FOLDER STEPS EVERY``. Goes on from the newest checkpoint that is whole.
Needs ``make setup-frameworks``.
"""
# mypy: ignore-errors

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch

#: By way, what it needs.
WAYS = {"hf": "transformers", "lightning": "lightning", "lightning_async": "lightning", "deepspeed": "deepspeed"}
#: What the storage takes for a part of a save, and one step.
STORAGE_S, STEP_S = 0.2, 0.03
WIDTH, BATCH = 64, 8


def is_here(way: str) -> bool:
    """Whether this environment has what the way needs."""
    return find_spec(WAYS[way]) is not None


class Course:
    """Where the run lies, and its truth."""

    def __init__(self, folder: Path, steps: int, every: int) -> None:
        self.folder, self.steps, self.every = folder, steps, every

    def say(self, **what: int) -> None:
        """A line of the truth."""
        with (self.folder / f"truth-{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), **what}) + "\n")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, samples):
        time.sleep(STEP_S)
        return self.layer(samples)


class Samples(torch.utils.data.Dataset):
    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return {"samples": torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))}


def train_hf(course: Course) -> None:
    """Trainer and its checkpoints; what it writes last is ``trainer_state.json``."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Slow(Trainer):
        def compute_loss(self, model, inputs, *arguments, **named):
            return model(inputs["samples"]).square().mean()

        def _save_optimizer_and_scheduler(self, output_dir):
            time.sleep(STORAGE_S)
            super()._save_optimizer_and_scheduler(output_dir)
            time.sleep(STORAGE_S)

    class Steps(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **named):
            course.say(doing=state.global_step + 1)

        def on_optimizer_step(self, args, state, control, **named):
            course.say(done=state.global_step + 1)

    arguments = TrainingArguments(
        output_dir=str(course.folder), use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=BATCH,
        max_steps=course.steps, save_steps=course.every, logging_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False, ddp_find_unused_parameters=False,
    )  # fmt: skip
    whole = [int(json.loads(found.read_text())["global_step"]) for found in course.folder.glob("*/trainer_state.json")]
    newest = max(whole, default=0)
    trainer = Slow(Model(), arguments, train_dataset=Samples(4 * BATCH * course.steps), callbacks=[Steps()])
    course.say(resumed=newest)
    trainer.train(resume_from_checkpoint=str(course.folder / f"checkpoint-{newest}") if newest else None)
    course.say(end=course.steps)


def train_lightning(course: Course, *, beside: bool) -> None:
    """Trainer under DDP with ``ModelCheckpoint``. beside: by ``AsyncCheckpointIO``, in a thread."""
    import lightning
    from lightning.fabric.plugins.io import TorchCheckpointIO
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Model()

        def training_step(self, batch, index):
            return self.net(batch["samples"]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            time.sleep(STORAGE_S)
            super().save_checkpoint(checkpoint, path, storage_options)

    class Steps(Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            course.say(doing=trainer.global_step + 1)

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            course.say(done=trainer.global_step)

    places = {int(place.stem.partition("-")[2]): place for place in course.folder.glob("step-*.ckpt")}
    newest = max((step for step, place in places.items() if _is_whole(place)), default=0)
    course.say(resumed=newest)
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=course.steps, logger=False, barebones=False,
        plugins=[AsyncCheckpointIO(Slow()) if beside else Slow()], enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            # Before the save of this step, which is in a callback as well: its truth has to be written by then.
            Steps(),
            ModelCheckpoint(
                dirpath=course.folder, filename="step-{step}", auto_insert_metric_name=False,
                every_n_train_steps=course.every, save_top_k=-1, enable_version_counter=False,
            ),
        ],
    ).fit(
        Module(),
        torch.utils.data.DataLoader(Samples(4 * BATCH * course.steps), batch_size=BATCH),
        ckpt_path=str(places[newest]) if newest else None,
    )  # fmt: skip
    course.say(end=course.steps)


def _is_whole(place: Path) -> bool:
    try:
        torch.load(place, weights_only=False)
    except (OSError, RuntimeError, EOFError, ValueError):
        return False
    return True


def train_deepspeed(course: Course) -> None:
    """ZeRO 1; ``latest`` is written last."""
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    model = Model()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), 1e-3),
        config={
            "train_batch_size": 2 * BATCH, "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
        },
    )  # fmt: skip
    write = engine.checkpoint_engine.save

    def write_slowly(state, path, *arguments, **named):
        time.sleep(STORAGE_S)
        return write(state, path, *arguments, **named)

    engine.checkpoint_engine.save = write_slowly
    newest = 0
    if (course.folder / "latest").exists():
        engine.load_checkpoint(str(course.folder))
        newest = engine.global_steps
    course.say(resumed=newest)
    for number in range(newest + 1, course.steps + 1):
        engine.backward(engine(torch.randn(BATCH, WIDTH)).square().mean())
        course.say(doing=number)
        engine.step()
        course.say(done=number)
        if number % course.every == 0:
            engine.save_checkpoint(str(course.folder), tag=f"step-{number}")
    course.say(end=course.steps)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Trains to the end."""
    way, course = sys.argv[1], Course(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    torch.manual_seed(0)
    if way == "hf":
        train_hf(course)
    elif way == "deepspeed":
        train_deepspeed(course)
    else:
        train_lightning(course, beside=way == "lightning_async")


if __name__ == "__main__":
    main()
