"""Mixture of experts: tokens travel to their expert's rank and back by all_to_all, as many as the gate says."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from course import FEATURES, Course
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel

course = Course()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, course.world_size)
        self.expert = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            scores = self.gate(x).softmax(dim=1)
            weight, chosen = scores.max(dim=1)
        order = chosen.argsort()
        sent = torch.bincount(chosen, minlength=course.world_size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        course.point("dispatch")
        ins, outs = sent.tolist(), received.tolist()
        there = all_to_all_single(x.new_empty(sum(outs), FEATURES), x[order], outs, ins)
        back = all_to_all_single(x.new_empty(sum(ins), FEATURES), self.expert(there), ins, outs)
        return self.head(back * weight[order].unsqueeze(1)), order


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Experts())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(course.loader())
    for step in range(course.steps):
        course.begin(step)
        x, y = next(batches)
        out, order = model(x)
        loss = nn.functional.mse_loss(out, y[order])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        course.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
