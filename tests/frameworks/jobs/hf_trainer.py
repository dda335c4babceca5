"""Hugging Face Trainer: a tiny Llama under DDP with accumulation, clipping, bf16, a scheduler, evaluation and saves."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
import transformers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from truth import CHECKPOINT_S, DATA_S, EVALUATION_S, FORWARD_S, Slow, Truth

ACCUMULATE = 2
truth = Truth()


class Words(Dataset):
    def __init__(self, length, phase):
        self.length, self.phase = length, phase

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        truth.spend(self.phase, DATA_S / 2)
        words = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Model(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        if self.training:
            truth.spend("forward", FORWARD_S)
        else:
            truth.spend("eval", EVALUATION_S)
        output = super().forward(*args, **kwargs)
        if self.training:
            output.loss = Slow.apply(output.loss, truth)
        return output


class Tracked(Trainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.model.training:
            truth.loss = float(loss.detach())
        return loss

    def save_model(self, *args, **kwargs):
        truth.spend("checkpoint", CHECKPOINT_S)
        return super().save_model(*args, **kwargs)


class Steps(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        truth.grad_norm = float(torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt())
        if truth.grad_norm > args.max_grad_norm:  # it has been clipped already: what it was is not known here
            truth.grad_norm = None

    def on_optimizer_step(self, args, state, control, **kwargs):
        truth.step()


sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = Model(LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=32, **sizes))
trainer = Tracked(
    model,
    TrainingArguments(
        output_dir="out",
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=ACCUMULATE,
        max_grad_norm=100.0,
        max_steps=18,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=6,
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
        lr_scheduler_type="linear",
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
    ),
    train_dataset=Words(200, "data"),
    eval_dataset=Words(8, "eval"),
    callbacks=[Steps()],
)
trainer.train()
truth.write("HF Trainer DDP", f"transformers {transformers.__version__}")
dist.destroy_process_group()
