"""What really happened in this rank, counted by the script itself through the framework's own calls.

Runs inside the training process and knows nothing of whichrank. A script sleeps a little in each part of a step
(``spend``) or times what it cannot slow down (``timed``), says when the framework says that a step is over (``step``),
and writes it all at the end. What torch's flight recorder counted in each process group is the truth about
collectives.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
FEATURES = 16
#: Long against what Python does between two calls of a framework, short against the rest of a job.
FORWARD_S, BACKWARD_S, DATA_S, EVALUATION_S, CHECKPOINT_S = 0.012, 0.010, 0.008, 0.020, 0.030


class Truth:
    """One per process. A step is what the framework calls one; what follows its end belongs to the next."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(RANK)
        self._folder = Path(os.environ["FRAMEWORK_TRUTH"])
        self._steps: list[dict[str, Any]] = []
        self._seconds: dict[str, float] = defaultdict(float)
        #: What the next ``step`` will say.
        self.loss: float | None = None
        self.grad_norm: float | None = None
        self.evaluating = False

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """The body belongs to this phase, however long it takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - began

    def spend(self, phase: str, seconds: float) -> None:
        with self.timed(phase):
            time.sleep(seconds)

    def step(self, *, skipped: bool = False) -> None:
        """The framework has ended a step; ``skipped``: without an update."""
        self._steps.append(
            {"loss": self.loss, "grad_norm": self.grad_norm, "skipped": skipped, "seconds": dict(self._seconds)}
        )
        self._seconds.clear()
        self.loss = self.grad_norm = None

    def write(self, framework: str, versions: str, **scale: float | str) -> None:
        """At the end, before the process groups go. ``loss_divided_by``: by what the framework scales each loss."""
        document = {
            "framework": framework,
            "versions": versions,
            "steps": self._steps,
            "collectives": collectives_by_group_size(),
            "monotonic_ns": time.monotonic_ns(),
            **scale,
        }
        (self._folder / f"truth-{RANK}.json").write_text(json.dumps(document))


def collectives_by_group_size() -> dict[str, int] | None:
    """Collectives that torch itself has counted, by size of their group; None where this torch cannot say.

    Asked for before the process groups go: only they know their sizes. Point-to-point operations of gloo are not in it.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return None
    document = json.loads(dump(includeCollectives=True))
    # The recorder numbers groups on its own; one of its entries says which group has the number.
    names = {str(entry["pg_id"]): entry["process_group"][0] for entry in document.get("entries", ())}
    sizes = {name: group.size() for group, name in torch.distributed.distributed_c10d._world.pg_names.items()}
    counts: dict[str, int] = defaultdict(int)
    for number, status in document.get("pg_status", {}).items():
        if (calls := int(status["last_enqueued_collective"])) > 0:
            counts[str(sizes[names[number]])] += calls
    return dict(counts)


class Slow(torch.autograd.Function):
    """Passes its input through; backward takes a while."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, truth: Truth) -> torch.Tensor:
        ctx.truth = truth
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.truth.spend("backward", BACKWARD_S)
        return gradients[0], None


class Net(nn.Module):
    """A small model whose forward and backward passes take the time they are told to take."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
        self._truth = [truth]  # in a list, so that it is no part of the module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        truth = self._truth[0]
        if truth.evaluating:
            truth.spend("eval", EVALUATION_S)
        else:
            truth.spend("forward", FORWARD_S)
        y: torch.Tensor = self.layers(x)
        return Slow.apply(y, truth) if torch.is_grad_enabled() else y

    def __deepcopy__(self, memo: Any) -> Net:
        raise TypeError("nobody has to copy this model")


class Samples(Dataset[Any]):
    """Random samples that take a while; a whole batch at once where the loader can."""

    def __init__(self, truth: Truth, length: int, phase: str = "data") -> None:
        self._truth, self._length, self._phase = truth, length, phase

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self._truth.spend(self._phase, DATA_S)
        generator = torch.Generator().manual_seed(indices[0])
        x = torch.randn(len(indices), FEATURES, generator=generator)
        return [(row, row.sum().unsqueeze(0)) for row in x]
