"""What is on the PCI bus, from trees of /sys as kernels write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichrank.agents.collectors.gpu.gpu_collector import GpuCollector
from whichrank.agents.collectors.gpu.pci_devices import nvidia_on_bus


def device(sys: Path, address: str, vendor: str, kind: str, driver: str = "") -> None:
    folder = sys / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(sys / "bus/pci/drivers" / driver)


def test_gpus_switches_and_others(tmp_path: Path) -> None:
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200", "nvidia")
    device(tmp_path, "0000:1c:00.0", "0x10de", "0x030000")
    device(tmp_path, "0000:1d:00.0", "0x10de", "0x030200", "vfio-pci")
    device(tmp_path, "0000:07:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    device(tmp_path, "0000:02:00.0", "0x15b3", "0x020700", "mlx5_core")
    assert nvidia_on_bus(tmp_path) == (["0000:1b:00.0", "0000:1c:00.0"], 1)
    assert nvidia_on_bus(tmp_path / "nothing") == ([], 0)


@pytest.mark.parametrize("on_bus", [True, False])
def test_a_gpu_without_a_driver_is_not_seen_and_a_node_without_gpus_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_bus: bool
) -> None:
    import pynvml as nvml

    from whichrank.agents.collectors.base.collector import Timestamps
    from whichrank.agents.collectors.gpu import gpu_collector

    def no_driver(_: Path) -> None:
        raise nvml.NVMLError(nvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(gpu_collector, "open_driver", no_driver)
    if on_bus:
        device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200")
    collector = GpuCollector(tmp_path, tmp_path)
    assert collector.collect(Timestamps(wall_ns=1, mono_ns=1)).blind is on_bus
    assert collector.collect(Timestamps(wall_ns=2, mono_ns=2)).blind is on_bus
