"""Lightning's ModelParallelStrategy: FSDP2 on the CPU, validation."""
# mypy: ignore-errors

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from truth import Net, Samples, Truth

truth = Truth()


class Module(lightning.LightningModule):
    def configure_model(self):
        if hasattr(self, "net"):
            return
        self.net = Net(truth)
        for layer in self.net.layers:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        truth.loss = float(loss.detach())
        return loss

    def validation_step(self, batch, index):
        x, _ = batch
        self.net(x)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        truth.step()

    def on_validation_start(self, trainer, module):
        truth.evaluating = True

    def on_validation_end(self, trainer, module):
        truth.evaluating = False


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    max_epochs=1,
    val_check_interval=6,
    callbacks=[Steps()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=True,
)
trainer.fit(
    Module(),
    DataLoader(Samples(truth, 2 * 4 * 18), batch_size=4),
    DataLoader(Samples(truth, 2 * 4 * 2, phase="eval"), batch_size=4),
)
truth.write("Lightning FSDP2", f"lightning {lightning.__version__}")
