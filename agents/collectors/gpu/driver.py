"""The GPUs of a node as NVIDIA's driver knows them, and what its refusals mean.

Everything here calls NVML, which may block for as long as the driver does. Handles are valid until ``close_driver``.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pynvml as nvml

from .pci_names import normalise_pci

_T = TypeVar("_T")

#: This driver, GPU or binding never gives that value: not asked again until the driver is opened anew.
NEVER = frozenset(
    {
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        26,  # DEPRECATED; older bindings have no name for it
    }
)
#: The GPU itself is out of reach: fallen off the bus, or waits for a reset.
LOST = {nvml.NVML_ERROR_GPU_IS_LOST: "gpu_is_lost", nvml.NVML_ERROR_RESET_REQUIRED: "reset_required"}
#: The driver was unloaded, or loaded anew under us.
AWAY = frozenset(
    {
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    }
)
_WHOLE_GPU = 0xFFFFFFFF
_PROC_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    uuid: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. ``index``: in the order of the PCI bus, as nvidia-smi counts. ``handle``: that of the driver's library.

    pci_bus: as sysfs writes it, "0000:1b:00.0". runtime_index, runtime_name: how programs name it in the variables
    that choose devices, where that is neither ``index`` nor ``uuid``.
    """

    uuid: str
    index: int
    pci_bus: str
    model: str
    serial: str
    vbios: str
    handle: Any
    mig: tuple[MigDevice, ...] = ()
    runtime_index: int | None = None
    runtime_name: str = ""

    def mig_uuid(self, gpu_instance: int, compute_instance: int) -> str:
        """The UUID of one of the GPU's MIG instances; empty for the whole GPU, or for an instance that came later."""
        for device in self.mig:
            if (device.gpu_instance, device.compute_instance) == (gpu_instance, compute_instance):
                return device.uuid
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachableGpu:
    """A GPU of which the driver knows only where it is: it was lost before we asked. ``uuid`` empty: unknown."""

    index: int
    pci_bus: str
    uuid: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """library_version: of the library that asks the driver."""

    version: str
    library_version: str
    gpus: tuple[Gpu, ...]
    unreachable: tuple[UnreachableGpu, ...] = field(default=())


def open_driver(proc_gpus: Path = _PROC_GPUS) -> Driver:
    """Initialises NVML and asks for every GPU. Raises NVMLError: no driver, or one that does not match its library."""
    nvml.nvmlInit()
    gpus: list[Gpu] = []
    unreachable: list[tuple[int, int]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_describe(index, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            if error.value in AWAY:
                raise
            unreachable.append((index, error.value))
    return Driver(
        version=_or_empty(nvml.nvmlSystemGetDriverVersion),
        library_version=_or_empty(nvml.nvmlSystemGetNVMLVersion),
        gpus=tuple(gpus),
        unreachable=_name_unreachable(unreachable, {gpu.pci_bus for gpu in gpus}, proc_gpus),
    )


def close_driver() -> None:
    """Ends NVML; that it was not running, or is broken, is no error."""
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


def handle_number(handle: Any) -> int:
    """A number that is equal for any two NVML handles of one device; events bring handles of their own."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def is_instance(number: int) -> bool:
    """Whether NVML's number is that of a MIG instance and not of a whole GPU."""
    return number != _WHOLE_GPU


def error_words(status: int) -> str:
    """NVML's own text for a status, in one line."""
    return str(nvml.NVMLError(status))


def _describe(index: int, handle: Any) -> Gpu:
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        index=index,
        pci_bus=normalise_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        model=_or_empty(nvml.nvmlDeviceGetName, handle),
        serial=_or_empty(nvml.nvmlDeviceGetSerial, handle),
        vbios=_or_empty(nvml.nvmlDeviceGetVbiosVersion, handle),
        handle=handle,
        mig=tuple(_mig_devices(handle)),
    )


def _mig_devices(handle: Any) -> list[MigDevice]:
    found: list[MigDevice] = []
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0
    except nvml.NVMLError:
        return found
    for index in range(count):
        # Numbers of instances that are not made have no device; those after them may.
        with contextlib.suppress(nvml.NVMLError):
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found.append(
                MigDevice(
                    uuid=nvml.nvmlDeviceGetUUID(device),
                    gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(device),
                    compute_instance=nvml.nvmlDeviceGetComputeInstanceId(device),
                )
            )
    return found


def _name_unreachable(
    lost: Sequence[tuple[int, int]], reached: set[str], proc_gpus: Path
) -> tuple[UnreachableGpu, ...]:
    """The kernel module still lists them: by PCI address, and in the order that NVML numbers them."""
    listed = {bus: uuid for bus, uuid in _listed_by_kernel(proc_gpus).items() if bus not in reached}
    buses = sorted(listed)
    return tuple(
        UnreachableGpu(
            index=index,
            pci_bus=buses[at] if len(buses) == len(lost) else "",
            uuid=listed[buses[at]] if len(buses) == len(lost) else "",
            status=status,
        )
        for at, (index, status) in enumerate(lost)
    )


def _listed_by_kernel(proc_gpus: Path) -> Mapping[str, str]:
    """UUIDs by PCI address of what the loaded module has ever seen; "" where it does not say one."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for folder in proc_gpus.iterdir():
            uuid = ""
            with contextlib.suppress(OSError):
                information = (folder / "information").read_text(encoding="ascii", errors="replace")
                match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", information, re.MULTILINE)
                uuid = match[1] if match else ""
            found[normalise_pci(folder.name)] = uuid
    return found


def _text(raw: str | bytes) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw


def _or(call: Callable[..., _T], default: _T, *arguments: Any) -> _T:
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in AWAY or error.value in LOST:
            raise
        return default
    except UnicodeDecodeError:
        # Bytes of a damaged board memory (InfoROM), which the binding takes for text.
        return default


def _or_empty(call: Callable[..., str | bytes], *arguments: Any) -> str:
    empty: str | bytes = ""
    return _text(_or(call, empty, *arguments))
