"""Scalars that are not simply there, most of them on a device: copied, and delivered once the device has them.

What both readers of losses have in common (``loss``). Main thread only. Never raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..support.guard import Guard

#: Copies under way per kind of value; with more than this the device is far behind and the newest is left out.
MAX_PENDING = 16
#: Under a dispatch mode (fake tensors, counters of operations) reading a value would be one more operation it sees.
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


class DeviceScalars:
    """Scalars that are not simply there: shared by both readers, whose attributes these are."""

    __slots__ = ()

    _deliver: Callable[[float], None]
    _guard: Guard
    #: Copies under way and their events; without any there is nothing to collect.
    pending: deque[tuple[Any, Any]]
    _spare: list[tuple[Any, Any]]

    def read_other(self, value: Any, /) -> None:
        """Delivers a number or scalar tensor; one on a device is copied, for ``collect``. Anything else is ignored."""
        try:
            if isinstance(value, (float, int)):
                self._deliver(float(value))
                return
            tensor = _plain_scalar(value)
            if tensor is None:
                return
            if tensor.device.type == "cpu":
                self._deliver(float(tensor.item()))
            elif tensor.device.type == "cuda":
                self._copy(tensor)
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def collect(self) -> None:
        """Delivers the values that the device has finished, in order. Never waits."""
        if not self.pending or not self._guard.enabled:
            return
        try:
            if torch.cuda.is_current_stream_capturing():
                return
            while self.pending and self.pending[0][1].query():
                buffer, event = self.pending.popleft()
                self._deliver(float(buffer.item()))
                self._spare.append((buffer, event))
        except Exception as error:  # edge: hook
            self._guard.fail(error)

    def _copy(self, tensor: Any) -> None:
        if len(self.pending) >= MAX_PENDING or torch.cuda.is_current_stream_capturing():
            return
        buffer, event = None, None
        for index, (spare, spare_event) in enumerate(self._spare):
            if spare.dtype == tensor.dtype:
                buffer, event = spare, spare_event
                del self._spare[index]
                break
        if buffer is None or event is None:
            buffer = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            buffer.copy_(tensor.detach().reshape(()), non_blocking=True)
        event.record()
        self.pending.append((buffer, event))


def _plain_scalar(value: Any) -> Any:
    """The tensor to read, or None where reading is not simply looking."""
    if type(value) in (list, tuple) and len(value) == 1:
        value = value[0]
    kind = type(value)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        placements = getattr(value, "placements", None)
        local = getattr(value, "_local_tensor", None)
        if placements is None or type(local) is not torch.Tensor or not all(p.is_replicate() for p in placements):
            return None
        value = local
    if value.numel() != 1 or not value.is_floating_point() or value.is_meta or dispatch_modes():
        return None
    return value
