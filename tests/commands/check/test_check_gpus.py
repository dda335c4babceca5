"""GPUs that the driver shows, loses, or says nothing of, in three generations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.check.checking import check, families, gpus_on_bus, tree
from tests.played_amd.played import GFX, PlayedAmd, site
from tests.played_gpu.played import NvmlStatus, PlayedGpus

GPU = families("gpu", "nvlink")


def test_a_node_with_eight_good_gpus_is_ok_in_every_generation(played: PlayedGpus) -> None:
    checked = check(*GPU, environment=played.environment())
    assert checked.bad() == set()
    assert checked.exit_status == 0
    (present,) = checked.findings("gpu.present")
    assert (present["value"], present["reason"]) == (8.0, "8 GPUs answer")
    assert [each["reason"][:26] for each in checked.findings("nvlink.down")] == ["all NVLinks of 8 GPUs are "]


def test_each_fault_of_a_gpu_is_told_of_that_gpu(h100: PlayedGpus) -> None:
    h100.set(0, **{"ecc.volatile.uncorrected": 2})
    h100.set(1, **{"remapped.pending": 1})
    h100.set(2, **{"remapped.failure": 1})
    h100.set(3, **{"temperature.gpu": 93})
    h100.set(4, **{"pcie.width": 8})
    h100.set(6, **{"power.limit.enforced": 500_000, "memory.used": 30 << 30})
    h100.set(7, vbios="96.00.30.00.01")
    h100.throttle(5, "hw_thermal_slowdown")
    h100.link_down(3, 2)
    checked = check(*GPU, environment=h100.environment())
    assert checked.bad() == {
        ("gpu.ecc_uncorrected", "GPU 0", "CRITICAL"),
        ("gpu.rows_pending", "GPU 1", "CRITICAL"),
        ("gpu.rows_failed", "GPU 2", "CRITICAL"),
        ("gpu.temperature", "GPU 3", "CRITICAL"),
        ("nvlink.down", "GPU 3", "CRITICAL"),
        ("gpu.pcie_width", "GPU 4", "WARN"),
        ("gpu.pcie_lanes", "GPU 4", "WARN"),
        ("gpu.throttled", "GPU 5", "WARN"),
        ("gpu.power_limit", "GPU 6", "WARN"),
        ("gpu.memory_in_use", "GPU 6", "WARN"),
        ("gpu.vbios", "GPU 7", "WARN"),
    }
    assert checked.exit_status == 1
    assert all(each["remedy"] for each in checked.document["findings"] if each["status"] != "OK")


def test_a_lost_gpu_is_critical_and_nothing_else_is_said_of_it(played: PlayedGpus) -> None:
    played.lose(5)
    checked = check(*GPU, environment=played.environment())
    assert checked.bad() == {("gpu.lost", "GPU 5", "CRITICAL")}
    assert "gpu_is_lost" in checked.findings("gpu.lost")[0]["reason"]


@pytest.mark.parametrize("mode", ["prolog", "epilog"])
def test_a_driver_that_hangs_is_critical_within_ten_seconds(h100: PlayedGpus, mode: str) -> None:
    h100.block()
    checked = check(*GPU, "--mode", mode, environment=h100.environment())
    assert checked.bad() == {("gpu.answer", "", "CRITICAL"), ("nvlink.answer", "", "CRITICAL")}
    assert "no answer within" in checked.findings("gpu.answer")[0]["reason"]
    assert checked.document["took_s"] <= 10.0
    assert checked.exit_status == 1


def test_one_gpu_that_hangs_does_not_hold_up_the_command(h100: PlayedGpus) -> None:
    h100.block(gpu=3)
    checked = check(*GPU, "--timeout", "4", environment=h100.environment())
    assert ("gpu.answer", "", "CRITICAL") in checked.bad()
    assert checked.document["took_s"] <= 4.0


def test_what_the_file_expects_beats_what_the_tables_say(h100: PlayedGpus, tmp_path: Path) -> None:
    expect = tmp_path / "node.toml"
    expect.write_text(
        '[gpu]\ncount = 9\nmodel = "H200"\nmemory_gib = 141\nnvlinks = 19\npcie_lanes = 32\ntemperature_c = 40\n'
    )
    checked = check(*GPU, "--expect", str(expect), environment=h100.environment())
    everywhere = {
        (name, f"GPU {gpu}", "CRITICAL")
        for name in ("gpu.model", "gpu.memory_size", "nvlink.down", "gpu.pcie_width", "gpu.temperature")
        for gpu in range(8)
    }
    assert checked.bad() == everywhere | {("gpu.present", "", "CRITICAL")}


def test_gpus_on_the_bus_that_no_driver_answers_for_are_missed(tmp_path: Path) -> None:
    gpus_on_bus(tree(tmp_path), 8)
    checked = check(*GPU, "--root", str(tmp_path))
    assert checked.exit_status == 1
    assert ("gpu.present", "", "CRITICAL") in checked.bad()
    assert "8 GPUs are expected and none answers" in checked.findings("gpu.present")[0]["reason"]


def test_a_gpu_that_left_the_driver_but_stands_on_the_bus_is_missed(h100: PlayedGpus, tmp_path: Path) -> None:
    h100.set_system(gpus=7)
    root = tree(tmp_path / "node")
    gpus_on_bus(root, 8, in_driver=7)
    checked = check(*GPU, "--root", str(root), environment=h100.environment())
    assert [each["reason"] for each in checked.findings("gpu.present")] == ["7 GPUs answer, expected 8"]
    assert checked.exit_status == 1


def test_without_a_gpu_the_family_says_so_unless_one_is_expected(tmp_path: Path) -> None:
    root = tree(tmp_path / "node")
    empty = tmp_path / "node.toml"
    empty.write_text("[gpu]\ncount = 4\n")
    nothing = tmp_path / "no-library"
    nothing.mkdir()
    checked = check(*GPU, "--root", str(root))
    assert {each["reason"] for each in checked.document["findings"]} == {"no GPU here"}
    assert checked.exit_status == 0
    assert check(*GPU, "--root", str(root), "--expect", str(empty)).exit_status == 1


def test_a_driver_that_does_not_match_its_library_is_said_with_the_drivers_words(
    h100: PlayedGpus, tmp_path: Path
) -> None:
    h100.set_system(init=NvmlStatus.LIB_RM_VERSION_MISMATCH)
    root = tree(tmp_path / "node")
    gpus_on_bus(root, 8)
    checked = check(*GPU, "--root", str(root), environment=h100.environment())
    (present,) = checked.findings("gpu.present")
    assert present["status"] == "CRITICAL"
    assert "version mismatch" in present["reason"].lower()


def test_amds_gpus_are_checked_as_nvidias_are(tmp_path: Path) -> None:
    package = site()
    if package is None:
        pytest.skip("a C compiler and the package amdsmi are needed for AMD's played GPUs, and there are none")
    root = tree(tmp_path / "root")
    played = PlayedAmd(package, tmp_path / "mi300x")
    played.set_all({"gpu_memory_usage/0": 1 << 20})
    shutil.copytree(played.sys, root / "sys", dirs_exist_ok=True)
    sound = check(*families("gpu"), "--root", str(root), environment=played.environment())
    assert sound.bad() == set()
    assert sound.findings("gpu.present")[0]["reason"] == "8 GPUs answer"
    played.set(0, {f"gpu_ecc_count/{GFX}.uncorrectable_count": 1})
    played.set(1, {"temp_metric/1/0": 106})
    played.set(2, {"violation_status.active_hbm_thrm": 1})
    played.set(3, {"gpu_xgmi_link_status.status": "1,1,0,1,1,1,1,2"})
    played.set(4, {"bad_pages": "2"})
    checked = check(*families("gpu"), "--root", str(root), environment=played.environment())
    assert checked.bad() == {
        ("gpu.block_errors", "GPU 0", "CRITICAL"),
        ("gpu.junction_temperature", "GPU 1", "CRITICAL"),
        ("gpu.throttled", "GPU 2", "WARN"),
        ("gpu.xgmi_down", "GPU 3", "CRITICAL"),
        ("gpu.pages_failed", "GPU 4", "CRITICAL"),
    }
