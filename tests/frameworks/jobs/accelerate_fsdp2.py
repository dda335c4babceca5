"""Plain Accelerate with FSDP2: bf16, clipping, evaluation, a sharded checkpoint."""
# mypy: ignore-errors

import accelerate
import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader
from truth import Net, Samples, Truth

truth = Truth()
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=100, state_dict_type="SHARDED_STATE_DICT"
)
accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
model = Net(truth)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Samples(truth, 2 * 4 * 12), batch_size=4)
evaluation = DataLoader(Samples(truth, 2 * 4 * 2, phase="eval"), batch_size=4)
model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)

for done, (x, y) in enumerate(loader, 1):
    loss = nn.functional.mse_loss(model(x), y)
    truth.loss = float(loss.detach())
    accelerator.backward(loss)
    truth.grad_norm = float(accelerator.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    truth.step()
    optimizer.zero_grad()
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
truth.write("Accelerate FSDP2", f"accelerate {accelerate.__version__}")
accelerator.end_training()
