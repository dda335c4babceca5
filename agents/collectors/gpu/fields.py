"""NVML's "field values": many numbers of a GPU in one call, each with a status of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml as nvml

from .driver import NEVER

_NS = 1e-9
_MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class Field:
    """A field value: its number, and the point that it is."""

    number: int
    what: str
    metric: str
    labels: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    slow: bool = False


@dataclass(frozen=True, slots=True)
class NvmlFieldValue:
    """``number`` holds where ``status`` is NVML_SUCCESS."""

    status: int
    number: float = 0.0


def read_fields(handle: Any, keys: Sequence[tuple[int, int]]) -> list[NvmlFieldValue]:
    """Asks a GPU for (field, scope) pairs: an answer to each, in their order, with a status of its own.

    Raises NVMLError where the GPU or the driver is gone.
    """
    if not keys:
        return []
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, list(keys))
    except nvml.NVMLError as error:
        if error.value not in NEVER:
            raise
        if len(keys) == 1:
            return [NvmlFieldValue(error.value)]
        # Some drivers refuse a batch for one field that they do not know.
        return [answer for key in keys for answer in read_fields(handle, [key])]
    return [NvmlFieldValue(value.nvmlReturn, _number(value)) for value in values]


def _number(value: Any) -> float:
    """The number in an nvmlFieldValue_t, by its type."""
    kind = value.valueType
    if kind == nvml.NVML_VALUE_TYPE_DOUBLE:
        return float(value.value.dVal)
    if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return float(value.value.uiVal)
    if kind == 4:  # SIGNED_LONG_LONG; the union holds it in the same eight bytes
        return float(ctypes.c_longlong(value.value.ullVal).value)
    if kind == 5:  # SIGNED_INT
        return float(ctypes.c_int(value.value.uiVal).value)
    return float(value.value.ullVal)


#: By number, because a binding of an older release has no names for the newer ones; its library answers all the same.
FIELDS: tuple[Field, ...] = (
    Field(82, "memory temperature", "hw.temperature", {"hw.sensor_location": "memory"}),
    Field(83, "energy", "hw.energy", {"hw.type": "gpu"}, _MILLI),
    Field(94, "PCIe replays", "hw.errors", {"hw.type": "gpu", "error.type": "pcie_replay"}),
    Field(169, "PCIe recoveries", "hw.errors", {"hw.type": "gpu", "error.type": "pcie_recovery"}),
    Field(173, "corrected PCIe errors", "hw.errors", {"hw.type": "gpu", "error.type": "pcie_corrected"}),
    Field(179, "non-fatal PCIe errors", "hw.errors", {"hw.type": "gpu", "error.type": "pcie_nonfatal"}),
    Field(180, "fatal PCIe errors", "hw.errors", {"hw.type": "gpu", "error.type": "pcie_fatal"}),
    Field(142, "rows remapped for corrected errors", "whichrank.gpu.remapped_rows", {"error.type": "corrected"}),
    Field(143, "rows remapped for uncorrected errors", "whichrank.gpu.remapped_rows", {"error.type": "uncorrected"}),
    Field(144, "rows waiting to be remapped", "whichrank.gpu.remapped_rows.pending"),
    Field(145, "failure to remap rows", "whichrank.gpu.remapped_rows.failure"),
    Field(197, "PCIe bytes sent", "hw.gpu.io", {"network.io.direction": "transmit"}),
    Field(198, "PCIe bytes received", "hw.gpu.io", {"network.io.direction": "receive"}),
    Field(230, "recovery action", "whichrank.gpu.recovery_action"),
    *(
        Field(number, f"time slowed by {reason}", "whichrank.gpu.throttled.time", {"whichrank.gpu.reason": reason}, _NS)
        for number, reason in (
            (74, "sw_power_cap"),
            (75, "thermal"),
            (76, "sync_boost"),
            (77, "board_limit"),
            (79, "reliability"),
            (269, "sw_thermal_slowdown"),
            (270, "hw_thermal_slowdown"),
            (271, "hw_power_brake_slowdown"),
        )
    ),
    *(
        Field(
            number, f"margin at {limit}", "whichrank.gpu.temperature.margin.limit", {"hw.limit_type": limit}, slow=True
        )
        for number, limit in ((193, "critical"), (194, "throttled"), (195, "memory_max"), (196, "max"))
    ),
)
