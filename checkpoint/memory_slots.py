"""Copies a rank's state into the memory of its slots: one copy, into pages that are there from the second save on."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .slot_files import SlotFile
from .state_layout import StateLayout, views_into


@dataclass(slots=True, eq=False)
class _Mapped:
    layout: StateLayout
    memory: mmap.mmap
    views: list[torch.Tensor]
    #: Registered with CUDA: what comes from a device comes at full speed, and side by side.
    is_pinned: bool


class MemorySlots:
    """Of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._mapped: dict[int, _Mapped] = {}

    def copy(self, slot: int, layout: StateLayout, tensors: Sequence[torch.Tensor]) -> None:
        """From now on the slot has no manifest, and holds these. Raises OSError: there is no room."""
        mapped = self._mapped.get(slot)
        if mapped is None or mapped.layout.size_bytes != layout.size_bytes:
            if mapped is not None:
                _unpin(self._mapped.pop(slot))
            memory = SlotFile(self._folder, self._rank, slot).prepare(layout.size_bytes)
            flat = torch.frombuffer(memory, dtype=torch.uint8)
            is_pinned = any(each.is_cuda for each in tensors) and _pin(flat)
            mapped = self._mapped[slot] = _Mapped(layout, memory, views_into(flat, layout.extents), is_pinned)
        else:
            SlotFile(self._folder, self._rank, slot).forget()
            if mapped.layout.extents != layout.extents:
                flat = torch.frombuffer(mapped.memory, dtype=torch.uint8)
                mapped.layout, mapped.views = layout, views_into(flat, layout.extents)
        with torch.no_grad():
            for view, tensor in zip(mapped.views, tensors, strict=True):
                view.copy_(tensor, non_blocking=mapped.is_pinned)
        if mapped.is_pinned:
            torch.cuda.current_stream().synchronize()


def _pin(flat: torch.Tensor) -> bool:
    try:
        cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return int(cuda.cudaHostRegister(flat.data_ptr(), flat.numel(), 0)) == 0
    except (RuntimeError, AssertionError, TypeError):
        return False


def _unpin(mapped: _Mapped) -> None:
    if mapped.is_pinned and mapped.views:
        cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        cuda.cudaHostUnregister(torch.frombuffer(mapped.memory, dtype=torch.uint8).data_ptr())
