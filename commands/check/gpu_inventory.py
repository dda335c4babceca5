"""Which GPUs a node has without asking a driver that may hang: the PCI bus, and what drivers show in /proc and /sys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...agents.collectors.base.kernel_files import list_names, read_text
from ...agents.collectors.gpu.pci_devices import amd_in_driver, amd_on_bus, nvidia_on_bus


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """on_bus: addresses of GPUs that are this system's. in_driver: those of which the driver has a folder.

    They are AMD's where no other maker's are on the bus, as the agent has it (``which_maker``).

    is_restricted: a container, which may be given fewer than the bus shows.
    """

    on_bus: tuple[str, ...]
    in_driver: tuple[str, ...]
    model: str
    nvswitches: int
    is_restricted: bool


def inventory(root: Path) -> GpuInventory:
    """What the PCI bus and the driver show below ``root``, without asking the driver anything."""
    on_bus, nvswitches = nvidia_on_bus(root / "sys")
    folder = root / "proc/driver/nvidia/gpus"
    in_driver = list_names(folder)
    model = ""
    for address in in_driver:
        for line in (read_text(folder / address / "information") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model" and not model:
                model = value.strip()[:80]
    if not on_bus and (of_amd := amd_on_bus(root / "sys")):
        on_bus, in_driver = of_amd, amd_in_driver(root / "sys")
    return GpuInventory(
        on_bus=tuple(on_bus),
        in_driver=tuple(in_driver),
        model=model,
        nvswitches=nvswitches,
        is_restricted=_in_container(root),
    )


def expected_gpus(here: GpuInventory) -> int:
    """How many GPUs there should be: in a container what the driver shows there, else what the bus holds.

    So a GPU that no driver has taken is missed.
    """
    if here.is_restricted:
        return len(here.in_driver)
    return max(len(here.in_driver), len(here.on_bus))


def _in_container(root: Path) -> bool:
    """Looked at from inside: ``root`` is then this container's."""
    if str(root) != "/":
        return False
    visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", "") or os.environ.get("AMD_VISIBLE_DEVICES", "")
    if visible and visible != "all":
        return True
    return (
        Path("/.dockerenv").exists()
        or Path("/run/.containerenv").exists()
        or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    )
