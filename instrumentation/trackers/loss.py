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

from ..support.guard import Guard
from ..support.native import native_wanted
from .device_scalars import DeviceScalars, dispatch_modes

_Tensor = torch.Tensor


class Scalars(Protocol):
    """What hooks use: ScalarReader, or the C one."""

    @property
    def pending(self) -> Sized:
        """Values that are on their way from the device."""

    def read(self, value: Any, /) -> None:
        """Takes a loss or norm; one on a device is copied without waiting, and delivered by ``collect``."""

    def collect(self) -> None:
        """Delivers the values that have arrived from the device since."""


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
            if type(value) is _Tensor and value.is_cpu and value.numel() == 1 and not dispatch_modes():
                number = value.item()
                if type(number) is float:
                    self._deliver(number)
                return
        except Exception as error:  # edge: hook
            self._guard.fail(error)
            return
        self.read_other(value)


def make_scalar_reader(deliver: Callable[[float], None], guard: Guard) -> Scalars:
    """A reader for losses (numbers, scalar tensors): it calls ``deliver`` with each as a float, once the device has it.

    guard: takes what is raised; while it is off, nothing is read. The C reader where it was built and is wanted, else
    the Python one.
    """
    if native_wanted():
        try:
            from .loss_native import NativeScalarReader
        except ImportError:
            pass
        else:
            return NativeScalarReader(deliver, guard, _Tensor, torch.float32, torch.float64)
    return ScalarReader(deliver, guard)
