"""What is read of a GPU, value by value: the call, and the points that come of it (names: ``node_metrics/gpu.toml``).

A call that a driver or GPU does not have costs its own values only. What one batch of "field values" tells as well, or
only, stands in ``gpu_fields``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml as nvml

from .values import Value

_MHZ = 1e6
_MW = 1e-3
_PERCENT = 1e-2
#: nvmlDeviceGetPcieThroughput's unit. It measures for 20 ms while the caller waits.
_KB = 1e3

#: Bits of the clock event ("throttle") reasons, in the words of nvidia-smi.
THROTTLE_REASONS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """``what``: in the words of a line that says it cannot be read. ``slow``: changes by an administrator's hand.

    unless_field: not read where this field value says it better.
    """

    what: str
    read: Callable[[Any], Sequence[Value]]
    slow: bool = False
    unless_field: int = 0


def throttle_words(bits: int) -> tuple[str, ...]:
    """Words for the bits of NVML's reasons for lower clocks; an unknown bit as a hexadecimal number, "0x200"."""
    known = tuple(word for bit, word in THROTTLE_REASONS.items() if bits & bit)
    rest = bits & ~sum(THROTTLE_REASONS)
    return known + tuple(hex(1 << bit) for bit in range(64) if rest >> bit & 1)


def _one(
    what: str,
    call: Callable[[Any], float],
    metric: str,
    scale: float = 1.0,
    *,
    slow: bool = False,
    unless_field: int = 0,
    **labels: str,
) -> GpuReading:
    written = {key.replace("__", "."): value for key, value in labels.items()}

    def read(handle: Any) -> Sequence[Value]:
        return (Value(metric, call(handle) * scale, written),)

    return GpuReading(what, read, slow, unless_field)


def _utilization(handle: Any) -> Sequence[Value]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return (
        Value("hw.gpu.utilization", rates.gpu * _PERCENT, {"hw.gpu.task": "general"}),
        Value("whichrank.gpu.memory.busy", rates.memory * _PERCENT),
    )


def _memory(handle: Any) -> Sequence[Value]:
    """The second version tells what the driver keeps for itself apart from what is used."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        reserved = [Value("whichrank.gpu.memory.reserved", memory.reserved)]
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, AttributeError):
        memory, reserved = nvml.nvmlDeviceGetMemoryInfo(handle), []
    return (
        Value("hw.gpu.memory.usage", memory.used),
        Value("hw.gpu.memory.limit", memory.total),
        Value("hw.gpu.memory.utilization", memory.used / memory.total if memory.total else 0.0),
        *reserved,
    )


def _throttle_bits(handle: Any) -> int:
    """The call was renamed with driver 535."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (nvml.NVMLError_FunctionNotFound, AttributeError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _throttle(handle: Any) -> Sequence[Value]:
    return throttle_values(_throttle_bits(handle))


def throttle_values(bits: int) -> Sequence[Value]:
    """A ``whichrank.gpu.throttled`` value for each known reason, and each unknown bit that is set.

    1 where the reason holds the clocks down, else 0. bits: as NVML tells them.
    """
    words = throttle_words(bits)
    told = (*THROTTLE_REASONS.values(), *(word for word in words if word.startswith("0x")))
    return tuple(
        Value("whichrank.gpu.throttled", float(word in words), {"whichrank.gpu.reason": word}) for word in told
    )


def _ecc_total(error: int, counter: int) -> Callable[[Any], float]:
    return lambda handle: float(nvml.nvmlDeviceGetTotalEccErrors(handle, error, counter))


def _ecc_place(error: int, counter: int, place: int) -> Callable[[Any], float]:
    return lambda handle: float(nvml.nvmlDeviceGetMemoryErrorCounter(handle, error, counter, place))


def _sram_threshold(handle: Any) -> float:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return float(status.bThresholdExceeded)


def _retired(cause: int) -> Callable[[Any], float]:
    return lambda handle: float(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)))


def _power_range(handle: Any) -> Sequence[Value]:
    low_mw, high_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    return (
        Value("whichrank.gpu.power.limit", low_mw * _MW, {"hw.limit_type": "min"}),
        Value("whichrank.gpu.power.limit", high_mw * _MW, {"hw.limit_type": "max"}),
    )


def _clock(call: str, kind: int) -> Callable[[Any], float]:
    return lambda handle: float(getattr(nvml, call)(handle, kind))


def _threshold(which: int) -> Callable[[Any], float]:
    return lambda handle: float(nvml.nvmlDeviceGetTemperatureThreshold(handle, which))


def _throughput(counter: int) -> Callable[[Any], float]:
    return lambda handle: float(nvml.nvmlDeviceGetPcieThroughput(handle, counter))


def _mode(call: str) -> Callable[[Any], float]:
    """The mode now, of calls that answer now and after the next reset."""
    return lambda handle: float(getattr(nvml, call)(handle)[0])


_ERRORS = {"corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
_SINCE = {"driver_load": nvml.NVML_VOLATILE_ECC, "manufacture": nvml.NVML_AGGREGATE_ECC}
_PLACES = {"dram": nvml.NVML_MEMORY_LOCATION_DRAM, "sram": nvml.NVML_MEMORY_LOCATION_SRAM}
_CLOCKS = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}

READINGS: tuple[GpuReading, ...] = (
    GpuReading("utilisation", _utilization),
    GpuReading("memory", _memory),
    GpuReading("clock event reasons", _throttle),
    _one(
        "encoder utilisation",
        _mode("nvmlDeviceGetEncoderUtilization"),
        "hw.gpu.utilization",
        _PERCENT,
        hw__gpu__task="encoder",
    ),
    _one(
        "decoder utilisation",
        _mode("nvmlDeviceGetDecoderUtilization"),
        "hw.gpu.utilization",
        _PERCENT,
        hw__gpu__task="decoder",
    ),
    *(
        _one(
            f"{name} clock",
            _clock("nvmlDeviceGetClockInfo", kind),
            "whichrank.gpu.speed",
            _MHZ,
            whichrank__gpu__clock=name,
        )
        for name, kind in _CLOCKS.items()
    ),
    *(
        _one(
            f"{words} {name} clock",
            _clock(call, kind),
            "whichrank.gpu.speed.limit",
            _MHZ,
            slow=True,
            whichrank__gpu__clock=name,
            hw__limit_type=limit,
        )
        for name, kind in _CLOCKS.items()
        for words, call, limit in (
            ("highest", "nvmlDeviceGetMaxClockInfo", "max"),
            ("application", "nvmlDeviceGetApplicationsClock", "application"),
        )
    ),
    _one("performance state", lambda handle: nvml.nvmlDeviceGetPerformanceState(handle), "whichrank.gpu.pstate"),
    _one("power draw", lambda handle: nvml.nvmlDeviceGetPowerUsage(handle), "hw.power", _MW, hw__type="gpu"),
    _one(
        "enforced power limit",
        lambda handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "whichrank.gpu.power.limit",
        _MW,
        hw__limit_type="enforced",
    ),
    _one(
        "set power limit",
        lambda handle: nvml.nvmlDeviceGetPowerManagementLimit(handle),
        "whichrank.gpu.power.limit",
        _MW,
        slow=True,
        hw__limit_type="set",
    ),
    _one(
        "default power limit",
        lambda handle: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
        "whichrank.gpu.power.limit",
        _MW,
        slow=True,
        hw__limit_type="default",
    ),
    GpuReading("range of the power limit", _power_range, slow=True),
    _one(
        "temperature",
        lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "hw.temperature",
        hw__sensor_location="gpu",
    ),
    *(
        _one(
            f"{words} temperature",
            _threshold(which),
            "hw.temperature.limit",
            slow=True,
            hw__sensor_location=place,
            hw__limit_type=limit,
        )
        for words, which, place, limit in (
            ("shutdown", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN, "gpu", "critical"),
            ("slowdown", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, "gpu", "throttled"),
            ("highest operating", nvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, "gpu", "max"),
            ("highest memory", nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX, "memory", "max"),
        )
    ),
    _one(
        "temperature margin",
        lambda handle: nvml.nvmlDeviceGetMarginTemperature(handle),
        "whichrank.gpu.temperature.margin",
    ),
    *(
        _one(
            f"{error} ECC errors",
            _ecc_total(number, nvml.NVML_VOLATILE_ECC),
            "hw.errors",
            hw__type="gpu",
            error__type=error,
        )
        for error, number in _ERRORS.items()
    ),
    *(
        _one(
            f"{error} ECC errors since {since.replace('_', ' ')} of {place}",
            _ecc_place(number, counter, location),
            "whichrank.gpu.ecc.errors",
            error__type=error,
            whichrank__gpu__since=since,
            whichrank__gpu__memory=place,
        )
        for error, number in _ERRORS.items()
        for since, counter in _SINCE.items()
        for place, location in _PLACES.items()
    ),
    _one("SRAM error threshold", _sram_threshold, "whichrank.gpu.ecc.sram_threshold_exceeded"),
    *(
        _one(
            f"pages retired for {cause} errors",
            _retired(number),
            "whichrank.gpu.retired_pages",
            slow=True,
            error__type=cause,
        )
        for cause, number in _ERRORS.items()
    ),
    _one(
        "pages waiting to be retired",
        lambda handle: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle),
        "whichrank.gpu.retired_pages.pending",
    ),
    _one("PCIe width", lambda handle: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), "whichrank.gpu.pcie.lanes"),
    _one(
        "PCIe generation",
        lambda handle: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "whichrank.gpu.pcie.generation",
    ),
    _one(
        "highest PCIe width",
        lambda handle: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "whichrank.gpu.pcie.lanes.limit",
        slow=True,
    ),
    _one(
        "highest PCIe generation",
        lambda handle: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "whichrank.gpu.pcie.generation.limit",
        slow=True,
    ),
    *(
        _one(
            f"PCIe throughput ({direction})",
            _throughput(counter),
            "whichrank.gpu.pcie.throughput",
            _KB,
            unless_field=number,
            network__io__direction=direction,
        )
        for direction, counter, number in (
            ("transmit", nvml.NVML_PCIE_UTIL_TX_BYTES, 197),
            ("receive", nvml.NVML_PCIE_UTIL_RX_BYTES, 198),
        )
    ),
    _one(
        "persistence mode",
        lambda handle: nvml.nvmlDeviceGetPersistenceMode(handle),
        "whichrank.gpu.persistence_mode",
        slow=True,
    ),
    _one("compute mode", lambda handle: nvml.nvmlDeviceGetComputeMode(handle), "whichrank.gpu.compute_mode", slow=True),
    _one("MIG mode", _mode("nvmlDeviceGetMigMode"), "whichrank.gpu.mig_mode", slow=True),
    _one("ECC mode", _mode("nvmlDeviceGetEccMode"), "whichrank.gpu.ecc.mode", slow=True),
)
