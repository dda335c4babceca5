"""AMD's GPUs for the GPU collector: ``Maker`` by the package ``amdsmi`` of ROCm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .amd_events import AmdEvents
from .amd_library import load_amdsmi
from .amd_ranks import place_amd_rank
from .amd_status import AWAY, status_of, words_of
from .amd_watched import WatchedAmd
from .driver import Driver, Gpu
from .maker import DriverClosed, GpuProcess, ProcessesUnknown
from .pci_devices import amd_on_bus
from .pci_names import normalise_pci
from .ranks import Placement, RankProcess


class AmdGpus:
    """``Maker``. sys: where sysfs is mounted. The package is loaded when the driver is first opened."""

    driver_name = "AMD's library"
    source = "amdsmi"

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys
        self._smi: Any = None

    def open(self) -> Driver:
        """Initialises the library and asks for every GPU. Raises ``DriverClosed``."""
        if self._smi is None:
            self._smi = load_amdsmi()
        smi = self._smi
        try:
            smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
            handles = smi.amdsmi_get_processor_handles()
            gpus = [self._describe(index, handle) for index, handle in enumerate(handles)]
        except smi.AmdSmiException as error:
            raise DriverClosed(words_of(error)) from error
        if not gpus:
            raise DriverClosed("it knows of no GPU")
        version = self._asked("driver_info", handles[0]).get("driver_version", "")
        return Driver(version=_text(version), library_version=str(smi.__version__), gpus=tuple(_unlike(gpus)))

    def close(self) -> None:
        """Ends the library."""
        if self._smi is not None:
            with contextlib.suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()

    def watch(self, gpu: Gpu, lost: str = "") -> WatchedAmd:
        """A look at that GPU, to be kept between collections."""
        return WatchedAmd(self._smi, gpu, self._sys, lost)

    def listen(self, gpus: Iterable[Gpu]) -> AmdEvents:
        """A registration for events of these GPUs."""
        return AmdEvents(self._smi, gpus)

    def processes(self, gpu: Gpu) -> Sequence[GpuProcess]:
        """Processes of the compute driver (KFD). Raises ``ProcessesUnknown``."""
        try:
            running = self._smi.amdsmi_get_gpu_process_list(gpu.handle)
        except self._smi.AmdSmiException as error:
            raise ProcessesUnknown("" if status_of(error) in AWAY else words_of(error)) from error
        return [
            GpuProcess(pid=int(process["pid"]), memory_bytes=int(process["memory_usage"]["vram_mem"]))
            for process in running
        ]

    def place(self, process: RankProcess, gpus: Sequence[Gpu]) -> Placement | None:
        """By the variables of ROCm and HIP."""
        return place_amd_rank(process, gpus)

    def why_unreachable(self, status: int) -> str:
        """The number alone: the library lists no GPU that it cannot ask."""
        return f"status_{status}"

    def on_bus(self, sys: Path) -> Sequence[str]:
        """PCI addresses of AMD's GPUs that are this system's."""
        return amd_on_bus(sys)

    def versions(self, driver: Driver) -> Mapping[str, str]:
        """Of the driver, and of the package that belongs to its library."""
        return {"amdgpu_driver": driver.version, "amdsmi": driver.library_version}

    def description(self, driver: Driver, gpu: Gpu) -> Mapping[str, str]:
        """Labels of ``whichrank.gpu.info``."""
        return {
            "hw.vendor": "AMD",
            "hw.model": gpu.model,
            "hw.serial_number": gpu.serial,
            "hw.firmware_version": gpu.vbios,
            "hw.driver_version": driver.version,
            "whichrank.gpu.pci_bus": gpu.pci_bus,
            "whichrank.gpu.index": str(gpu.index),
        }

    def _describe(self, index: int, handle: Any) -> Gpu:
        asic, vbios = self._asked("asic_info", handle), self._asked("vbios_info", handle)
        runtime = self._asked("enumeration_info", handle)
        serial = _text(asic.get("asic_serial"))
        hip = runtime.get("hip_id")
        return Gpu(
            uuid=str(self._smi.amdsmi_get_gpu_device_uuid(handle)),
            index=index,
            pci_bus=normalise_pci(str(self._smi.amdsmi_get_gpu_device_bdf(handle))),
            model=_text(asic.get("market_name")),
            serial=serial,
            vbios=_text(vbios.get("version")),
            handle=handle,
            runtime_index=hip if isinstance(hip, int) else None,
            # ROCr's name of a device: its serial number, as sysfs has it (unique_id).
            runtime_name=f"GPU-{serial.removeprefix('0x').lower()}" if serial else "",
        )

    def _asked(self, what: str, handle: Any) -> Mapping[str, Any]:
        """An answer that need not come: empty where this release or GPU has none."""
        call = getattr(self._smi, f"amdsmi_get_gpu_{what}", None)
        if call is None:
            return {}
        try:
            answer: Mapping[str, Any] = call(handle)
        except self._smi.AmdSmiException as error:
            if status_of(error) in AWAY:
                raise
            return {}
        except (UnicodeDecodeError, ValueError):  # a damaged board memory
            return {}
        return answer


def _text(raw: Any) -> str:
    return "" if raw is None or raw == "N/A" else str(raw)


def _unlike(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Partitions of one GPU may have its UUID: then each after the first has its place in the name as well."""
    seen: set[str] = set()
    named = []
    for gpu in gpus:
        named.append(replace(gpu, uuid=f"{gpu.uuid}/{gpu.index}") if gpu.uuid in seen else gpu)
        seen.add(gpu.uuid)
    return named
