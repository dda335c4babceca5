"""A state in one piece of memory, and back."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch

from whichrank.checkpoint.memory_slots import MemorySlots
from whichrank.checkpoint.state_layout import lay_out, put_together, take_apart, views_into


def state() -> dict[str, Any]:
    weight = torch.arange(12, dtype=torch.float32).view(3, 4)
    return {
        "model": OrderedDict(
            weight=weight, tied=weight, turned=weight.t(), half=torch.ones(3, dtype=torch.bfloat16),
            none=torch.empty(0), flag=torch.tensor(True), scale=torch.tensor(2.5, dtype=torch.float64),
        ),
        "optimizer": {"groups": [{"lr": 0.1, "momenta": [torch.full((2,), 7.0), torch.zeros(1, dtype=torch.int64)]}]},
        "pair": (torch.ones(2), "beside"),
        "step": 3,
        "random": (1, (2, 3), None),
    }  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_there_and_back(tmp_path: Any) -> None:
    parts = take_apart(state())
    layout = lay_out(parts)
    slots = MemorySlots(tmp_path, 0)
    slots.copy(1, layout, parts.tensors)
    raw = bytearray((tmp_path / "rank-000000.slot-1.data").read_bytes())
    tensors = views_into(torch.frombuffer(raw, dtype=torch.uint8), layout.extents)
    skeleton, values = pickle.loads(pickle.dumps((parts.skeleton, parts.values)))
    assert equal(put_together(skeleton, tensors, values), state())
    assert len(tensors) == 9  # the tied one once
    assert all(extent.offset_bytes % 64 == 0 for extent in layout.extents)


def test_a_slot_takes_a_state_of_another_shape() -> None:
    first, other = take_apart({"a": torch.ones(3, 4), "b": 1}), take_apart({"a": torch.ones(4, 3), "b": 1})
    assert lay_out(first).size_bytes == lay_out(other).size_bytes
    assert lay_out(first).fingerprint != lay_out(other).fingerprint


@pytest.mark.parametrize("changed", [{"b": torch.ones(2)}, {"a": torch.ones(2).double()}, {"a": torch.ones(2), "c": 1}])
def test_what_is_another_state_has_another_fingerprint(changed: dict[str, Any]) -> None:
    assert lay_out(take_apart({"a": torch.ones(2)})).fingerprint != lay_out(take_apart(changed)).fingerprint


def test_values_are_set_where_they_were() -> None:
    here = {"step": 0, "deep": {"lr": 1.0, "tensors": [torch.ones(1), 5]}}
    parts = take_apart(here)
    for put, value in zip(parts.set_value, (9, 0.5, 6), strict=True):
        put(value)
    assert (here["step"], here["deep"]["lr"], here["deep"]["tensors"][1]) == (9, 0.5, 6)  # type: ignore[index]


def test_what_cannot_be_taken_is_named() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="model: a Linear is not a state"):
        take_apart({"model": model})
    with pytest.raises(TypeError, match=r"rows\.0: a Tensor .*sparse"):
        take_apart({"rows": [torch.ones(2, 2).to_sparse()]})
