"""Real optimizers in loops of every shape: one step per iteration."""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-any-return,union-attr"

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whichrank
from tests.instrumentation.ring_contents import read_rings
from whichrank.instrumentation import api
from whichrank.instrumentation.hooks.own_step import own_step, unscaled_loss
from whichrank.telemetry.vocabulary import StepFlag

KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_step_per_iteration(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulation, chained optimizers, models in turn, schedulers, updates that a GradScaler skips."""
    players = data.draw(st.integers(1, 3), "models that take turns")
    chained = data.draw(st.integers(1, 2), "optimizers of each")
    microsteps = data.draw(st.integers(1, 3))
    iterations = data.draw(st.integers(2, 6))
    scaled = data.draw(st.booleans())
    skipped = data.draw(st.sets(st.integers(0, iterations - 1))) if scaled else set()
    scheduled = data.draw(st.booleans())
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory() as folder:
        assert whichrank.init(directory=folder)
        try:
            models = [torch.nn.Linear(2, 1) for _ in range(players)]
            optimizers = [
                [data.draw(st.sampled_from(KINDS))([parameter], lr=0.01) for parameter in (m.weight, m.bias)[:chained]]
                for m in models
            ]
            schedulers = [torch.optim.lr_scheduler.StepLR(o, 1) for row in optimizers for o in row if scheduled]
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=scaled)
            for iteration in range(iterations):
                for model, own in zip(models, optimizers, strict=True):
                    for _ in range(microsteps):
                        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
                    if iteration in skipped:
                        for parameter in model.parameters():
                            parameter.grad.fill_(float("inf"))
                    for optimizer in own:
                        scaler.step(optimizer)
                        optimizer.zero_grad()
                scaler.update()
                for scheduler in schedulers:
                    scheduler.step()
            (ring,) = read_rings(Path(folder))
        finally:
            api.stop()
    assert ring.words["step"] == iterations
    assert {n for n, step in enumerate(ring.steps()) if step.flags & StepFlag.SKIPPED} == skipped
    assert ring.words["microsteps"] == iterations * players * microsteps
    assert ring.hook_errors == 0


class Engine:
    """Steps torch's optimizer once per parameter group and scales losses, as DeepSpeed's engine does."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.overflows = 0

    def backward(self, loss: torch.Tensor) -> None:
        (loss * 1024).backward()

    def step(self, *, overflow: bool = False) -> float:
        if overflow:
            self.overflows += 1
            return float("inf")
        for _ in range(3):
            self.optimizer.step()
        return 0.5


def test_a_frameworks_own_step_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    assert whichrank.init(directory=tmp_path)
    try:
        session = api.current_session()
        assert session is not None
        context = session.context
        assert context is not None

        def outcome(engine: Engine, before: int, norm: float) -> tuple[bool, float]:
            return engine.overflows != before, norm

        monkeypatch.setattr(Engine, "step", own_step(Engine.step, context, lambda e: e.overflows, outcome))
        monkeypatch.setattr(Engine, "backward", unscaled_loss(Engine.backward, context))
        engine = Engine()
        losses = []
        for iteration in range(4):
            loss = engine.model(torch.ones(1, 2)).sum()
            losses.append(loss.item())
            engine.backward(loss)
            engine.step(overflow=iteration == 2)
        with pytest.raises(TypeError):
            engine.step(unknown=1)  # type: ignore[call-arg]
        engine.backward(engine.model(torch.ones(1, 2)).sum())
        engine.step()
        (ring,) = read_rings(tmp_path)
    finally:
        api.stop()
    assert ring.words["step"] == 5
    assert [bool(step.flags & StepFlag.SKIPPED) for step in ring.steps()] == [False, False, True, False, False]
    assert ring.losses()[:4] == losses
    assert ring.phases().count("optimizer") == 6
    assert ring.phases(step=0) == ["forward", "other", "backward", "other", "optimizer"]
    assert ring.hook_errors == 0
