"""What is read of one of AMD's GPUs, value by value, under the names that NVIDIA's have (``node_metrics/gpu.toml``).

A call that a release or GPU does not have costs its own values only; so does "N/A", which a structure holds in place
of a number. What only AMD's have stands in ``amd_errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .amd_status import number
from .values import Value

_MHZ = 1e6
_PERCENT = 1e-2
#: Of power caps and of the energy counter.
_MICRO = 1e-6
#: Of a PCIe lane, in the units of the link (MT/s), by generation.
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
#: Clocks held down, by what the firmware accounts: in NVIDIA's words where they mean the same.
#: ``ppt``: the limit of the package's power. ``prochot``: a signal of the board. ``vr``: the voltage regulators.
VIOLATIONS: Mapping[str, str] = {
    "ppt_pwr": "sw_power_cap",
    "socket_thrm": "hw_thermal_slowdown",
    "hbm_thrm": "memory_thermal_slowdown",
    "vr_thrm": "regulator_thermal_slowdown",
    "prochot_thrm": "hw_slowdown",
}
Read = Callable[[Any, Any], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class AmdReading:
    """``what``: in the words of a line that says it cannot be read. ``read``: of the package and a GPU's handle.

    ``slow``: changes by an administrator's hand.
    """

    what: str
    read: Read
    slow: bool = False


def value(metric: str, raw: Any, scale: float = 1.0, **labels: str) -> Iterator[Value]:
    """One value, or none for the package's "N/A". A dot in a label's name is written as two underscores."""
    found = number(raw)
    if found is not None:
        yield Value(metric, found * scale, {key.replace("__", "."): text for key, text in labels.items()})


def _activity(smi: Any, handle: Any) -> Sequence[Value]:
    used = smi.amdsmi_get_gpu_activity(handle)
    return (
        *value("hw.gpu.utilization", used.get("gfx_activity"), _PERCENT, hw__gpu__task="general"),
        *value("whichrank.gpu.memory.busy", used.get("umc_activity"), _PERCENT),
    )


def _memory(smi: Any, handle: Any) -> Sequence[Value]:
    vram = smi.AmdSmiMemoryType.VRAM
    total = float(smi.amdsmi_get_gpu_memory_total(handle, vram))
    used = float(smi.amdsmi_get_gpu_memory_usage(handle, vram))
    return (
        Value("hw.gpu.memory.usage", used),
        Value("hw.gpu.memory.limit", total),
        Value("hw.gpu.memory.utilization", used / total if total else 0.0),
    )


def _clock(name: str, kind: str) -> Read:
    def read(smi: Any, handle: Any) -> Sequence[Value]:
        clock = smi.amdsmi_get_clock_info(handle, getattr(smi.AmdSmiClkType, kind))
        return (
            *value("whichrank.gpu.speed", clock.get("clk"), _MHZ, whichrank__gpu__clock=name),
            *value(
                "whichrank.gpu.speed.limit",
                clock.get("max_clk"),
                _MHZ,
                whichrank__gpu__clock=name,
                hw__limit_type="max",
            ),
        )

    return read


def _power(smi: Any, handle: Any) -> Sequence[Value]:
    """Now, or the mean of the last second where the GPU tells only that (MI200 and before)."""
    told = smi.amdsmi_get_power_info(handle)
    for key in ("current_socket_power", "average_socket_power", "socket_power"):
        found = tuple(value("hw.power", told.get(key), hw__type="gpu"))
        if found:
            return found
    return ()


def _power_cap(smi: Any, handle: Any) -> Sequence[Value]:
    told = smi.amdsmi_get_power_cap_info(handle)
    limits = {"enforced": "power_cap", "default": "default_power_cap", "min": "min_power_cap", "max": "max_power_cap"}
    return tuple(
        point
        for limit, key in limits.items()
        for point in value("whichrank.gpu.power.limit", told.get(key), _MICRO, hw__limit_type=limit)
    )


def _energy(smi: Any, handle: Any) -> Sequence[Value]:
    told = smi.amdsmi_get_energy_count(handle)
    counted, step_uj = number(told.get("energy_accumulator")), number(told.get("counter_resolution"))
    if counted is None or step_uj is None:
        return ()
    return (Value("hw.energy", counted * step_uj * _MICRO, {"hw.type": "gpu"}),)


def _temperature(place: str, sensor: str) -> Read:
    def read(smi: Any, handle: Any) -> Sequence[Value]:
        which, now = getattr(smi.AmdSmiTemperatureType, sensor), smi.AmdSmiTemperatureMetric.CURRENT
        return tuple(value("hw.temperature", smi.amdsmi_get_temp_metric(handle, which, now), hw__sensor_location=place))

    return read


def _temperature_limit(place: str, sensor: str, limit: str, metric: str) -> Read:
    def read(smi: Any, handle: Any) -> Sequence[Value]:
        which, kind = getattr(smi.AmdSmiTemperatureType, sensor), getattr(smi.AmdSmiTemperatureMetric, metric)
        told = smi.amdsmi_get_temp_metric(handle, which, kind)
        return tuple(value("hw.temperature.limit", told, hw__sensor_location=place, hw__limit_type=limit))

    return read


def _violations(smi: Any, handle: Any) -> Sequence[Value]:
    """Whether clocks are held down, and in how many of the firmware's samples they were since the driver was loaded."""
    told = smi.amdsmi_get_violation_status(handle)
    found: list[Value] = [*value("whichrank.gpu.samples", told.get("acc_counter"))]
    for key, reason in VIOLATIONS.items():
        holds = told.get(f"active_{key}")
        found += value("whichrank.gpu.throttled", holds, whichrank__gpu__reason=reason)
        found += value("whichrank.gpu.throttled.samples", told.get(f"acc_{key}"), whichrank__gpu__reason=reason)
    return found


def _pcie(smi: Any, handle: Any) -> Sequence[Value]:
    told = smi.amdsmi_get_pcie_info(handle)
    now, best = told.get("pcie_metric", {}), told.get("pcie_static", {})
    return (
        *value("whichrank.gpu.pcie.lanes", now.get("pcie_width")),
        *value("whichrank.gpu.pcie.lanes.limit", best.get("max_pcie_width")),
        *value("whichrank.gpu.pcie.generation", _generation(now.get("pcie_speed"))),
        *value("whichrank.gpu.pcie.generation.limit", _generation(best.get("max_pcie_speed"))),
        *value("hw.errors", now.get("pcie_replay_count"), hw__type="gpu", error__type="pcie_replay"),
        *value("hw.errors", now.get("pcie_l0_to_recovery_count"), hw__type="gpu", error__type="pcie_recovery"),
    )


def _generation(speed: Any) -> Any:
    """Of a link's speed in MT/s, or in GT/s as some releases tell it."""
    told = number(speed)
    if told is None:
        return None
    return _GENERATIONS.get(int(told if told > 100 else told * 1000))


READINGS: tuple[AmdReading, ...] = (
    AmdReading("activity", _activity),
    AmdReading("memory", _memory),
    AmdReading("graphics clock", _clock("sm", "GFX")),
    AmdReading("memory clock", _clock("memory", "MEM")),
    AmdReading("power", _power),
    AmdReading("power cap", _power_cap, slow=True),
    AmdReading("energy", _energy),
    *(
        AmdReading(f"{place} temperature", _temperature(place, sensor))
        for place, sensor in (("edge", "EDGE"), ("junction", "JUNCTION"), ("memory", "VRAM"))
    ),
    *(
        AmdReading(
            f"{limit} limit of the {place} temperature", _temperature_limit(place, sensor, limit, metric), slow=True
        )
        for place, sensor in (("edge", "EDGE"), ("junction", "JUNCTION"), ("memory", "VRAM"))
        for limit, metric in (("throttled", "CRITICAL"), ("critical", "EMERGENCY"))
    ),
    AmdReading("violations", _violations),
    AmdReading("PCIe", _pcie),
)
