"""The Lightning Trainer with DDP, a scheduler and a callback; the loader is the course's."""
# mypy: ignore-errors

import lightning
import torch
from course import FEATURES, Course
from lightning.pytorch.callbacks import Callback
from torch import nn

course = Course()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, index):
        x, y = batch
        with course.part("forward"):
            return nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]


class Steps(Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        course.begin(index)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        course.end()


def main():
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=course.world_size,
        strategy="ddp",
        max_steps=course.steps,
        callbacks=[Steps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), course.loader())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
