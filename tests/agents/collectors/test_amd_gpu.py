"""AMD's GPUs by AMD's own package over a played library: values, links, events, GPUs and drivers that are lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.collectors.conftest import StartAmd
from tests.played_amd.played import (
    GFX,
    NO_PERMISSION,
    POST_RESET,
    PRE_RESET,
    QUEUE_EVICTION,
    THERMAL_THROTTLE,
    UMC,
    UNEXPECTED_DATA,
    VMFAULT,
    XGMI_WAFL,
    PlayedAmd,
)
from tests.played_gpu.collecting import Blocked, happenings_of, values_of
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.vocabulary import EventName

#: Key of the script, metric, labels, and what one in the script is in the metric's unit.
VALUES: tuple[tuple[str, str, dict[str, str], float], ...] = (
    ("gpu_activity.gfx_activity", "hw.gpu.utilization", {"hw.gpu.task": "general"}, 0.01),
    ("gpu_activity.umc_activity", "whichrank.gpu.memory.busy", {}, 0.01),
    ("gpu_memory_total/0", "hw.gpu.memory.limit", {}, 1),
    ("gpu_memory_usage/0", "hw.gpu.memory.usage", {}, 1),
    ("clock_info/0.clk", "whichrank.gpu.speed", {"whichrank.gpu.clock": "sm"}, 1e6),
    ("clock_info/4.clk", "whichrank.gpu.speed", {"whichrank.gpu.clock": "memory"}, 1e6),
    ("clock_info/0.max_clk", "whichrank.gpu.speed.limit", {"whichrank.gpu.clock": "sm", "hw.limit_type": "max"}, 1e6),
    ("power_info.current_socket_power", "hw.power", {}, 1),
    ("power_cap_info/0.power_cap", "whichrank.gpu.power.limit", {"hw.limit_type": "enforced"}, 1e-6),
    ("power_cap_info/0.default_power_cap", "whichrank.gpu.power.limit", {"hw.limit_type": "default"}, 1e-6),
    ("power_cap_info/0.max_power_cap", "whichrank.gpu.power.limit", {"hw.limit_type": "max"}, 1e-6),
    ("energy_count.energy_accumulator", "hw.energy", {}, 15.259e-6),
    ("temp_metric/0/0", "hw.temperature", {"hw.sensor_location": "edge"}, 1),
    ("temp_metric/1/0", "hw.temperature", {"hw.sensor_location": "junction"}, 1),
    ("temp_metric/2/0", "hw.temperature", {"hw.sensor_location": "memory"}, 1),
    (
        "temp_metric/1/5",
        "hw.temperature.limit",
        {"hw.sensor_location": "junction", "hw.limit_type": "throttled"},
        1,
    ),
    ("temp_metric/2/7", "hw.temperature.limit", {"hw.sensor_location": "memory", "hw.limit_type": "critical"}, 1),
    (
        "violation_status.acc_ppt_pwr",
        "whichrank.gpu.throttled.samples",
        {"whichrank.gpu.reason": "sw_power_cap"},
        1,
    ),
    ("violation_status.acc_counter", "whichrank.gpu.samples", {}, 1),
    ("pcie_info.pcie_metric.pcie_width", "whichrank.gpu.pcie.lanes", {}, 1),
    ("pcie_info.pcie_static.max_pcie_width", "whichrank.gpu.pcie.lanes.limit", {}, 1),
    ("pcie_info.pcie_metric.pcie_replay_count", "hw.errors", {"error.type": "pcie_replay"}, 1),
    ("pcie_info.pcie_metric.pcie_l0_to_recovery_count", "hw.errors", {"error.type": "pcie_recovery"}, 1),
    *(
        row
        for error, field in (("corrected", "correctable"), ("uncorrected", "uncorrectable"), ("deferred", "deferred"))
        for row in (
            (f"gpu_total_ecc_count.{field}_count", "hw.errors", {"error.type": error}, 1.0),
            (
                f"gpu_ecc_count/{UMC}.{field}_count",
                "whichrank.gpu.ecc.errors",
                {"error.type": error, "whichrank.gpu.memory": "dram", "whichrank.gpu.since": "driver_load"},
                1.0,
            ),
            (
                f"gpu_ecc_count/{GFX}.{field}_count",
                "whichrank.gpu.ras.errors",
                {"error.type": error, "whichrank.gpu.block": "gfx"},
                1.0,
            ),
            (
                f"gpu_ecc_count/{XGMI_WAFL}.{field}_count",
                "whichrank.gpu.ras.errors",
                {"error.type": error, "whichrank.gpu.block": "xgmi_wafl"},
                1.0,
            ),
        )
    ),
)
REASONS = {
    "active_ppt_pwr": "sw_power_cap",
    "active_socket_thrm": "hw_thermal_slowdown",
    "active_hbm_thrm": "memory_thermal_slowdown",
    "active_vr_thrm": "regulator_thermal_slowdown",
    "active_prochot_thrm": "hw_slowdown",
}


def words(labels: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "__"): text for name, text in labels.items()}


def test_values_are_those_of_the_script(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    """Each GPU has numbers of its own for every key."""
    draw = random.Random(11)
    wanted: dict[str, dict[str, int]] = {}
    for gpu, identifier in enumerate(mi300x.uuids):
        numbers = {key: draw.randrange(1, 100) for key, *_ in VALUES}
        numbers |= {"gpu_memory_total/0": 192 << 30, "gpu_memory_usage/0": draw.randrange(192 << 30)}
        mi300x.set(gpu, numbers)
        for key, number in numbers.items():
            wanted.setdefault(key, {})[identifier] = number
    collected = start_amd(mi300x).collect()
    for key, metric, labels, scale in VALUES:
        expected = {identifier: number * scale for identifier, number in wanted[key].items()}
        assert values_of(collected, metric, **words(labels)) == pytest.approx(expected, rel=1e-6), key
    known = node_metrics()
    for point in collected.points:
        assert set(point.attributes) <= set(known[point.name].attributes), point


def test_what_is_not_there_is_absent_and_told_once(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    """A field that says "not here", a call that says so, a call that is refused, and one that fails this time."""
    mi300x.set_all({"gpu_activity.umc_activity": None, "clock_info/4": f"error:{NO_PERMISSION}"})
    mi300x.set(3, {"gpu_activity": f"error:{UNEXPECTED_DATA}"})
    collector = start_amd(mi300x)
    collected = collector.collect()
    assert not values_of(collected, "whichrank.gpu.memory.busy")
    assert not values_of(collected, "hw.temperature", hw__sensor_location="edge")
    assert not values_of(collected, "whichrank.gpu.speed", whichrank__gpu__clock="memory")
    others = {identifier for identifier in mi300x.uuids if identifier != mi300x.uuids[3]}
    assert set(values_of(collected, "hw.gpu.utilization")) == others
    lacking, failed = sorted(collected.problems, key=lambda line: "does not tell" not in line)
    assert "edge temperature" in lacking
    assert "memory clock (AMDSMI_STATUS_NO_PERM" in lacking
    assert "no activity" in failed
    assert "UNEXPECTED_DATA" in failed
    mi300x.set(3, {"gpu_activity": 0})
    collected = collector.collect(later_s=10)
    assert collected.problems == []
    assert len(values_of(collected, "hw.gpu.utilization")) == 8


@pytest.mark.parametrize("field", REASONS)
def test_violations_are_reasons_in_nvidias_words(mi300x: PlayedAmd, start_amd: StartAmd, field: str) -> None:
    mi300x.set(4, {f"violation_status.{field}": 1})
    points = start_amd(mi300x).collect().points
    told = {
        (point.attributes["hw.id"], point.attributes["whichrank.gpu.reason"])
        for point in points
        if point.name == "whichrank.gpu.throttled" and point.value
    }
    assert told == {(mi300x.uuids[4], REASONS[field])}


def test_bad_pages_by_what_became_of_them(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    mi300x.set(2, {"bad_pages": "00120"})
    collected = start_amd(mi300x).collect()
    pages = values_of(collected, "whichrank.gpu.retired_pages")
    assert (pages[mi300x.uuids[2]], sum(pages.values())) == (4.0, 4.0)
    assert values_of(collected, "whichrank.gpu.retired_pages.share")[mi300x.uuids[2]] == 4 / 256
    for metric in ("whichrank.gpu.retired_pages.pending", "whichrank.gpu.retired_pages.failure"):
        told = values_of(collected, metric)
        assert (told[mi300x.uuids[2]], sum(told.values())) == (1.0, 1.0)


def test_a_link_that_goes_down_and_up_again(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    collector = start_amd(mi300x)
    assert not collector.collect().happenings
    mi300x.set(5, {"gpu_xgmi_link_status.status": "1,1,1,0,1,1,1,2"})
    collected = collector.collect(later_s=10)
    (down,) = collected.happenings
    assert down.name is EventName.DEVICE_EVENT
    found = {key: down.attributes[key] for key in ("event", "source", "gpu_uuid", "pci_bus", "link")}
    assert found == {
        "event": "xgmi_down",
        "source": "amdsmi",
        "gpu_uuid": mi300x.uuids[5],
        "pci_bus": mi300x.pci_bus(5),
        "link": 3,
    }
    assert values_of(collected, "whichrank.gpu.xgmi.up") == {mi300x.uuids[5]: 0.0}
    assert values_of(collected, "whichrank.gpu.xgmi.links", whichrank__gpu__xgmi__state="down")[mi300x.uuids[5]] == 1
    assert values_of(collected, "whichrank.gpu.xgmi.links", whichrank__gpu__xgmi__state="up")[mi300x.uuids[5]] == 6
    assert not collector.collect(later_s=20).happenings
    mi300x.set(5, {"gpu_xgmi_link_status.status": "1,1,1,1,1,1,1,2"})
    assert len(happenings_of(collector.collect(later_s=30), "xgmi_up")) == 1


def test_events_as_they_come_and_those_of_many_are_left_out(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    mi300x.event(1, VMFAULT)  # before anybody listened
    collector = start_amd(mi300x)
    collector.collect()
    collector.start_wait(5.0)
    time.sleep(0.2)
    began = time.monotonic()
    mi300x.event(6, PRE_RESET)
    mi300x.event(6, QUEUE_EVICTION)
    told = list(collector.collected().happenings)
    assert time.monotonic() - began < 2.0, "as it comes"
    told += collector.wait(0.05).happenings
    mi300x.event(6, POST_RESET)
    mi300x.event(2, VMFAULT, "1267:s3cret-name")
    mi300x.event(3, THERMAL_THROTTLE)
    for _ in range(3):
        told += collector.wait(0.05).happenings
    assert [(item.attributes["event"], item.attributes["gpu_index"]) for item in told] == [
        ("gpu_reset", 6),
        ("gpu_reset_done", 6),
        ("gpu_page_fault", 2),
        ("gpu_thermal_throttle", 3),
    ]
    assert "s3cret" not in str(told)


def test_a_gpu_without_events_costs_its_events_only(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    mi300x.set(1, {"events": f"error:{NO_PERMISSION}"})
    collector = start_amd(mi300x)
    collected = collector.collect()
    (problem,) = [line for line in collected.problems if "events of" in line]
    assert "GPU 1 (AMDSMI_STATUS_NO_PERM" in problem
    mi300x.event(0, VMFAULT)
    assert len(collector.wait(1.0).happenings) == 1


def test_a_lost_gpu_stays_expected_and_comes_back(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    collector = start_amd(mi300x)
    collector.collect()
    mi300x.lose(5)
    collected = collector.collect(later_s=10)
    (lost,) = happenings_of(collected, "gpu_lost")
    assert (lost.attributes["gpu_uuid"], lost.attributes["why"]) == (mi300x.uuids[5], "off_the_bus")
    others = {identifier for identifier in mi300x.uuids if identifier != mi300x.uuids[5]}
    for later_s in (20, 90, 160):
        assert set(values_of(collected, "hw.power")) == others
        assert values_of(collected, "hw.status", hw__state="failed")[mi300x.uuids[5]] == 1.0
        collected = collector.collect(later_s=later_s)
        assert not collected.happenings
    mi300x.bring_back(5)
    collected = collector.collect(later_s=1000)
    assert [item.attributes["gpu_uuid"] for item in happenings_of(collected, "gpu_back")] == [mi300x.uuids[5]]
    assert set(values_of(collected, "hw.power")) == set(mi300x.uuids)


def test_a_driver_that_goes_and_comes_back(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    collector = start_amd(mi300x)
    collector.collect()
    mi300x.driver_gone()
    collected = collector.collect(later_s=10)
    assert collected.blind
    assert not happenings_of(collected, "gpu_lost")
    assert collector.collect(later_s=80).blind
    mi300x.driver_back()
    collected = collector.collect(later_s=200)
    assert not collected.blind
    assert len(values_of(collected, "hw.power")) == 8


def test_a_call_that_does_not_return_holds_only_the_collectors_process(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    collector = start_amd(mi300x)
    collector.collect()
    mi300x.block()
    with pytest.raises(Blocked):
        collector.collect(timeout_s=1.0)
    mi300x.unblock()
    assert len(values_of(collector.collected(), "hw.power")) == 8


@pytest.mark.parametrize("what", ["no package", "no library", "of another user", "no driver"])
def test_without_amds_package_one_line_says_why(mi300x: PlayedAmd, start_amd: StartAmd, what: str) -> None:
    rocm = mi300x.folder / "rocm"
    wanted = {
        "no package": "neither installed nor in",
        "no library": "Unable to find libamd_smi.so",
        "of another user": "can be written by others than root",
        "no driver": "DRIVER_NOT_LOADED",
    }[what]
    if what == "no package":
        (rocm / "share/amd_smi/amdsmi").unlink()
    elif what == "no library":
        (rocm / "lib/libamd_smi.so").unlink()
    elif what == "of another user":
        (rocm / "share/amd_smi").chmod(0o777)
    else:
        mi300x.driver_gone()
    collector = start_amd(mi300x)
    collected = collector.collect()
    assert collected.blind, "there are GPUs on the bus"
    (line,) = collected.problems
    assert wanted in line
    assert collector.collect(later_s=70).problems == []


RANK = "import time; time.sleep(60)"


@pytest.fixture
def ranks(mi300x: PlayedAmd) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("variables", "gpu", "method", "certainty"),
    [
        ({}, 2, "local_rank", "doubtful"),
        ({"HIP_VISIBLE_DEVICES": "7,6,5,4"}, 5, "hip_visible_devices", "likely"),
        ({"CUDA_VISIBLE_DEVICES": "7,6,5,4"}, 5, "cuda_visible_devices", "likely"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "3"}, 3, "hip_visible_devices", "likely"),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "3,2,1"}, 5, "hip_visible_devices", "likely"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a1b2c3d400000006"}, 6, "rocr_visible_devices", "likely"),
        ({"ROCR_VISIBLE_DEVICES": ""}, None, "", ""),
        ({"HIP_VISIBLE_DEVICES": "1"}, 1, "hip_visible_devices", "likely"),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, None, "", ""),
    ],
)
def test_a_ranks_gpu_by_what_it_was_started_with(
    mi300x: PlayedAmd,
    start_amd: StartAmd,
    ranks: list[subprocess.Popen[bytes]],
    variables: dict[str, str],
    gpu: int | None,
    method: str,
    certainty: str,
) -> None:
    mi300x.set_all({"processes": None})  # the driver does not say
    ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env={"RANK": "2", "LOCAL_RANK": "2", **variables}))
    time.sleep(0.3)
    collected = start_amd(mi300x, Path("/proc")).collect()
    told = [item for item in collected.happenings if item.attributes.get("pid") == ranks[0].pid]
    if gpu is None:
        assert not told
        return
    ((found),) = (item.attributes for item in told)
    assert (found["gpu_uuid"], found["gpu_index"]) == (mi300x.uuids[gpu], gpu)
    assert (found["method"], found["certainty"]) == (method, certainty)


def test_the_driver_knows_better_and_hip_may_count_otherwise(
    mi300x: PlayedAmd, start_amd: StartAmd, ranks: list[subprocess.Popen[bytes]]
) -> None:
    for gpu in range(8):
        mi300x.set(gpu, {"gpu_enumeration_info.hip_id": 7 - gpu})
    for rank in range(2):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "HIP_VISIBLE_DEVICES": "0,1"}
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=environment))
    time.sleep(0.3)
    mi300x.attach(ranks[0].pid, 7, 5 << 30)
    mi300x.attach(os.getpid(), 7, 1 << 20)
    collector = start_amd(mi300x, Path("/proc"))
    collected = collector.collect()
    assert values_of(collected, "whichrank.gpu.processes")[mi300x.uuids[7]] == 2
    told = [*collected.happenings, *collector.collect(later_s=10).happenings]
    found = {
        item.pid: (item.attributes["gpu_index"], item.attributes["method"], item.attributes.get("expected"))
        for item in told
        if item.name is EventName.RANK_DEVICE and item.pid in {process.pid for process in ranks}
    }
    assert found == {
        ranks[0].pid: (7, "amdsmi_processes", True),
        ranks[1].pid: (6, "hip_visible_devices", None),
    }


def test_collections_cost_less_than_half_a_percent_of_a_core(mi300x: PlayedAmd, start_amd: StartAmd) -> None:
    collector = start_amd(mi300x)
    collector.collect()
    before = collector.cost()
    for turn in range(6):
        collector.collect(later_s=turn * 10.0 + 5)
    cost = collector.cost()
    print(f"{(cost.cpu_s - before.cpu_s) / 6 * 1e3:.1f} ms of CPU per collection, {cost.resident_bytes / 1e6:.1f} MB")
    assert (cost.cpu_s - before.cpu_s) / 6 < 0.05
