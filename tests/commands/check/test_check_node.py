"""Ports, mounts, memory, processes, services, versions and the kernel log, in trees that are written here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.collectors import stalling_fuse
from tests.agents.collectors.port_tree import infiniband_port, network_interface
from tests.commands.check.checking import check, families, gpus_on_bus, tree


def expecting(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "expect.toml"
    path.write_text(text)
    return "--expect", str(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tree(tmp_path / "node")


def eight_ports(root: Path) -> list[Path]:
    return [
        infiniband_port(root / "sys", f"mlx5_{index}", address=f"0000:{0x20 + index:02x}:00.0") for index in range(8)
    ]


# --- network ------------------------------------------------------------------------------------------------------


def test_the_ports_that_belong_to_the_gpus_are_up(root: Path) -> None:
    gpus_on_bus(root, 8)
    eight_ports(root)
    checked = check(*families("network"), "--mode", "prolog", "--root", str(root))
    assert checked.bad() == set()
    assert "8 ports are up with at least 400 Gb/s" in checked.findings("network.rdma_ports")[0]["reason"]


def test_a_port_that_is_down_is_critical_where_it_is_expected_and_a_warning_where_it_is_guessed(
    root: Path, tmp_path: Path
) -> None:
    gpus_on_bus(root, 8)
    ports = eight_ports(root)
    (ports[3] / "state").write_text("1: DOWN\n")
    (ports[3] / "phys_state").write_text("3: Disabled\n")
    prolog = (*families("network"), "--mode", "prolog", "--root", str(root))
    guessed = check(*prolog)
    assert guessed.bad() == {("network.rdma_ports", "", "WARN")}
    assert "mlx5_3/1 disabled" in guessed.findings("network.rdma_ports")[0]["reason"]
    expected = check(*prolog, *expecting(tmp_path, "[network]\nports = 8\ngbps = 400\n"))
    assert expected.bad() == {("network.rdma_ports", "", "CRITICAL")}
    fewer = check(*prolog, *expecting(tmp_path, "[network]\nports = 7\ngbps = 400\n"))
    assert fewer.bad() == set()


def test_a_port_that_has_lost_half_its_rate_stands_out_among_the_others(root: Path) -> None:
    ports = eight_ports(root)
    (ports[6] / "rate").write_text("200 Gb/sec (2X NDR)\n")
    checked = check(*families("network"), "--mode", "prolog", "--root", str(root))
    assert checked.bad() == {("network.rdma_rate", "mlx5_6/1", "WARN")}


def test_an_error_counter_that_grows_while_we_look_is_told(root: Path, tmp_path: Path) -> None:
    port = eight_ports(root)[1]
    ending = threading.Event()

    def grow() -> None:
        value = 0
        while not ending.wait(0.05):
            value += 1000
            spare = port / "counters/spare"
            spare.write_text(f"{value}\n")
            os.replace(spare, port / "counters/symbol_error")

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        watch = expecting(tmp_path, "[network]\nwatch_s = 1.5\n")
        checked = check(*families("network"), "--root", str(root), *watch)
    finally:
        ending.set()
        writer.join()
    assert {(name, device) for name, device, _ in checked.bad()} == {("network.counters", "mlx5_1/1")}
    assert "symbol" in checked.findings("network.counters")[0]["reason"]


def test_an_interface_that_is_named_must_be_up_and_fast(root: Path, tmp_path: Path) -> None:
    network_interface(root / "sys", "eth0")
    network_interface(root / "sys", "eth1", address="0000:3c:00.0", operstate="down", carrier=0)
    named = expecting(tmp_path, '[network]\ninterfaces = ["eth0", "eth1", "eth2"]\ninterface_gbps = 400\n')
    checked = check(*families("network"), "--mode", "prolog", "--root", str(root), *named)
    assert {each["device"]: each["reason"] for each in checked.findings("network.interface")} == {
        "eth0": "the interface runs at 200 Gb/s, expected 400",
        "eth1": "the interface is down",
        "eth2": "the interface is not there",
    }


# --- storage ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    path = tmp_path / "fuse"
    path.mkdir()
    server = subprocess.Popen(
        [sys.executable, stalling_fuse.__file__, str(path), "nas1:/scratch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        server.wait()
        pytest.skip("no FUSE file system can be mounted here: /dev/fuse and CAP_SYS_ADMIN are needed")
    yield path, server
    server.kill()
    server.wait()
    server.stdout.close()
    stalling_fuse.unmount(str(path))


def test_a_mount_that_answers_takes_a_file_and_one_that_stalls_is_critical(
    stalling: tuple[Path, subprocess.Popen[str]],
) -> None:
    path, server = stalling
    arguments = (*families("storage"), "--mode", "prolog", "--write", str(path))
    well = check(*arguments)
    assert [each["device"] for each in well.findings("storage.write", "OK")] == [str(path)]
    assert (str(path), "CRITICAL") not in {(device, status) for _, device, status in well.bad()}
    server.send_signal(signal.SIGSTOP)
    try:
        checked = check(*arguments)
    finally:
        server.send_signal(signal.SIGCONT)
    (silent,) = checked.findings("storage.answer", "CRITICAL")
    assert silent["device"] == str(path)
    assert "no answer to stat within 3.0 s" in silent["reason"]
    assert "nas1" in silent["reason"]
    assert checked.exit_status == 1
    assert checked.document["took_s"] <= 10.0


def test_a_folder_that_is_not_mounted_and_one_on_no_storage_are_told(root: Path, tmp_path: Path) -> None:
    table = "25 1 0:22 / /scratch rw - nfs4 nas1:/scratch rw\n26 1 0:23 / /a\\040b rw - tmpfs none rw\n"
    (root / "proc/self/mountinfo").write_text(table.replace("/scratch rw -", f"{tmp_path} rw -"))
    wanted = expecting(tmp_path, f'[storage]\nmounts = ["{tmp_path}", "/a b", "/data/"]\nwrite = ["/nowhere/x"]\n')
    checked = check(*families("storage"), "--root", str(root), *wanted)
    assert ("storage.mounts", "/data/", "CRITICAL") in checked.bad()
    assert ("storage.write", "/nowhere/x", "UNKNOWN") in checked.bad()
    assert len(checked.findings("storage.mounts")) == 1


# --- memory and host ----------------------------------------------------------------------------------------------


def test_memory_that_an_earlier_job_holds_is_told(root: Path, tmp_path: Path) -> None:
    (root / "proc/meminfo").write_text("MemTotal: 2000000000 kB\nMemFree: 1000 kB\nMemAvailable: 20000000 kB\n")
    expected = expecting(tmp_path, "[memory]\ntotal_gib = 2048\n")
    checked = check(*families("memory"), "--root", str(root), *expected)
    assert ("memory.available", "", "CRITICAL") in checked.bad()
    assert ("memory.size", "", "CRITICAL") in checked.bad()


def test_a_killed_process_that_cannot_end_is_critical_and_one_that_only_reads_is_not(root: Path) -> None:
    for pid, pending in (("101", "0000000000000000"), ("102", "0000000000000100")):
        (root / "proc" / pid).mkdir()
        (root / "proc" / pid / "stat").write_text(f"{pid} (py thon) D 1 1 1\n")
        (root / "proc" / pid / "status").write_text(f"Name:\tpython\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n")
        (root / "proc" / pid / "wchan").write_text("nfs_wait_bit_killable\n")
    checked = check(*families("host"), "--mode", "prolog", "--root", str(root))
    (stuck,) = checked.findings("host.stuck_processes")
    assert stuck["status"] == "CRITICAL"
    assert stuck["reason"].endswith("py thon (102) in nfs_wait_bit_killable")


# --- services and versions ----------------------------------------------------------------------------------------


def test_a_node_with_nvswitches_needs_its_fabric_manager(root: Path) -> None:
    gpus_on_bus(root, 8)
    switch = root / "sys/bus/pci/devices/0000:90:00.0"
    switch.mkdir()
    (switch / "vendor").write_text("0x10de\n")
    (switch / "class").write_text("0x068000\n")
    checked = check(*families("services"), "--root", str(root))
    assert checked.bad() == {("services.service", "nvidia-fabricmanager", "CRITICAL")}
    (root / "proc/77").mkdir()
    (root / "proc/77/comm").write_text("nv-fabricmanage\n")
    assert check(*families("services"), "--root", str(root)).bad() == set()


def test_services_and_modules_by_name(root: Path, tmp_path: Path) -> None:
    (root / "proc/78").mkdir()
    (root / "proc/78/comm").write_text("slurmd\n")
    (root / "sys/module/nvidia_peermem").mkdir()
    text = '[services]\nunits = ["slurmd.service", "munged"]\nmodules = ["nvidia-peermem", "gdrdrv"]\n'
    checked = check(*families("services"), "--root", str(root), *expecting(tmp_path, text))
    assert checked.bad() == {("services.service", "munged", "CRITICAL"), ("services.module", "gdrdrv", "CRITICAL")}


def test_versions_are_held_against_patterns_and_firmware_against_its_twins(root: Path, tmp_path: Path) -> None:
    eight_ports(root)
    (root / "sys/class/infiniband/mlx5_4/fw_ver").write_text("28.39.1002\n")
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.08  Tue Oct 8 10:00:00 UTC 2024\n"
    )
    text = '[versions]\nnvidia_driver = "570.*"\nlustre = "2.15.*"\n'
    checked = check(*families("versions"), "--root", str(root), *expecting(tmp_path, text))
    assert checked.bad() == {
        ("versions.version", "nvidia_driver", "CRITICAL"),
        ("versions.version", "lustre", "CRITICAL"),
        ("versions.firmware", "mlx5_4", "WARN"),
    }


# --- kernel log ---------------------------------------------------------------------------------------------------


def log_line(hours_ago: float, text: str) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - hours_ago * 3600))
    return f"{stamp} node01 kernel: {text}\n"


def test_faults_of_this_boot_count_by_age_and_by_whose_fault_they_are(root: Path, tmp_path: Path) -> None:
    (root / "proc/uptime").write_text("360000.00 100.00\n")  # 100 h
    log = tmp_path / "kern.log"
    log.write_text(
        log_line(200, "NVRM: Xid (PCI:0000:9d:00): 79, pid=1, GPU has fallen off the bus.")
        + log_line(50, "NVRM: Xid (PCI:0000:c3:00): 79, pid=2, GPU has fallen off the bus.")
        + log_line(2, "NVRM: Xid (PCI:0000:1b:00): 79, pid=3, GPU has fallen off the bus.")
        + log_line(1, "NVRM: Xid (PCI:0000:43:00): 31, pid=4, name=python, MMU Fault: ENGINE GRAPHICS")
        + "\0\xff half a line"
    )
    checked = check(*families("kernel_log"), "--root", str(root), "--kernel-log", str(log))
    faults = {each["device"]: each["status"] for each in checked.findings("kernel_log.faults")}
    assert {device.split(":")[-2]: status for device, status in faults.items()} == {"c3": "WARN", "1b": "CRITICAL"}
    assert checked.exit_status == 1


def test_a_log_without_faults_is_ok_and_one_that_cannot_be_read_is_unknown(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(log_line(1, "mlx5_core 0000:18:00.0: firmware version: 28.43.2566"))
    assert check(*families("kernel_log"), "--root", str(root), "--kernel-log", str(log)).bad() == set()
    missing = check(*families("kernel_log"), "--root", str(root), "--kernel-log", str(tmp_path / "no"))
    assert missing.bad() == {("kernel_log.readable", "", "UNKNOWN")}
    assert missing.exit_status == 3
