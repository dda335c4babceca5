"""Megatron-core: its DDP, schedules and optimizer. ``dp``: data parallel; ``pp``: a pipeline of two stages, 1F1B.

Megatron-core asks for CUDA devices by name. The mode below answers with the CPU, in torch's functions alone: every
line of Megatron's that runs here is Megatron's own.
"""
# mypy: ignore-errors

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

PIPELINE = sys.argv[1] == "pp"


class OnTheCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *args: None
torch.Tensor.cuda = lambda self, *args, **kwargs: self
OnTheCpu().__enter__()

import megatron.core  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import ShardedTensor  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from truth import FEATURES, FORWARD_S, WORLD_SIZE, Net, Samples, Slow, Truth  # noqa: E402

MICROBATCHES, BATCH, HIDDEN, STEPS = 2, 4, 32, 18


def main():
    truth = Truth()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=WORLD_SIZE if PIPELINE else 1)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=WORLD_SIZE if PIPELINE else 1,
        pipeline_dtype=torch.float32,
        deallocate_pipeline_outputs=PIPELINE,
    )
    config.finalize_model_grads_func = lambda models, *args, **kwargs: [model.finish_grad_sync() for model in models]

    class Whole(MegatronModule):
        def __init__(self):
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.net = Net(truth)

        def set_input_tensor(self, tensor):
            pass

        def forward(self, x):
            return self.net(x)

    class Stage(MegatronModule):
        def __init__(self):
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.first = parallel_state.is_pipeline_first_stage()
            self.layer = nn.Linear(FEATURES if self.first else HIDDEN, HIDDEN if self.first else 1)
            self.input = None

        def set_input_tensor(self, tensor):
            self.input = tensor[0]

        def forward(self, x):
            truth.spend("forward", FORWARD_S)
            if self.first:
                return Slow.apply(self.layer(x).unsqueeze(0), truth)  # sequence, batch, hidden
            return Slow.apply(self.layer(self.input[0]), truth)

    model = DistributedDataParallel(config, DistributedDataParallelConfig(), Stage() if PIPELINE else Whole())
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0), [model])
    batches = iter(DataLoader(Samples(truth, BATCH * MICROBATCHES * (STEPS + 1)), batch_size=BATCH))

    def forward_step(iterator, model):
        x, y = next(iterator)

        def loss_of(output):
            loss = nn.functional.mse_loss(output, y)
            truth.loss = float(loss.detach())
            return loss, {"loss": loss.detach()}

        return model(x), loss_of

    for done in range(1, STEPS + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[model],
            num_microbatches=MICROBATCHES,
            seq_length=1,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        updated, norm, _ = optimizer.step()
        truth.grad_norm = float(norm)
        truth.step(skipped=not updated)
        if done % 6 == 0:
            folder = Path("checkpoints") / str(done)
            folder.mkdir(parents=True, exist_ok=True)
            dist.barrier()
            with truth.timed("checkpoint"):
                weights = {
                    f"{dist.get_rank() if PIPELINE else 0}.{name}": ShardedTensor.from_rank_offsets(
                        f"{dist.get_rank() if PIPELINE else 0}.{name}",
                        parameter.detach(),
                        replica_id=0 if PIPELINE else dist.get_rank(),
                    )
                    for name, parameter in model.module.named_parameters()
                }
                dist_checkpointing.save({"step": done, "weights": weights}, str(folder))
    name = f"Megatron-core {'pipeline' if PIPELINE else 'DDP'}"
    truth.write(name, f"megatron-core {megatron.core.__version__}", loss_divided_by=MICROBATCHES)
    dist.destroy_process_group()


if __name__ == "__main__":  # the writer of its checkpoints spawns processes, which import this script again
    main()
