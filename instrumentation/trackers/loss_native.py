"""The reader of losses whose usual case is in C. Importing this raises ImportError where it was not built."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .._steps import ScalarReader as CScalarReader
from ..support.guard import Guard
from .device_scalars import DeviceScalars


class NativeScalarReader(CScalarReader, DeviceScalars):
    """Same as loss.ScalarReader."""

    __slots__ = ("_spare", "pending")

    def __init__(
        self, deliver: Callable[[float], None], guard: Guard, tensor_type: type, float32: object, float64: object
    ) -> None:
        self.pending: deque[tuple[Any, Any]] = deque()
        self._spare: list[tuple[Any, Any]] = []
