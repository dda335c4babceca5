"""The Hugging Face Trainer with DDP around a plain model; the data set is the course's."""
# mypy: ignore-errors

import tempfile

import torch
from course import FEATURES, Course
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

course = Course()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        with course.part("forward"):
            return self.layers(x)


class OwnData(Trainer):
    def get_train_dataloader(self):
        return course.loader()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        x, y = inputs
        return nn.functional.mse_loss(model(x), y)


class Steps(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        course.begin(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        course.end()


def main():
    with tempfile.TemporaryDirectory() as folder:
        trainer = OwnData(
            Net(),
            TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                max_steps=course.steps,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
            ),
            callbacks=[Steps()],
        )
        trainer.train()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
