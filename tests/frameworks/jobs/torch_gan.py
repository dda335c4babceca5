"""No framework: two DDP models and optimizers that take turns (GAN), a GradScaler that skips one update."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from truth import Net, Samples, Truth

truth = Truth()
dist.init_process_group("gloo")
first, second = DistributedDataParallel(Net(truth)), DistributedDataParallel(Net(truth))
optimizers = {first: torch.optim.AdamW(first.parameters()), second: torch.optim.AdamW(second.parameters())}
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for done, (x, y) in enumerate(DataLoader(Samples(truth, 4 * 18), batch_size=4)):
    for model, optimizer in optimizers.items():
        loss = nn.functional.mse_loss(model(x), y)
        truth.loss = float(loss.detach())
        scaler.scale(loss).backward()
        if done == 7:
            next(model.parameters()).grad.fill_(float("inf"))
        scaler.step(optimizer)
        optimizer.zero_grad()
        if model is first:
            # A step ends with the first optimizer of its round; the second one's work is in the next.
            truth.step(skipped=done == 7)
    scaler.update()
truth.write("two models in turn, GradScaler", f"torch {torch.__version__}")
dist.destroy_process_group()
