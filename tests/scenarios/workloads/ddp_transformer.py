"""Data-parallel transformer encoder with AdamW, gradient clipping and two reduction buckets."""
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,no-untyped-def,attr-defined,union-attr"

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.view(x.shape[0], FEATURES // 4, 4)
        if not self.training:
            return self.head(self.encoder(self.embed(tokens)).mean(dim=1))
        with course.part("forward"):
            hidden = self.encoder(self.embed(tokens)).mean(dim=1)
            hidden.register_hook(lambda gradient: course.point("backward") or None)
            return self.head(hidden)


def main() -> None:
    dist.init_process_group("gloo", timeout=course.timeout())
    course.calibrate()
    model = DistributedDataParallel(Encoder(), bucket_cap_mb=0.05)
    course.hook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        course.point("batch", x)
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if not course.point("metrics", mean):
            dist.all_reduce(mean)
        course.between_steps(model)
        course.end()
    course.finish()


if __name__ == "__main__":
    main()
