"""What is on the PCI bus, from trees of /sys as kernels write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whichrank.agents.collectors.gpu.pci_devices import amd_in_driver, amd_on_bus, nvidia_on_bus
from whichrank.agents.collectors.gpu.which_maker import make_gpu_collector


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


def test_amds_are_its_accelerators_too_and_what_the_compute_driver_gives(tmp_path: Path) -> None:
    device(tmp_path, "0000:05:00.0", "0x1002", "0x120000", "amdgpu")
    device(tmp_path, "0000:26:00.0", "0x1002", "0x038000")
    device(tmp_path, "0000:46:00.0", "0x1002", "0x030000", "vfio-pci")
    device(tmp_path, "0000:00:00.0", "0x1002", "0x060400", "pcieport")
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200", "nvidia")
    assert amd_on_bus(tmp_path) == ["0000:05:00.0", "0000:26:00.0"]
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    for number, gpu_id in (("0", "0"), ("1", "51234"), ("2", "")):
        (nodes / number).mkdir(parents=True)
        (nodes / number / "gpu_id").write_text(f"{gpu_id}\n" if gpu_id else "")
    (nodes / "2/gpu_id").unlink()  # of a GPU of another container the driver refuses it
    assert amd_in_driver(tmp_path) == ["1"]


def test_who_has_none_of_amds_loads_nothing_of_amds(tmp_path: Path) -> None:
    """Nor who has graphics of AMD's beside GPUs of NVIDIA's."""
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200")
    device(tmp_path, "0000:05:00.0", "0x1002", "0x030000")
    script = (
        "import sys; from pathlib import Path\n"
        "from whichrank.agents.collectors.gpu.which_maker import make_gpu_collector\n"
        "for place in sys.argv[1:]: make_gpu_collector(Path(place), Path(place))\n"
        "print([name for name in sys.modules if 'amd' in name])"
    )
    places = [str(tmp_path), str(tmp_path / "nothing")]
    said = subprocess.run([sys.executable, "-c", script, *places], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


@pytest.mark.parametrize("on_bus", [True, False])
def test_a_gpu_without_a_driver_is_not_seen_and_a_node_without_gpus_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_bus: bool
) -> None:
    import pynvml as nvml

    from whichrank.agents.collectors.base.collector import Timestamps
    from whichrank.agents.collectors.gpu import driver

    def no_driver(_: Path) -> None:
        raise nvml.NVMLError(nvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(driver, "open_driver", no_driver)
    if on_bus:
        device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200")
    collector = make_gpu_collector(tmp_path, tmp_path)
    assert collector.collect(Timestamps(wall_ns=1, mono_ns=1)).blind is on_bus
    assert collector.collect(Timestamps(wall_ns=2, mono_ns=2)).blind is on_bus
