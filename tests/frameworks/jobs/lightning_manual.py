"""Lightning with manual optimization: two optimizers in turn under DDP."""
# mypy: ignore-errors

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import Net, Samples, Truth

truth = Truth()


class Gan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = Net(truth), Net(truth)

    def training_step(self, batch, index):
        x, y = batch
        for number, (optimizer, net) in enumerate(zip(self.optimizers(), (self.first, self.second), strict=True)):
            self.toggle_optimizer(optimizer)
            loss = nn.functional.mse_loss(net(x), y)
            truth.loss = float(loss.detach())
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)
            if number == 0:
                # A step ends with the first optimizer of its round; the second one's work is in the next.
                truth.step()

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.first.parameters()), torch.optim.SGD(self.second.parameters(), lr=1e-3)]


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp_find_unused_parameters_true",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Gan(), DataLoader(Samples(truth, 2 * 4 * 18), batch_size=4))
truth.write("Lightning, two optimizers by hand", f"lightning {lightning.__version__}")
