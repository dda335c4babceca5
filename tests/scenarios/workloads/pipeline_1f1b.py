"""Pipeline of several microbatches, forward and backward in turn (1F1B), with isend, irecv and batches of them."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from course import BATCH, FEATURES, Course
from torch import nn

course = Course()
rank, last = course.rank, course.world_size - 1
MICROBATCHES = int(course.options["microsteps"])


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with course.part("forward"):
            out = self.layers(x)
            out.register_hook(lambda gradient: course.point("backward") or None)
            return out


class Pipe:
    """The ends of one stage: activations come from before and go on, gradients come back."""

    def __init__(self) -> None:
        self.sending: list[dist.Work] = []

    def swap(self, out: torch.Tensor | None, to: int, from_: int) -> torch.Tensor | None:
        """Sends and receives at once where both are wanted; a neighbour that does not exist is no neighbour."""
        calls, received = [], None
        if out is not None and 0 <= to <= last:
            calls.append(dist.P2POp(dist.isend, out, to))
        if 0 <= from_ <= last:
            received = torch.empty(BATCH, FEATURES)
            calls.append(dist.P2POp(dist.irecv, received, from_))
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
        return received

    def receive(self, from_: int) -> torch.Tensor | None:
        if not 0 <= from_ <= last:
            return None
        received = torch.empty(BATCH, FEATURES)
        dist.irecv(received, src=from_).wait()
        return received

    def send(self, out: torch.Tensor, to: int) -> None:
        if 0 <= to <= last:
            self.sending.append(dist.isend(out, dst=to))

    def flush(self) -> None:
        for work in self.sending:
            work.wait()
        self.sending.clear()


def main() -> None:
    dist.init_process_group("gloo", timeout=course.timeout())
    stage, pipe = Stage(), Pipe()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    batches = iter(course.loader())
    warm_up = min(last - rank, MICROBATCHES)
    for step in range(course.steps):
        course.begin(step)
        under_way: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

        def forward(x: torch.Tensor | None) -> torch.Tensor:
            own, y = next(batches)
            x = (own if x is None else x).requires_grad_()
            out = stage(x)
            under_way.append((x, out, y))  # noqa: B023  # called within this step only
            return out.detach()

        def backward(gradient: torch.Tensor | None) -> torch.Tensor:
            x, out, y = under_way.pop(0)  # noqa: B023
            if gradient is None:
                nn.functional.mse_loss(out.sum(dim=1, keepdim=True), y).backward()
            else:
                out.backward(gradient)
            return x.grad

        for _ in range(warm_up):
            pipe.send(forward(pipe.receive(rank - 1)), rank + 1)
        steady = MICROBATCHES - warm_up
        x = pipe.receive(rank - 1) if steady else None
        for index in range(steady):
            gradient = pipe.swap(forward(x), rank + 1, rank + 1)
            back = backward(gradient)
            if index < steady - 1:
                x = pipe.swap(back, rank - 1, rank - 1)
            else:
                pipe.send(back, rank - 1)
        for _ in range(warm_up):
            pipe.send(backward(pipe.receive(rank + 1)), rank - 1)
        pipe.flush()
        optimizer.step()
        optimizer.zero_grad()
        course.end()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
