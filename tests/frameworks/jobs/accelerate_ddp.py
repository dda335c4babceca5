"""Plain Accelerate: DDP, accumulate(), clipping, evaluation, save_state."""
# mypy: ignore-errors

import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import Net, Samples, Truth

ACCUMULATE = 3
truth = Truth()
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE, project_dir="state")
model = Net(truth)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
loader = DataLoader(Samples(truth, 2 * 4 * 36), batch_size=4)
evaluation = DataLoader(Samples(truth, 2 * 4 * 2, phase="eval"), batch_size=4)
model, optimizer, scheduler, loader, evaluation = accelerator.prepare(model, optimizer, scheduler, loader, evaluation)

done = 0
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        truth.loss = float(loss.detach())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            truth.grad_norm = float(accelerator.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        scheduler.step()
        if accelerator.sync_gradients:
            truth.step()
        optimizer.zero_grad()
    if not accelerator.sync_gradients:
        continue
    done += 1
    if done % 4 == 0:
        model.eval()
        truth.evaluating = True
        with torch.no_grad():
            for x, y in evaluation:
                accelerator.gather(nn.functional.mse_loss(model(x), y))
        truth.evaluating = False
        model.train()
        with truth.timed("checkpoint"):
            accelerator.save_state(f"state/{done}")
truth.write("Accelerate DDP", f"accelerate {accelerate.__version__}")
accelerator.end_training()
