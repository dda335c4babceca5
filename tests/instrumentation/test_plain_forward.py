"""Forward passes of models without DDP or FSDP: found, shown, and the model is the same to everybody else."""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-any-return,arg-type"
# torch leaves much of what is called here untyped.

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import whichrank
from tests.instrumentation.ring_contents import RingContents, read_rings
from whichrank.instrumentation import api
from whichrank.instrumentation.hooks.plain_forward import MAX_CANDIDATES, PLACE, RootCall


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    assert whichrank.init(directory=tmp_path)
    try:
        yield tmp_path
    finally:
        api.stop()


def ring(directory: Path) -> RingContents:
    (only,) = read_rings(directory)
    assert only.hook_errors == 0
    return only


def train(model: torch.nn.Module, steps: int = 1) -> None:
    optimizer = torch.optim.SGD([*model.parameters()], 0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()


def test_forward_and_evaluation_of_a_plain_model(rings: Path) -> None:
    model = Model()
    train(model, steps=2)
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))
    model.train()
    model(torch.ones(2, 4))
    step = ["forward", "other", "backward", "other", "optimizer", "other"]
    assert ring(rings).phases() == [*step, *step, "eval", "other", "forward", "other"]


def test_parts_that_were_named_by_themselves_give_their_place_back(rings: Path) -> None:
    model = Model()
    for parameter in model.first.parameters():
        parameter.requires_grad_(False)
    assert PLACE in vars(model.first)
    train(model, steps=2)
    assert PLACE not in vars(model.first)
    assert isinstance(vars(model)[PLACE], RootCall)
    assert ring(rings).phases().count("forward") == 2


def test_a_teacher_is_neither_forward_nor_evaluation(rings: Path) -> None:
    teacher = Model().eval()
    with torch.no_grad():
        teacher(torch.ones(2, 4))
    assert ring(rings).phases() == []


def test_an_evaluation_that_ends_without_a_call_of_train(rings: Path) -> None:
    """As Lightning ends it: module by module, by the attribute."""
    model = Model()
    train(model)
    model.eval()
    for module in model.modules():
        module.training = True
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 4)))
    next(iter(batches))
    model(torch.ones(2, 4))
    assert ring(rings).phases()[6:] == ["eval", "other", "data", "other", "forward", "other"]


def test_an_exception_in_forward_is_the_users_and_its_phase_is_known(rings: Path) -> None:
    class Failing(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("bad sample")

    model = Failing().train()
    with pytest.raises(ValueError, match="bad sample") as caught:
        model(torch.ones(2, 4))
    session = api.current_session()
    assert session is not None
    assert session.tracker.phase_of_exception(caught.value) is not None
    assert ring(rings).phases() == ["forward", "other"]


def test_copies_and_pickles_know_nothing_of_it(rings: Path) -> None:
    model = Model()
    train(model)
    assert isinstance(vars(model)[PLACE], RootCall)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"whichrank" not in file.getvalue()
    file.seek(0)
    shallow = Model()
    vars(shallow).update(vars(model))  # a copy of all attributes, ours among them
    vars(shallow)["_modules"] = {"first": torch.nn.Linear(4, 4), "second": model.second}
    x = torch.ones(2, 4)
    for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert PLACE not in vars(other)
        assert torch.equal(other(x), model(x))
    assert torch.equal(torch.load(file, weights_only=False)(x), model(x))
    assert pickle.loads(pickle.dumps(vars(model)))[PLACE] is None
    assert copy.deepcopy(vars(model))[PLACE] is None
    assert torch.equal(shallow(x), shallow.forward(x))
    assert not torch.equal(shallow(x), model(x))


def test_a_model_is_freed_with_its_last_name(rings: Path) -> None:
    import gc
    import weakref

    model = Model()
    train(model)
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_the_number_of_candidates_is_bounded_and_stop_leaves_none(tmp_path: Path, rings: Path) -> None:
    models = [Model() for _ in range(3 * MAX_CANDIDATES)]
    for model in models:
        list(model.parameters())
    assert sum(PLACE in vars(model) for model in models) == MAX_CANDIDATES
    api.stop()
    assert sum(PLACE in vars(model) for model in models) == 0


def test_walking_through_a_model_makes_no_candidates(rings: Path) -> None:
    model = Model()
    for module in model.modules():
        list(module.parameters(recurse=False))
        list(module.named_parameters(recurse=False))
    model.train()
    assert [PLACE in vars(module) for module in model.modules()] == [True, False, False]


def test_a_module_with_a_call_of_its_own_is_left_alone(rings: Path) -> None:
    class Own(Model):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x) + 1

    model = Own().train()
    assert PLACE not in vars(model)
    assert torch.equal(model(torch.ones(2, 4)), model.forward(torch.ones(2, 4)) + 1)


def test_traced_scripted_and_exported_models_are_what_they_were(rings: Path) -> None:
    x = torch.ones(2, 4)
    model = Model().train()
    assert PLACE in vars(model)
    expected = model(x)
    assert torch.equal(torch.jit.trace(model, (x,))(x), expected)
    assert torch.equal(torch.jit.script(model)(x), expected)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), expected)
    assert torch.equal(torch.func.functional_call(model, dict(model.named_parameters()), (x,)), expected)


def test_torch_compile_never_meets_it(rings: Path) -> None:
    x = torch.ones(2, 4)
    inside, outside = Model().train(), Model().train()

    @torch.compile(backend="eager", fullgraph=True)
    def several(x: torch.Tensor) -> torch.Tensor:
        return inside(x) + sum(parameter.sum() for parameter in inside.parameters())

    several(x).sum().backward()
    assert PLACE not in vars(inside)
    assert PLACE not in vars(outside)
    assert not hasattr(torch.nn.Module.parameters, "__wrapped__")
    assert ring(rings).hook_errors == 0


def test_a_compiled_model_shows_its_forward(rings: Path) -> None:
    model = torch.compile(Model().train(), backend="eager", fullgraph=True)
    train(model, steps=3)
    phases = ring(rings).phases()
    assert phases.count("forward") >= 3
    assert phases.count("compile") <= 2
