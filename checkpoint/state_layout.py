"""A state as it lies in one flat piece of memory: where each tensor's bytes are, and what else there is.

A state is what ``torch.distributed.checkpoint`` takes: dictionaries and lists of tensors (sharded ones as DTensor, of
which this rank's part counts) and other values; objects with ``state_dict`` and ``load_state_dict`` at its top.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

#: Each tensor begins at a multiple of this: no type needs more, and no two share a cache line.
ALIGNED_BYTES = 64


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """In a skeleton: the plain tensor with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class WrappedPlace:
    """In a skeleton: a tensor that holds others (DTensor), to be made by its class. inner: places, and what is none."""

    kind: type
    context: Any
    size: torch.Size
    stride: tuple[int, ...]
    inner: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """In a skeleton: the value with this number, which is no tensor."""

    number: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor's bytes lie, in order of its elements."""

    offset_bytes: int
    size_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(slots=True, eq=False)
class StateParts:
    """A state taken apart: places (``skeleton``), plain tensors, values, and how each value is set anew."""

    skeleton: Any = None
    tensors: list[torch.Tensor] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    set_value: list[Callable[[Any], None]] = field(default_factory=list)
    #: Of tensors and of values, to be compared and to be named in errors.
    tensor_keys: list[str] = field(default_factory=list)
    value_keys: list[str] = field(default_factory=list)
    #: By where a tensor lies in memory, its number: tied weights stand in a state twice.
    known: dict[tuple[Any, ...], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """size_bytes: of all tensors. fingerprint: equal where keys, types and shapes are."""

    extents: tuple[Extent, ...]
    size_bytes: int
    fingerprint: str


def take_apart(state: dict[str, Any]) -> StateParts:
    """The parts of a state, tensors and values in the order of its keys. Raises TypeError for what cannot be taken."""
    parts = StateParts()
    parts.skeleton = {key: _take(parts, value, str(key), _setter(state, key)) for key, value in state.items()}
    return parts


def _setter(container: Any, key: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        container[key] = value

    return put


def _take(parts: StateParts, node: Any, key: str, put: Callable[[Any], None]) -> Any:
    if isinstance(node, torch.Tensor):
        return _take_tensor(parts, node, key)
    if isinstance(node, dict) and _has_tensors(node):
        return {name: _take(parts, each, f"{key}.{name}", _setter(node, name)) for name, each in node.items()}
    if isinstance(node, list) and _has_tensors(node):
        return [_take(parts, each, f"{key}.{at}", _setter(node, at)) for at, each in enumerate(node)]
    if isinstance(node, tuple) and _has_tensors(node):
        return tuple(_take(parts, each, f"{key}.{at}", _never(key)) for at, each in enumerate(node))
    if hasattr(node, "load_state_dict"):
        raise TypeError(
            f"{key}: a {type(node).__name__} is not a state: hand over what torch.distributed.checkpoint.state_dict."
            "get_state_dict(model, optimizer) gives, and the state_dict() of all else"
        )
    parts.values.append(node)
    parts.set_value.append(put)
    parts.value_keys.append(key)
    return ValuePlace(len(parts.values) - 1)


def _never(key: str) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        """A tuple cannot be changed: what it holds beside tensors has to be what was saved."""
        raise TypeError(f"{key}: values in a tuple beside tensors cannot be restored: use a list")

    return put


def _has_tensors(node: Any) -> bool:
    if isinstance(node, torch.Tensor):
        return True
    if isinstance(node, dict):
        return any(map(_has_tensors, node.values()))
    return isinstance(node, list | tuple) and any(map(_has_tensors, node))


def _take_tensor(parts: StateParts, tensor: torch.Tensor, key: str) -> TensorPlace | WrappedPlace:
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        held = {name: getattr(tensor, name) for name in names}  # a mesh may be among them
        inner = {
            name: _take_tensor(parts, each, f"{key}.{name}") if isinstance(each, torch.Tensor) else each
            for name, each in held.items()
        }
        return WrappedPlace(type(tensor), context, tensor.size(), tensor.stride(), inner)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
        raise TypeError(
            f"{key}: a {type(tensor).__name__} ({tensor.layout}) cannot be taken: hand over plain tensors or DTensor, "
            "as torch.distributed.checkpoint.state_dict.get_state_dict gives them"
        )
    same = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.dtype, tensor.size(), tensor.stride())
    number = parts.known.setdefault(same, len(parts.tensors))
    if number == len(parts.tensors):
        parts.tensors.append(tensor.detach())
        parts.tensor_keys.append(key)
    return TensorPlace(number)


def lay_out(parts: StateParts) -> StateLayout:
    """Where each tensor goes, one after the other."""
    extents, offset = [], 0
    digest = hashlib.blake2b(digest_size=16)
    for key, tensor in zip(parts.tensor_keys, parts.tensors, strict=True):
        size_bytes = tensor.numel() * tensor.element_size()
        extents.append(Extent(offset, size_bytes, tensor.dtype, tuple(tensor.shape)))
        offset += -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
        digest.update(f"{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
    for key in parts.value_keys:
        digest.update(f"{key}\n".encode())
    return StateLayout(tuple(extents), offset, digest.hexdigest())


def views_into(memory: torch.Tensor, extents: Sequence[Extent]) -> list[torch.Tensor]:
    """Tensors whose bytes are those of ``memory`` (one-dimensional, uint8), one for each extent."""
    return [memory[at.offset_bytes : at.offset_bytes + at.size_bytes].view(at.dtype).view(at.shape) for at in extents]


def put_together(skeleton: Any, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
    """The state that a skeleton stands for, with these tensors and values in it."""
    if isinstance(skeleton, TensorPlace):
        return tensors[skeleton.number]
    if isinstance(skeleton, ValuePlace):
        return values[skeleton.number]
    if isinstance(skeleton, WrappedPlace):
        inner = {
            name: put_together(each, tensors, values) if isinstance(each, TensorPlace | WrappedPlace) else each
            for name, each in skeleton.inner.items()
        }
        return skeleton.kind.__tensor_unflatten__(inner, skeleton.context, skeleton.size, skeleton.stride)  # type: ignore[attr-defined]
    if isinstance(skeleton, dict):
        return {name: put_together(each, tensors, values) for name, each in skeleton.items()}
    return type(skeleton)(put_together(each, tensors, values) for each in skeleton)
