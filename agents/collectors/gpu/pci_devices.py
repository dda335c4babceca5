"""Which of NVIDIA's devices are on the PCI bus: what a node has, whatever its driver says."""

from __future__ import annotations

from pathlib import Path

from ..base.kernel_files import link_name, list_names, read_text

_NVIDIA = "0x10de"
#: Display and 3D controllers; bridges of this maker are NVSwitches.
_GPU_CLASSES, _BRIDGE_CLASS = ("0x0300", "0x0302"), "0x0680"
#: Given to a virtual machine: no GPU of this system.
_GIVEN_AWAY = ("vfio-pci", "pci-stub")


def nvidia_on_bus(sys: Path) -> tuple[list[str], int]:
    """Addresses of the GPUs that are this system's, and the number of NVSwitches. sys: where sysfs is mounted."""
    gpus, nvswitches = [], 0
    devices = sys / "bus/pci/devices"
    for address in list_names(devices):
        if (read_text(devices / address / "vendor") or "").strip() != _NVIDIA:
            continue
        kind = (read_text(devices / address / "class") or "").strip()
        if kind.startswith(_GPU_CLASSES) and link_name(devices / address / "driver") not in _GIVEN_AWAY:
            gpus.append(address)
        elif kind.startswith(_BRIDGE_CLASS):
            nvswitches += 1
    return gpus, nvswitches
