"""Whose GPUs this node has: the collector for them, by one look at the PCI bus.

AMD's library is loaded only where the bus has one of AMD's GPUs and none of NVIDIA's (a server's processor may have
graphics of its own). Where there is neither, NVML is asked: some containers and virtual machines do not show the bus.
"""

from __future__ import annotations

from pathlib import Path

from .gpu_collector import GpuCollector
from .pci_devices import amd_on_bus, nvidia_on_bus


def make_gpu_collector(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> GpuCollector:
    """The collector of this node's GPUs. proc, sys: where the kernel's file systems are mounted."""
    if not nvidia_on_bus(sys)[0] and amd_on_bus(sys):
        from .amd import AmdGpus

        return GpuCollector(AmdGpus(sys), proc, sys)
    from .nvidia import NvidiaGpus

    return GpuCollector(NvidiaGpus(proc), proc, sys)
