"""Phases, steps and losses of real torch calls in this very process; every patch is undone exactly."""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-any-return,union-attr"
# torch leaves much of what is called here untyped.

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.distributed_c10d as c10d
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizer_module

import whichrank
from tests.instrumentation.ring_contents import RingContents, read_rings
from whichrank.instrumentation import api
from whichrank.instrumentation.hooks import rendezvous_hook
from whichrank.instrumentation.trackers.checkpoint_identity import checkpoint_number
from whichrank.instrumentation.trackers.step_counter import StepCounter
from whichrank.telemetry.checkpoint_states import SaveState, unpack_save_head
from whichrank.telemetry.vocabulary import EventKind, ExitState, HookState, StepFlag

STEP = ["forward", "other", "backward", "other", "optimizer", "other"]


class Recording:
    """A session of this process and the folder its ring is in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def ring(self) -> RingContents:
        (ring,) = read_rings(self.directory)
        return ring


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    directory = tmp_path / "rings"
    assert whichrank.init(directory=directory)
    try:
        yield Recording(directory)
    finally:
        api.stop()


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def places() -> dict[str, Any]:
    """Everything that a session replaces, as it is now."""
    fsdp_state = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_state"].FSDPState
    owners: list[tuple[Any, str]] = [
        (torch.autograd, "backward"),
        (torch.Tensor, "backward"),
        (torch, "save"),
        (torch, "load"),
        (torch.serialization, "save"),
        (torch.serialization, "load"),
        (torch.nn.Module, "train"),
        (torch.nn.Module, "eval"),
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.nn.utils.clip_grad, "clip_grad_norm_"),
        (torch.amp.GradScaler, "step"),
        (torch.amp.GradScaler, "scale"),
        (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
        (DistributedDataParallel, "forward"),
        (FullyShardedDataParallel, "forward"),
        (fsdp_state, "_root_pre_forward"),
        (fsdp_state, "_post_forward"),
        (dcp, "save"),
        (dcp, "async_save"),
        (dcp, "load"),
        (dist, "destroy_process_group"),
        (c10d, "destroy_process_group"),
        (sys, "excepthook"),
        (__import__("threading"), "excepthook"),
    ]
    return {f"{owner!r}.{name}": vars(owner)[name] for owner, name in owners}


def test_stop_leaves_every_place_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    before = places()
    hooks = (optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks)
    counts = [len(table) for table in hooks]
    finders = list(sys.meta_path)
    assert whichrank.init(directory=tmp_path / "rings")
    during = places()
    api.stop()
    after = places()
    assert {name for name in before if before[name] is not after[name]} == set()
    assert [len(table) for table in hooks] == counts
    assert sys.meta_path == finders
    # Tensor.backward and Module.eval call what is patched; everything else must really have been replaced.
    unchanged = {name for name in before if before[name] is during[name]}
    assert all(name.endswith((".backward", ".eval")) for name in unchanged)
    assert len(unchanged) == 2


def test_wrappers_keep_name_signature_and_documentation(recording: Recording) -> None:
    for function in (torch.save, torch.load, torch.autograd.backward, DistributedDataParallel.forward, dcp.save):
        original = function.__wrapped__
        assert (function.__name__, function.__doc__) == (original.__name__, original.__doc__)


def test_a_ddp_step(recording: Recording, world: None) -> None:
    model = DistributedDataParallel(make_model())
    losses = train(model, torch.optim.SGD(model.parameters(), 0.1), steps=3)
    ring = recording.ring
    assert ring.phases() == STEP * 3
    assert ring.losses() == losses
    assert all(step.flags & StepFlag.HAS_LOSS for step in ring.steps())
    # What follows the optimizer belongs to the next step.
    assert ring.phases(step=0) == STEP[:-1]
    assert ring.words["step"] == 3
    assert ring.words["microsteps"] == 3
    assert ring.words["hook_state"] & HookState.PHASES_HOOKED
    assert ring.hook_errors == 0
    assert ring.notes() == []


def test_a_step_of_fsdp2(recording: Recording, world: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), 0.1), steps=2)
    assert recording.ring.phases() == STEP * 2
    assert recording.ring.notes() == []


def test_fsdp1(recording: Recording, world: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
        train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert recording.ring.phases() == STEP


def test_data_loader(recording: Recording) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(6, 4))
    assert len(list(torch.utils.data.DataLoader(data, batch_size=2))) == 3
    # Three batches and the look that finds the end.
    assert recording.ring.phases() == ["data", "other"] * 4


def test_evaluation_by_mode(recording: Recording, world: None) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    model.eval()
    for _ in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 4))):
        model(torch.zeros(2, 4))
    torch.save({}, recording.directory / "checkpoint")
    model.train()
    train(model, optimizer)
    assert recording.ring.phases() == [*STEP, "eval", "checkpoint", "eval", "other", *STEP]


def test_evaluation_of_the_wrapped_module_and_without_gradients(recording: Recording, world: None) -> None:
    model = DistributedDataParallel(make_model())
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    model.module.eval()
    model.module.train()
    with torch.no_grad():
        model(torch.zeros(2, 4))
    assert recording.ring.phases() == [*STEP, "eval", "other", "eval", "other"]


def test_a_submodule_or_another_model_in_eval_mode_is_not_an_evaluation(recording: Recording, world: None) -> None:
    model = DistributedDataParallel(make_model())
    teacher = make_model()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    model.module[1].eval()
    teacher.eval()
    assert recording.ring.phases() == STEP


def test_training_in_eval_mode_is_training(recording: Recording, world: None) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    model.eval()
    train(model, optimizer, steps=2)
    assert recording.ring.phases()[len(STEP) :] == ["eval", "backward", "other", "optimizer", "other", *STEP]


def test_checkpoint_and_restore(recording: Recording, world: None) -> None:
    file = recording.directory / "checkpoint"
    torch.save({"a": torch.zeros(1)}, file)
    torch.load(file)
    dcp.save({"a": torch.zeros(1)}, checkpoint_id=recording.directory / "dcp", no_dist=True)
    dcp.load({"a": torch.zeros(1)}, checkpoint_id=recording.directory / "dcp", no_dist=True)
    phases = [phase for phase in recording.ring.phases() if phase != "init"]
    assert phases == ["checkpoint", "restore", "checkpoint", "restore"]


def test_which_checkpoint_was_written_or_read_is_told_by_its_place(recording: Recording, world: None) -> None:
    """The same number for the same place, however it is named; none for what has no place; nothing for what failed."""
    file, folder = recording.directory / "checkpoint", recording.directory / "dcp"
    torch.save({"a": torch.zeros(1)}, file)
    torch.save({}, io.BytesIO())
    with open(recording.directory / "sub.pt", "wb") as stream:
        torch.save({}, stream)
    torch.load(f=os.path.relpath(file))
    with pytest.raises(FileNotFoundError):
        torch.load(recording.directory / "nothing")
    dcp.save({"a": torch.zeros(1)}, checkpoint_id=folder, no_dist=True)
    dcp.load({"a": torch.zeros(1)}, checkpoint_id=str(folder), no_dist=True)
    begun = SaveState.BEGUN
    told = [
        (each.value, "read" if each.kind is EventKind.CHECKPOINT else "written")
        for each in recording.ring.events
        if each.kind is EventKind.CHECKPOINT
        or (each.kind is EventKind.SAVE and unpack_save_head(each.group).state == begun)
    ]
    numbers = [number for number, _ in told]
    assert [what for _, what in told] == ["written", "written", "read", "written", "read"]
    assert numbers[0] == numbers[2] == checkpoint_number(file)
    assert numbers[1] == checkpoint_number(recording.directory / "sub.pt")
    assert numbers[3] == numbers[4] == checkpoint_number(folder)
    assert len(set(numbers)) == 3
    assert all(0 < number < 1 << 63 for number in numbers)


@pytest.mark.parametrize("place", [None, 3, io.BytesIO(), object(), b"bytes", "\0"])
def test_what_is_no_place_has_no_number(place: object) -> None:
    assert checkpoint_number(place) == 0


def test_a_url_is_no_path_of_this_node() -> None:
    assert checkpoint_number("s3://bucket/../step-3") != checkpoint_number("s3://step-3")
    assert checkpoint_number("s3://bucket/step-3") == checkpoint_number("s3://bucket/step-3")


def test_a_skipped_update(recording: Recording) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (math.inf, 1.0):
        loss = model(torch.full((1, 1), value)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    first, second = recording.ring.steps()
    assert first.flags & StepFlag.SKIPPED
    assert not second.flags & StepFlag.SKIPPED
    # The loss, not the loss times the scale.
    assert recording.ring.losses()[1] == loss.item()


def test_gradient_norm(recording: Recording) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(1, 1)).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    (step,) = recording.ring.steps()
    assert step.flags & StepFlag.HAS_GRAD_NORM
    assert recording.ring.grad_norm == pytest.approx(norm.item())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_seen_before_the_step_ends(recording: Recording, bad: float) -> None:
    weight = torch.ones(1, requires_grad=True)
    (weight * bad).sum().backward()
    (weight * 1.0).sum().backward()
    assert not math.isfinite(recording.ring.loss)


def test_scheduler_closure_and_two_optimizers(recording: Recording) -> None:
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(first.parameters(), 0.1), torch.optim.Adam(second.parameters(), 0.1)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for optimizer in optimizers]
    for _ in range(3):
        second(first(torch.ones(1, 1))).sum().backward()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
    assert recording.ring.words["step"] == 3

    lbfgs = torch.optim.LBFGS(first.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = first(torch.ones(1, 1)).square().sum()
        loss.backward()
        return loss

    lbfgs.step(closure)  # the others have been through their rounds: this begins its own
    assert recording.ring.words["step"] == 4


def test_an_optimizer_that_raises_leaves_counting_intact(recording: Recording) -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    class Broken(torch.optim.SGD):
        broken = True

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                raise RuntimeError("mine")
            return super().step(closure)

    optimizer = Broken([weight], 0.1)
    for broken in (True, False, False):
        optimizer.broken = broken
        weight.sum().backward()
        with pytest.raises(RuntimeError, match="mine") if broken else contextlib.nullcontext():
            optimizer.step()
    assert recording.ring.words["step"] == 2
    assert recording.ring.phases()[-1] == "other"


def test_by_hand(recording: Recording) -> None:
    for index in range(2):
        with whichrank.phase("data"):
            pass
        whichrank.step(loss=torch.tensor(float(index)), grad_norm=0.5)
    ring = recording.ring
    assert ring.phases() == ["data", "other", "data", "other"]
    assert [step.flags for step in ring.steps()] == [StepFlag.BY_HAND | StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM] * 2
    assert ring.losses() == [0.0, 1.0]


def test_an_unknown_phase_is_other_and_warns_once(recording: Recording) -> None:
    with pytest.warns(RuntimeWarning, match="unknown phase 'warmup'"), whichrank.phase("warmup"):
        assert recording.ring.phases() == ["other"]


def test_exceptions_pass_through_unchanged(recording: Recording, world: None) -> None:
    class Raises(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    model = DistributedDataParallel(Raises())
    with pytest.raises(KeyError, match="mine") as caught:
        model(torch.zeros(1))
    assert recording.ring.phases() == ["forward", "other"]
    session = api.current_session()
    assert session is not None
    session.exceptions.record(caught.value, caught.tb, in_main=True)
    ring = recording.ring
    assert ring.exception == "KeyError: 'mine'"
    assert ring.exception_stack[-1].endswith("forward")
    (event,) = [event for event in ring.events if event.kind is EventKind.EXCEPTION]
    assert event.phase.name == "FORWARD"
    assert ring.words["exit_state"] == ExitState.EXCEPTION


def test_destroying_the_world_begins_the_end(recording: Recording, world: None) -> None:
    dist.destroy_process_group()
    assert recording.ring.phases() == ["exit"]


def test_a_rank_joins_whether_the_time_out_can_be_told_or_not(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> float:  # as where a later torch keeps its default elsewhere
        raise AttributeError("default_pg_timeout")

    monkeypatch.setattr(rendezvous_hook, "_timeout_s", unknown)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group(group=None)
    assert not dist.is_initialized()
    assert api.current_session() is not None


def call_everything() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2, 1))):
        model(torch.ones(1, 1)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def test_level_off_only_counts(recording: Recording) -> None:
    session = api.current_session()
    assert session is not None
    session.heartbeat.stop()  # it alone looks around; two at a time may each take the other's reading for its own
    (recording.directory / "level").write_text("off")
    session._look_around(1)
    before = len(recording.ring.events)
    call_everything()
    assert len(recording.ring.events) == before
    assert (recording.ring.words["level"], recording.ring.words["step"]) == (0, 2)
    (recording.directory / "level").write_text("status")
    session._look_around(2)
    call_everything()
    assert (recording.ring.words["level"], recording.ring.words["step"]) == (1, 4)
    assert [(step.seq, bool(step.flags & StepFlag.PARTLY_SEEN)) for step in recording.ring.steps()] == [
        (2, True),
        (3, True),
    ]
    (recording.directory / "level").write_text("events")
    session._look_around(3)
    call_everything()
    assert [(step.seq, bool(step.flags & StepFlag.PARTLY_SEEN)) for step in recording.ring.steps()[2:]] == [
        (4, True),
        (5, False),
    ]


def test_own_cost_is_measured_and_limits_itself(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    session = api.current_session()
    assert session is not None
    call_everything()
    session._look_around(now_ns := time.monotonic_ns())
    ring = recording.ring
    assert ring.words["calls"] >= 8
    assert 500 < ring.words["cost_ns"] / ring.words["calls"] < 200_000
    session.steps.step = 1000
    session.tracker.cost_ns += 1_000_000_000  # a second of cost in half a minute
    session._look_around(now_ns + 30_000_000_000)
    session._look_around(now_ns + 31_000_000_000)
    ring = recording.ring
    assert ring.words["level"] == 1
    assert ring.words["hook_state"] & HookState.COST_LIMITED
    assert ring.notes() == ["own cost 3.3% of the step time is above the limit of 1.0%: level lowered to status"]
    level = [event for event in ring.events if event.kind is EventKind.LEVEL][-1]
    assert (level.value, level.extra & HookState.COST_LIMITED) == (1, HookState.COST_LIMITED)


def break_writer(session: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make every call to the ring raise; returns the names of the calls that did, as they happen."""
    struck: list[str] = []

    def broken(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            struck.append(name)
            raise OSError(f"{name} struck")

        return call

    tracker, steps = session.tracker, session.steps

    class Broken:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            return broken(name)

    if isinstance(steps, StepCounter):
        monkeypatch.setattr(steps, "_writer", Broken())
    else:  # the C one keeps the methods
        for method in ("end_step", "add_microstep", "set_loss"):
            monkeypatch.setattr(steps, f"_{method}", broken(method))
    monkeypatch.setattr(tracker, "_set_phase", broken("set_phase"))
    return struck


def test_a_ring_that_raises_at_every_call_disturbs_nothing(
    recording: Recording, world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = api.current_session()
    struck = break_writer(session, monkeypatch)
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    with_us = train(model, torch.optim.SGD(model.parameters(), 0.1), steps=3)
    call_everything()
    api.stop()
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    assert train(model, torch.optim.SGD(model.parameters(), 0.1), steps=3) == with_us
    assert {"set_phase", "set_loss"} <= set(struck)
    assert session is not None
    assert set(session.health.disabled) == {"phases", "steps"}


def test_random_streams_are_untouched(recording: Recording) -> None:
    import random

    states = torch.get_rng_state(), random.getstate()
    torch.save({}, recording.directory / "checkpoint")
    whichrank.step(loss=1.0)
    with whichrank.phase("eval"):
        pass
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
