"""NVIDIA's GPUs for the GPU collector: ``Maker`` by NVML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pynvml as nvml

from . import driver as nvidia_driver
from .driver import AWAY, LOST, Driver, Gpu, error_words
from .driver_events import NvidiaEvents
from .maker import DriverClosed, GpuProcess, ProcessesUnknown
from .pci_devices import nvidia_on_bus
from .ranks import Placement, RankProcess, place_rank
from .watched import WatchedNvidia


class NvidiaGpus:
    """``Maker``. proc: of this node; the driver's own folder lies below."""

    driver_name = "NVIDIA's driver"
    source = "nvml"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc_gpus = proc / "driver" / "nvidia" / "gpus"

    def open(self) -> Driver:
        """Initialises NVML and asks for every GPU. Raises ``DriverClosed``."""
        try:
            return nvidia_driver.open_driver(self._proc_gpus)
        except nvml.NVMLError as error:
            is_replaced = error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            raise DriverClosed(str(error), is_replaced=is_replaced) from error

    def close(self) -> None:
        """Ends NVML."""
        nvidia_driver.close_driver()

    def watch(self, gpu: Gpu, lost: str = "") -> WatchedNvidia:
        """A look at that GPU, to be kept between collections."""
        return WatchedNvidia(gpu, lost)

    def listen(self, gpus: Iterable[Gpu]) -> NvidiaEvents:
        """An event set over these GPUs."""
        return NvidiaEvents(gpus)

    def processes(self, gpu: Gpu) -> Sequence[GpuProcess]:
        """Compute processes of the GPU and of its MIG instances. Raises ``ProcessesUnknown``."""
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
        except nvml.NVMLError as error:
            gone = error.value in LOST or error.value in AWAY
            raise ProcessesUnknown("" if gone else str(error)) from error
        return [
            GpuProcess(
                pid=process.pid,
                memory_bytes=process.usedGpuMemory,
                mig=gpu.mig_uuid(process.gpuInstanceId, process.computeInstanceId),
            )
            for process in running
        ]

    def place(self, process: RankProcess, gpus: Sequence[Gpu]) -> Placement | None:
        """By CUDA's variables."""
        return place_rank(process, gpus)

    def why_unreachable(self, status: int) -> str:
        """NVML's status in a word, or in its own words."""
        return LOST.get(status, error_words(status))

    def on_bus(self, sys: Path) -> Sequence[str]:
        """PCI addresses of NVIDIA's GPUs that are this system's."""
        return nvidia_on_bus(sys)[0]

    def versions(self, driver: Driver) -> Mapping[str, str]:
        """Of the driver, and of its library."""
        return {"nvidia_driver": driver.version, "nvml": driver.library_version}

    def description(self, driver: Driver, gpu: Gpu) -> Mapping[str, str]:
        """Labels of ``whichrank.gpu.info``."""
        return {
            "hw.vendor": "NVIDIA",
            "hw.model": gpu.model,
            "hw.serial_number": gpu.serial,
            "hw.firmware_version": gpu.vbios,
            "hw.driver_version": driver.version,
            "whichrank.gpu.nvml_version": driver.library_version,
            "whichrank.gpu.pci_bus": gpu.pci_bus,
            "whichrank.gpu.index": str(gpu.index),
        }
