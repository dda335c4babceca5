"""Reads losses and gradient norms without ever making the training wait for a device.

A scalar on the CPU is read at once. A scalar on a GPU is copied to pinned memory behind an event on the current stream
and delivered when a later look finds the event done, so its value arrives in the step in which it became known. Values
that could only be read by communicating (DTensor with partial placements) or that are not real numbers yet (fake
tensors, CUDA graph capture) are left alone.

Runs in the main thread only: querying events from another thread can break a CUDA graph capture. Never raises.
``_steps.c`` reads the usual scalar in C; ``make_scalar_reader`` prefers it. Change both together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from typing import Any, Protocol

import torch

from .guard import Guard
from .native import native_wanted

#: Copies under way per kind of value; with more than this the device is far behind and the newest is left out.
MAX_PENDING = 16

_Tensor = torch.Tensor
#: Under a dispatch mode (fake tensors, counters of operations) reading a value would be one more operation it sees.
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


class Scalars(Protocol):
    """What hooks use: ScalarReader, or the C one."""

    @property
    def pending(self) -> Sized: ...
    def read(self, value: Any, /) -> None: ...
    def collect(self) -> None: ...


class DeviceScalars:
    """Scalars that are not simply there: shared by both readers, whose attributes these are."""

    __slots__ = ()

    _deliver: Callable[[float], None]
    _guard: Guard
    #: Copies under way and their events; without any there is nothing to collect.
    pending: deque[tuple[Any, Any]]
    _spare: list[tuple[Any, Any]]

    def read_other(self, value: Any, /) -> None:
        """Take anything that is not a plain scalar tensor on the CPU."""
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
        """Deliver what the device has finished. Never waits."""
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


class ScalarReader(DeviceScalars):
    """Delivers the float values of scalar tensors to ``deliver``, now or when the device has them."""

    __slots__ = ("_deliver", "_guard", "_spare", "pending")

    def __init__(self, deliver: Callable[[float], None], guard: Guard) -> None:
        self._deliver = deliver
        self._guard = guard
        self.pending = deque()
        self._spare = []

    def read(self, value: Any, /) -> None:
        """Take a loss as the script has it: number, scalar tensor, or anything else (ignored)."""
        if not self._guard.enabled:
            return
        try:
            # Nearly every loss, in as few calls of torch as can be: each costs about 1 us in a training step.
            if type(value) is _Tensor and value.is_cpu and value.numel() == 1 and not _dispatch_modes():
                number = value.item()
                if type(number) is float:
                    self._deliver(number)
                return
        except Exception as error:  # edge: hook
            self._guard.fail(error)
            return
        self.read_other(value)


def make_scalar_reader(deliver: Callable[[float], None], guard: Guard) -> Scalars:
    """The C one where it was built and WHICHRANK_NATIVE is not ``0``, else the one in Python."""
    if native_wanted():
        try:
            from .loss_native import NativeScalarReader
        except ImportError:
            pass
        else:
            return NativeScalarReader(deliver, guard, _Tensor, torch.float32, torch.float64)
    return ScalarReader(deliver, guard)


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
    if value.numel() != 1 or not value.is_floating_point() or value.is_meta or _dispatch_modes():
        return None
    return value
