"""Lightning: DDP, gradient accumulation, clipping, bf16 autocast, a scheduler, validation and checkpoints."""
# mypy: ignore-errors

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader
from truth import CHECKPOINT_S, Net, Samples, Truth

ACCUMULATE = 2
truth = Truth()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(truth)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).float(), y)
        truth.loss = float(loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", nn.functional.mse_loss(self.net(x).float(), y), sync_dist=True)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        squares = [parameter.grad.square().sum() for parameter in self.parameters()]
        truth.grad_norm = float(torch.stack(squares).sum().sqrt())
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]

    def on_save_checkpoint(self, checkpoint):
        truth.spend("checkpoint", CHECKPOINT_S)


class Steps(Callback):
    """``on_before_zero_grad`` comes right after the optimizer's step."""

    def __init__(self):
        self.before = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step > self.before:
            self.before = trainer.global_step
            truth.step()

    def on_validation_start(self, trainer, module):
        truth.evaluating = True

    def on_validation_end(self, trainer, module):
        truth.evaluating = False


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    precision="bf16-mixed",
    max_epochs=3,
    accumulate_grad_batches=ACCUMULATE,
    gradient_clip_val=1.0,
    val_check_interval=6,
    callbacks=[Steps(), ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=4, save_top_k=-1)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    Module(),
    DataLoader(Samples(truth, 2 * 4 * 12), batch_size=4),
    DataLoader(Samples(truth, 2 * 4 * 2, phase="eval"), batch_size=4),
)
truth.write("Lightning DDP", f"lightning {lightning.__version__}", loss_divided_by=ACCUMULATE)
