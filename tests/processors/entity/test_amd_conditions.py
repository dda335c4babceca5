"""What AMD's driver says of a played node becomes conditions: the collector's points and events, the kernel's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.played_amd.played import (
    GFX,
    POST_RESET,
    PRE_RESET,
    THERMAL_THROTTLE,
    UMC,
    VMFAULT,
    XGMI_WAFL,
    PlayedAmd,
    site,
)
from tests.played_gpu.collecting import CollectingProcess
from tests.processors.cluster.conftest import START_S
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Collected
from whichrank.telemetry.records import Event, Identity, Point, Samples

PERIOD_S = 10.0
GPU = 3


class AmdNode:
    """A played node, its collector, and the entity operator that hears it. Times are seconds after ``START_S``."""

    def __init__(self, played: PlayedAmd, gpus: CollectingProcess) -> None:
        self.played = played
        self.gpus = gpus
        self.node = Node()
        self.now = 0.0

    def look(self, times: int = 1) -> None:
        """So many collections, a period each; events that came meanwhile among them."""
        for _ in range(times):
            self.now += PERIOD_S
            self._hear(self.gpus.wait(0.05))
            self._hear(self.gpus.collect(later_s=self.now))
            self.node.pass_time(self.now)

    @property
    def names(self) -> set[str]:
        """Conditions that stand, with their device by its number."""
        numbers = {identifier: f"GPU {gpu}" for gpu, identifier in enumerate(self.played.uuids)}
        found = set()
        for name in self.node.open:
            word, _, device = name.partition("/")
            found.add(f"{word}/{device.replace(device[:36], numbers.get(device[:36], device[:36]))}")
        return found

    def _hear(self, collected: Collected) -> None:
        at_ns = round((START_S + self.now) * 1e9)
        who = Identity(cluster="local", node=self.node.name)
        for seen in collected.happenings:
            self.node.take(Event(name=seen.name, identity=who, time_ns=at_ns, attributes=seen.attributes))
        if collected.points:
            points = (
                Point(name=p.name, value=p.value, attributes=p.attributes, time_ns=at_ns) for p in collected.points
            )
            self.node.take(Samples(identity=who, points=tuple(points)))


@pytest.fixture
def amd(tmp_path: Path) -> Iterator[AmdNode]:
    package = site()
    if package is None:
        pytest.skip("a C compiler and the package amdsmi are needed for AMD's played GPUs, and there are none")
    played = PlayedAmd(package, tmp_path / "mi300x")
    nobody = tmp_path / "proc"
    nobody.mkdir()
    with CollectingProcess(played.environment(), nobody, played.sys) as gpus:
        yield AmdNode(played, gpus)


def setting(key: str, value: object) -> Callable[[PlayedAmd], None]:
    return lambda played: played.set(GPU, {key: value})


FAULTS: dict[str, tuple[Callable[[PlayedAmd], None], set[str]]] = {
    "memory error": (setting(f"gpu_ecc_count/{UMC}.uncorrectable_count", 2), {"gpu_memory_error/GPU 3"}),
    "core error": (setting(f"gpu_ecc_count/{GFX}.uncorrectable_count", 1), {"gpu_block_error/GPU 3/gfx"}),
    "link's core error": (
        setting(f"gpu_ecc_count/{XGMI_WAFL}.uncorrectable_count", 1),
        {"gpu_block_error/GPU 3/xgmi_wafl"},
    ),
    "link down": (setting("gpu_xgmi_link_status.status", "1,0,1,1,1,1,1,2"), {"xgmi_down/GPU 3/1"}),
    "link errors": (setting("gpu_xgmi_error_status", 2), {"xgmi_error/GPU 3"}),
    "too hot": (setting("violation_status.active_socket_thrm", 1), {"gpu_throttled/GPU 3"}),
    "memory too hot": (setting("violation_status.active_hbm_thrm", 1), {"gpu_throttled/GPU 3"}),
    "regulators too hot": (setting("violation_status.active_vr_thrm", 1), {"gpu_throttled/GPU 3"}),
    "held by the board": (setting("violation_status.active_prochot_thrm", 1), {"gpu_throttled/GPU 3"}),
    "fewer lanes": (setting("pcie_info.pcie_metric.pcie_width", 8), {"pcie_narrow/GPU 3"}),
    "clock locked": (setting("clock_info/0.max_clk", 1300), {"gpu_clock_locked/GPU 3"}),
    "worn memory": (setting("bad_pages", "0" * 240), {"gpu_memory_worn/GPU 3"}),
    "page that stays": (setting("bad_pages", "2"), {"gpu_memory_worn/GPU 3"}),
    "lost": (lambda played: played.lose(GPU), {"gpu_lost/GPU 3"}),
    "page fault": (lambda played: played.event(GPU, VMFAULT), {"gpu_page_fault/GPU 3"}),
    "throttling told": (lambda played: played.event(GPU, THERMAL_THROTTLE), {"gpu_throttled/GPU 3"}),
    "reset": (lambda played: played.event(GPU, PRE_RESET), {"gpu_reset/GPU 3"}),
}


#: Once a minute.
SELDOM_READ = ("worn memory", "page that stays", "some bad pages")


def reset_and_done(played: PlayedAmd) -> None:
    played.event(GPU, PRE_RESET)
    played.event(GPU, POST_RESET)


#: The same mechanism where it is no fault: counted before anybody looked, corrected, by design, or over at once.
CONTROLS: dict[str, Callable[[PlayedAmd], None]] = {
    "corrected errors": setting(f"gpu_ecc_count/{UMC}.correctable_count", 900),
    "deferred errors": setting(f"gpu_ecc_count/{UMC}.deferred_count", 3),
    "held by its power cap": setting("violation_status.active_ppt_pwr", 1),
    "a link that the board has switched off": setting("gpu_xgmi_link_status.status", "1,2,1,1,1,1,1,2"),
    "some bad pages": setting("bad_pages", "000001"),
    "slower lanes while idle": setting("pcie_info.pcie_metric.pcie_speed", 2500),
    "a reset that is over": reset_and_done,
    "hot": setting("temp_metric/1/0", 97),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_condition_of_its_gpu(amd: AmdNode, name: str) -> None:
    amd.look(2)
    assert amd.names == set(), "a sound node"
    happens, wanted = FAULTS[name]
    happens(amd.played)
    amd.look(8 if name in SELDOM_READ else 4)
    assert amd.names == wanted


@pytest.mark.parametrize("name", CONTROLS)
def test_what_is_no_fault_is_no_condition(amd: AmdNode, name: str) -> None:
    amd.look(2)
    CONTROLS[name](amd.played)
    amd.look(8 if name in SELDOM_READ else 4)
    assert amd.names == set()


@pytest.mark.parametrize("name", ["memory error", "core error", "link errors"])
def test_what_was_counted_before_anybody_looked_is_no_news(amd: AmdNode, name: str) -> None:
    FAULTS[name][0](amd.played)
    amd.look(4)
    assert amd.names == set()


def test_a_condition_ends_with_its_cause(amd: AmdNode) -> None:
    amd.look()
    amd.played.set(GPU, {"violation_status.active_hbm_thrm": 1, "gpu_xgmi_link_status.status": "1,0,1,1,1,1,1,2"})
    amd.played.event(GPU, PRE_RESET)
    amd.look(3)
    assert amd.names == {"gpu_throttled/GPU 3", "xgmi_down/GPU 3/1", "gpu_reset/GPU 3"}
    amd.played.set(GPU, {"violation_status.active_hbm_thrm": 0, "gpu_xgmi_link_status.status": "1,1,1,1,1,1,1,2"})
    amd.played.event(GPU, POST_RESET)
    amd.look(10)
    assert amd.names == set()


#: amdgpu's lines of the same faults, and which condition they make: the kernel is heard where the library is not.
DEVICE = "amdgpu 0000:05:00.0: amdgpu: "
KERNEL_LINES = {
    "uncorrectable hardware errors detected in umc block": "gpu_memory_error",
    "GPU reset begin!. Source:  3": "gpu_reset",
    "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32779)": "gpu_page_fault",
    "MES failed to respond to msg=ADD_QUEUE": "gpu_scheduler_error",
    "ring gfx_0.0.0 timeout, signaled seq=22, emitted seq=24": "gpu_job_timeout",
    "GPU over temperature range(SW CTF) detected!": "gpu_hardware_error",
    "SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12": "gpu_management_error",
    "XGMI: link error detected": "gpu_fabric_error",
}


@pytest.mark.parametrize("line", KERNEL_LINES)
def test_lines_of_amdgpu_are_conditions(line: str) -> None:
    node = Node()
    node.log(DEVICE + line, at=1.0)
    assert {name.partition("/")[0] for name in node.open} == {KERNEL_LINES[line]}
