"""Which GPUs are on the PCI bus, by maker: what a node has, whatever its drivers' libraries say."""

from __future__ import annotations

from pathlib import Path

from ..base.kernel_files import link_name, list_names, read_text

_NVIDIA, _AMD = "0x10de", "0x1002"
#: Display and 3D controllers; bridges of this maker are NVSwitches.
_NVIDIA_CLASSES, _BRIDGE_CLASS = ("0x0300", "0x0302"), "0x0680"
#: Of AMD's the accelerators are display controllers of other kinds (MI200), and processing accelerators (MI300).
_AMD_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
#: Given to a virtual machine: no GPU of this system.
_GIVEN_AWAY = ("vfio-pci", "pci-stub")


def nvidia_on_bus(sys: Path) -> tuple[list[str], int]:
    """Addresses of NVIDIA's GPUs that are this system's, and the number of NVSwitches. sys: where sysfs is mounted."""
    gpus, nvswitches = [], 0
    devices = sys / "bus/pci/devices"
    for address, kind in _devices_of(devices, _NVIDIA):
        if kind.startswith(_NVIDIA_CLASSES) and link_name(devices / address / "driver") not in _GIVEN_AWAY:
            gpus.append(address)
        elif kind.startswith(_BRIDGE_CLASS):
            nvswitches += 1
    return gpus, nvswitches


def amd_on_bus(sys: Path) -> list[str]:
    """Addresses of AMD's GPUs that are this system's. sys: where sysfs is mounted."""
    devices = sys / "bus/pci/devices"
    return [
        address
        for address, kind in _devices_of(devices, _AMD)
        if kind.startswith(_AMD_CLASSES) and link_name(devices / address / "driver") not in _GIVEN_AWAY
    ]


def amd_in_driver(sys: Path) -> list[str]:
    """Numbers by AMD's compute driver (KFD) of the GPUs that this process may use: in a container those given to it."""
    nodes = sys / "class/kfd/kfd/topology/nodes"
    # A processor has no number; that of a GPU of somebody else's is refused.
    return [name for name in list_names(nodes) if (read_text(nodes / name / "gpu_id") or "0").strip() != "0"]


def _devices_of(devices: Path, vendor: str) -> list[tuple[str, str]]:
    """Addresses and classes of a maker's devices."""
    return [
        (address, (read_text(devices / address / "class") or "").strip())
        for address in list_names(devices)
        if (read_text(devices / address / "vendor") or "").strip() == vendor
    ]
