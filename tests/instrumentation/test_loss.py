"""Losses are read wherever that is simply looking, and left alone elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from whichrank.instrumentation.support.guard import Guard, HookHealth
from whichrank.instrumentation.trackers.loss import ScalarReader, Scalars, make_scalar_reader

KINDS = ["python", "c"] if find_spec("whichrank.instrumentation._steps") else ["python"]


class Reading:
    """A reader and what it delivered."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.health = HookHealth()
        self.reader: Scalars = make_scalar_reader(self.values.append, Guard("loss", self.health))


@pytest.fixture(params=KINDS)
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Reading:
    monkeypatch.setenv("WHICHRANK_NATIVE", "1" if request.param == "c" else "0")
    made = Reading()
    assert isinstance(made.reader, ScalarReader) == (request.param == "python")
    return made


@pytest.mark.parametrize(
    ("value", "delivered"),
    [
        (torch.tensor(1.5), [1.5]),
        (torch.tensor([2.5], requires_grad=True), [2.5]),
        (torch.tensor(0.5, dtype=torch.bfloat16), [0.5]),
        (torch.tensor(-0.1, dtype=torch.float64), [-0.1]),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]])[1, 0], [3.0]),
        (torch.complex(torch.tensor(1.0), torch.tensor(2.0)).conj().imag, [-2.0]),
        (torch.tensor(8.0).expand(1), [8.0]),
        (3.0, [3.0]),
        (4, [4.0]),
        ((torch.tensor(5.0),), [5.0]),
        (torch.nn.Parameter(torch.tensor(6.0)), [6.0]),
        (torch.tensor(7), []),
        (torch.zeros(2), []),
        (torch.zeros(0), []),
        (torch.tensor(1j), []),
        (torch.empty((), device="meta"), []),
        ((torch.tensor(1.0), torch.tensor(2.0)), []),
        ("no loss at all", []),
        (None, []),
    ],
)
def test_what_is_read(reading: Reading, value: Any, delivered: list[float]) -> None:
    reading.reader.read(value)
    assert reading.values == delivered
    assert reading.health.errors == 0


def test_no_operation_of_ours_under_somebodys_dispatch_mode(reading: Reading) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    loss = torch.tensor(1.0)
    with Counting():  # type: ignore[no-untyped-call]
        reading.reader.read(loss)
    assert seen == []
    assert reading.values in ([], [1.0])  # C looks into the memory, which is no operation


def test_nothing_is_pending_on_the_cpu(reading: Reading) -> None:
    reading.reader.read(torch.tensor(1.0))
    assert len(reading.reader.pending) == 0
    reading.reader.collect()
    assert reading.values == [1.0]


@pytest.mark.parametrize("value", [torch.tensor(1.0), 1.0])
def test_an_error_switches_it_off_and_is_counted(value: Any, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(number: float) -> None:
        raise ValueError("no")

    monkeypatch.setenv("WHICHRANK_NATIVE", "0" if isinstance(reading.reader, ScalarReader) else "1")
    reader = make_scalar_reader(deliver, Guard("loss", reading.health))
    for _ in range(3):
        reader.read(value)
    assert reading.health.errors == 1
    assert reading.health.disabled == {"loss": "ValueError: no"}


def test_a_keyboard_interrupt_is_the_users(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(number: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("WHICHRANK_NATIVE", "0" if isinstance(reading.reader, ScalarReader) else "1")
    reader = make_scalar_reader(deliver, Guard("loss", reading.health))
    with pytest.raises(KeyboardInterrupt):
        reader.read(torch.tensor(1.0))
    assert reading.health.errors == 0
