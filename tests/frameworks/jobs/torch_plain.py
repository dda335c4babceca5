"""No framework: a plain model, its gradients averaged by hand; two chained optimizers, clipping, torch.save."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from truth import Net, Samples, Truth

truth = Truth()
dist.init_process_group("gloo")
model = Net(truth)
optimizers = [
    torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.dim() > 1]),
    torch.optim.SGD([parameter for parameter in model.parameters() if parameter.dim() == 1], lr=1e-3),
]
for done, (x, y) in enumerate(DataLoader(Samples(truth, 4 * 18), batch_size=4), 1):
    loss = nn.functional.mse_loss(model(x), y)
    truth.loss = float(loss.detach())
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    truth.grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizers[0].step()
    truth.step()
    optimizers[1].step()
    model.zero_grad()
    if done % 6 == 0:
        model.eval()
        truth.evaluating = True
        with torch.no_grad():
            model(x)
        truth.evaluating = False
        model.train()
        with truth.timed("checkpoint"):
            torch.save(model.state_dict(), "checkpoint.pt")
truth.write("no wrapper, chained optimizers", f"torch {torch.__version__}")
dist.destroy_process_group()
