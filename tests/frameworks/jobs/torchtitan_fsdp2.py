"""torchtitan's Trainer on the CPU: its Llama 3 debug model under FSDP2, its optimizers, clipping and checkpoints.

torchtitan asks for the device once, at its import; it is told that there is a CPU. Data and tokenizer are ours, since
its own would be downloaded; attention is torch's plain one, since flex attention has no backward pass on the CPU.
"""
# mypy: ignore-errors

import collections
import os
import types
from dataclasses import dataclass

import torch
from truth import DATA_S, FORWARD_S, Slow, Truth

torch._utils._get_available_device_type = lambda: "cpu"
for name, answer in {
    "get_device_name": "CPU",
    "get_device_properties": types.SimpleNamespace(total_memory=1 << 34, name="CPU"),
    "memory_stats": collections.defaultdict(int),
    "reset_peak_memory_stats": None,
    "empty_cache": None,
}.items():
    setattr(torch.cpu, name, lambda *args, answer=answer: answer)

import torchtitan  # noqa: E402
import torchtitan.distributed.utils  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.utils.data import IterableDataset  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.common.config_utils import decoder_vocab_size  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

truth = Truth()
# Its barriers name the device by number, and torch's CPU has none but "cpu".
torchtitan.distributed.utils.device_module = types.SimpleNamespace(current_device=lambda: 0, synchronize=lambda: None)


def plain_attention(self, q_BLNH, k_BLNH, v_BLNH, *, enable_gqa=False, **kwargs):
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=enable_gqa)
    return attended.transpose(1, 2)


FlexAttention.forward = plain_attention


class Tokens(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for seed in range(10_000):
            truth.spend("data", DATA_S / 2)
            words = torch.randint(0, 2048, (self.length + 1,), generator=torch.Generator().manual_seed(seed))
            yield {"input": words[:-1]}, words[1:]


class Data(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, **kwargs):
        super().__init__(Tokens(seq_len), dp_rank=dp_rank, dp_world_size=dp_world_size, batch_size=local_batch_size)


class Words(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **kwargs):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return 2048


class Tracked(Trainer):
    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def forward_backward_step(self, **kwargs):
        loss = super().forward_backward_step(**kwargs)
        truth.loss = float(loss.detach())
        return loss

    def train_step(self, *args, **kwargs):
        super().train_step(*args, **kwargs)
        gradients = [p.grad for p in self.model_parts[0].parameters()]
        truth.grad_norm = float(torch.nn.utils.get_total_norm(gradients).full_tensor())
        truth.step()


spec = model_registry("debugmodel", attn_backend="flex")
config = Tracked.Config(
    loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
    model_spec=spec,
    dump_folder=os.path.join(os.getcwd(), "titan"),
    optimizer=default_adamw(lr=1e-4),
    lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
    training=TrainingConfig(
        local_batch_size=2,
        seq_len=32,
        steps=12,
        max_norm=1e9,
        disable_cuda_graphs=True,
        mixed_precision_param="float32",
    ),
    dataloader=Data.Config(),
    tokenizer=Words.Config(),
    metrics=MetricsProcessor.Config(log_freq=4),
    checkpoint=CheckpointManager.Config(enable=True, interval=5, folder="checkpoint"),
)
trainer = config.build()
for module in trainer.model_parts[0].modules():
    if isinstance(module, FSDPModule):
        module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
layer = next(iter(trainer.model_parts[0].layers.values()))
layer.register_forward_pre_hook(lambda module, args: truth.spend("forward", FORWARD_S))
layer.register_forward_hook(lambda module, args, output: Slow.apply(output, truth))
save = trainer.checkpointer.dcp_save


def timed_save(*args, **kwargs):
    with truth.timed("checkpoint"):
        return save(*args, **kwargs)


trainer.checkpointer.dcp_save = timed_save
trainer.train()
truth.write("torchtitan FSDP2", f"torchtitan {torchtitan.__version__}")
trainer.close()
torch.distributed.destroy_process_group()
