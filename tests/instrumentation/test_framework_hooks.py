"""How frameworks are hooked, on stand-ins with their names. What is seen of the real ones: ``make frameworks``."""

# mypy: disable-error-code="arg-type,no-untyped-call"

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import whichrank
from tests.instrumentation.ring_contents import read_rings
from whichrank.instrumentation import api
from whichrank.telemetry.vocabulary import StepFlag

ACCELERATE = """
import torch
class Accelerator:
    def __init__(self, divided_by): self.divided_by = divided_by
    def backward(self, loss, **kwargs): (loss / self.divided_by).backward(**kwargs)
    def save_state(self, path): return path
"""
TRAINER = """
import torch
class Trainer:
    def __init__(self, model): self.model = model
    def evaluate(self):
        self.model.eval()  # and left so
        with torch.no_grad(): return self.model(torch.ones(1, 2))
"""
MEGATRON = {
    "optimizer/optimizer.py": """
class MixedPrecisionOptimizer:
    def __init__(self, inner): self.inner, self.overflow = inner, False
    def step(self):
        if self.overflow: return False, None, None
        self.inner.step(); self.inner.step()
        return True, 2.5, 0
class ChainedOptimizer:
    def __init__(self, chained): self.chained = chained
    def step(self):
        for optimizer in self.chained: optimizer.inner.step()
        return True, 1.5, 0
""",
    "pipeline_parallel/schedules.py": """
import torch
from torch.autograd import Variable
def custom_backward(output, grad_output):
    if grad_output is None: grad_output = torch.ones_like(output)
    Variable._execution_engine.run_backward((output,), (grad_output,), False, False, (), allow_unreachable=True,
                                            accumulate_grad=True)
def forward_step_calc_loss(model, output, loss_func, count):
    return (output if loss_func is None else loss_func(output) / count), 0
def deallocate_output_tensor(out):
    out.data = torch.full((1,), float("nan"))
def backward_step(output, grad_output, scale=1, deallocated=False):
    if deallocated: custom_backward(output, grad_output)
    else: torch.autograd.backward(output * scale, grad_tensors=grad_output)
""",
}


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    code = tmp_path / "code"
    files = {
        "accelerate/accelerator.py": ACCELERATE,
        "transformers/trainer.py": TRAINER,
        **{f"megatron/core/{name}": text for name, text in MEGATRON.items()},
    }
    for name, text in files.items():
        file = code / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.parents:
            if folder == code:
                break
            (folder / "__init__.py").touch()
        file.write_text(text)
    monkeypatch.syspath_prepend(str(code))
    before = set(sys.modules)
    assert whichrank.init(directory=tmp_path / "rings")
    try:
        yield tmp_path / "rings"
    finally:
        api.stop()
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("accelerate", "transformers", "megatron"):
                del sys.modules[name]


def test_a_loss_that_is_divided_and_a_checkpoint(rings: Path) -> None:
    kind = importlib.import_module("accelerate.accelerator").Accelerator
    accelerator = kind(4)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = model(torch.ones(1, 2)).sum()
    accelerator.backward(loss)
    optimizer.step()
    assert accelerator.save_state("there") == "there"
    plain = model(torch.ones(1, 2)).sum()
    plain.backward()
    optimizer.step()
    (ring,) = read_rings(rings)
    assert ring.losses() == [loss.item(), plain.item()]
    assert "checkpoint" in ring.phases()
    assert ring.hook_errors == 0
    api.stop()
    assert not hasattr(kind.backward, "__wrapped__")
    assert not hasattr(kind.save_state, "__wrapped__")


def test_an_evaluation_is_over_when_its_function_returns(rings: Path) -> None:
    trainer = importlib.import_module("transformers.trainer").Trainer(torch.nn.Linear(2, 1))
    trainer.model(torch.ones(1, 2)).sum().backward()
    trainer.evaluate()
    assert not trainer.model.training
    next(iter(torch.utils.data.DataLoader([0])))
    (ring,) = read_rings(rings)
    assert ring.phases()[-4:] == ["eval", "other", "data", "other"]


def test_optimizers_that_are_not_torchs(rings: Path) -> None:
    module = importlib.import_module("megatron.core.optimizer.optimizer")
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = module.MixedPrecisionOptimizer(inner)
    for step in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.overflow = step == 1
        optimizer.step()
    (ring,) = read_rings(rings)
    assert [bool(step.flags & StepFlag.SKIPPED) for step in ring.steps()] == [False, True, False, False]
    assert [bool(step.flags & StepFlag.HAS_GRAD_NORM) for step in ring.steps()] == [True, False, True, True]
    assert ring.phases().count("optimizer") == 4
    chained = module.ChainedOptimizer([optimizer, optimizer])
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        chained.step()
    (ring,) = read_rings(rings)
    assert ring.words["step"] == 7
    assert ring.grad_norm == 1.5
    assert ring.hook_errors == 0


@pytest.mark.parametrize("deallocated", [True, False])
def test_a_loss_is_read_where_it_is_calculated_and_never_after_its_memory_was_given_up(
    rings: Path, deallocated: bool
) -> None:
    schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss, _ = schedules.forward_step_calc_loss(None, model(torch.ones(1, 2)), torch.sum, 2)
        losses.append(loss.item())
        if deallocated:
            schedules.deallocate_output_tensor(loss)
        schedules.backward_step(loss, None, scale=1024, deallocated=deallocated)
        optimizer.step()
    with torch.no_grad():  # an evaluation's loss is not the step's
        schedules.forward_step_calc_loss(None, model(torch.ones(1, 2)), torch.sum, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    (ring,) = read_rings(rings)
    assert ring.losses()[:2] == losses
    assert len(ring.losses()) == 3
    assert ring.phases().count("backward") == 3
    assert ring.words["microsteps"] == 3
    assert ring.hook_errors == 0


def test_a_stage_that_passes_activations_on_has_no_loss(rings: Path) -> None:
    schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    output, _ = schedules.forward_step_calc_loss(None, model(torch.ones(1, 2)), None, 2)
    schedules.deallocate_output_tensor(output)
    schedules.custom_backward(output, torch.ones(1, 3))
    optimizer.step()
    (ring,) = read_rings(rings)
    assert not any(step.flags & StepFlag.HAS_LOSS for step in ring.steps())
    assert ring.phases() == ["forward", "other", "backward", "other", "optimizer", "other"]
    assert ring.words["microsteps"] == 1
