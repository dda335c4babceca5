"""DeepSpeed on the CPU: accumulation, clipping, parameter groups, evaluation, checkpoints. Argument: ZeRO stage."""
# mypy: ignore-errors

import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from truth import WORLD_SIZE, Net, Samples, Truth

ACCUMULATE = 2
STAGE = int(sys.argv[1])
truth = Truth()
deepspeed.init_distributed(dist_backend="gloo")
net = Net(truth)
weights = [parameter for parameter in net.parameters() if parameter.dim() > 1]
biases = [parameter for parameter in net.parameters() if parameter.dim() == 1]
optimizer = torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=1e-3)
config = {
    "train_batch_size": 4 * ACCUMULATE * WORLD_SIZE,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": ACCUMULATE,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": False},
    "zero_optimization": {"stage": STAGE},
    "zero_allow_untested_optimizer": True,
}
engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
loader = DataLoader(Samples(truth, 4 * 36), batch_size=4)
evaluation = DataLoader(Samples(truth, 4 * 2, phase="eval"), batch_size=4)
done = 0
for x, y in loader:
    loss = nn.functional.mse_loss(engine(x), y)
    truth.loss = float(loss.detach())
    engine.backward(loss)
    before = engine.global_steps
    engine.step()
    if engine.global_steps == before:
        continue
    truth.grad_norm = float(engine.get_global_grad_norm())
    truth.step()
    done += 1
    if done % 6 == 0:
        engine.eval()
        truth.evaluating = True
        with torch.no_grad():
            for x, _ in evaluation:
                engine(x)
        truth.evaluating = False
        engine.train()
        with truth.timed("checkpoint"):
            engine.save_checkpoint("checkpoints", tag=str(done))
truth.write(f"DeepSpeed ZeRO-{STAGE}", f"deepspeed {deepspeed.__version__}")
dist.destroy_process_group()
