"""Checks over tools' tables, logs and trees of /sys."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from whichrank.diagnosis.health_checks import host_checks
from whichrank.diagnosis.health_checks.inventory import ethernet_links, infiniband_links, pci_links
from whichrank.diagnosis.health_checks.outcome import CheckOutcome, CheckStatus

OK, WARN, CRITICAL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.CRITICAL


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("gpuId 0:\n  U U U\ngpuId 1:\n  U U U\nNvSwitch 0:\n D D\n", OK),
        ("gpuId 0:\n  U U U\ngpuId 1:\n  U D U\n", CRITICAL),
        ("gpuId 0:\n  U X U\n", CRITICAL),
        ("gpuId 0:\n  U _ U\n", OK),
        ("Error: unable to connect", WARN),
        ("", WARN),
        (None, WARN),
    ],
)
def test_nvlinks(text: str | None, status: CheckStatus) -> None:
    assert host_checks.nvlink_is_up(text).status is status


def test_errors_of_nvlinks() -> None:
    def text(count: object) -> str:
        return json.dumps({"body": {"Link 3": {"children": {"Replay Error": {"value": count}}}}})

    assert host_checks.nvlink_has_no_errors(text("10")).status is OK
    assert host_checks.nvlink_has_no_errors(text("11")).reasons == ("Link 3: 11 of Replay Error",)
    assert host_checks.nvlink_has_no_errors(text("11"), {"Replay Error": 20}).status is OK
    assert host_checks.nvlink_has_no_errors(text("many")).status is WARN
    assert host_checks.nvlink_has_no_errors("{").status is WARN


def test_ibstat() -> None:
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
    assert host_checks.ports_are(text, "State", "Active").status is OK
    assert (
        host_checks.ports_are(text + text.replace("LinkUp", "Polling"), "Physical state", "LinkUp").status is CRITICAL
    )
    assert host_checks.ports_are("command not found", "State", "Active").status is WARN


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], OK),
        ([" 1 | 01/02/2026 | 10:00:00 | Memory #0x53 | Uncorrectable ECC | Asserted"], CRITICAL),
        ([" 1 | 01/02/2026 | 10:00:00 | Memory #0x53 | Correctable ECC | Asserted"], OK),
        ([" 1 | 01/02/2026 | 10:00:00 | Power Supply #0x1 | Failure detected | Asserted"], CRITICAL),
        (
            [
                " 1 | 01/02/2026 | 10:00:00 | Power Supply #0x1 | Failure detected | Asserted",
                " 2 | 01/02/2026 | 11:00:00 | Power Supply #0x1 | Failure detected | Deasserted",
            ],
            OK,
        ),
        (["garbage", " | | "], OK),
    ],
)
def test_event_log(lines: list[str], status: CheckStatus) -> None:
    assert host_checks.event_log("\n".join(lines)).status is status
    assert host_checks.event_log(None).status is WARN


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ("3,PSU01_Status,Power Supply,N/A,N/A,'Presence detected'", OK),
        ("3,PSU01_Status,Power Supply,N/A,N/A,'Presence detected' 'Power Supply input lost (AC/DC)'", CRITICAL),
        ("5,PSU_REDUNDANCY,Power Supply,N/A,N/A,'Fully Redundant'", OK),
        ("5,PSU_REDUNDANCY,Power Supply,N/A,N/A,'Redundancy Lost'", WARN),
        ("9,Fan 1,Fan,5000.00,RPM,'OK'", OK),
        ("nothing", WARN),
    ],
)
def test_sensors(row: str, status: CheckStatus) -> None:
    assert host_checks.sensors(row).status is status


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("idle", OK),
        ("MIXED+COMPLETING", OK),
        ("allocated*", OK),
        ("IDLE+DRAIN", CRITICAL),
        ("down*", CRITICAL),
        ("IDLE+MAINT", WARN),
        ("", WARN),
        (None, WARN),
        ("whatever", WARN),
    ],
)
def test_slurm(state: str | None, status: CheckStatus) -> None:
    assert host_checks.slurm_node(state).status is status


def test_mounts_and_files() -> None:
    assert host_checks.mounts(["/a", "/b"], ["/b", "/a", "/c"]).status is OK
    assert host_checks.mounts(["/a", "/b"], ["/b"]).reasons == ("/a is not mounted",)
    assert host_checks.mounts(None, ["/b"]).status is WARN
    assert host_checks.exists("/x", True).status is OK
    assert host_checks.exists("/x", False).status is CRITICAL
    assert host_checks.exists("/x", True, wanted=False).status is CRITICAL
    assert host_checks.exists("/x", None).status is WARN


@pytest.mark.parametrize(
    ("log", "status"),
    [
        ("", OK),
        ("Jan 1 00:00:01 n1 systemd-networkd[1]: ib3: Lost carrier", CRITICAL),
        ("Jan 1 00:00:01 n1 systemd-networkd[1]: ens1f0: Lost carrier", WARN),
        ("Jan 1 00:00:01 n1 systemd-networkd[1]: veth12: Lost carrier", OK),
        ("Jan 1 00:00:01 n1 systemd-networkd[1]: ib3: Gained carrier", OK),
        (None, WARN),
    ],
)
def test_carriers(log: str | None, status: CheckStatus) -> None:
    assert host_checks.lost_carriers(log).status is status


def test_disks() -> None:
    log = "[1.0] blk_update_request: I/O error, dev nvme1n1, sector 5\n[2.0] all is well\n"
    assert host_checks.io_errors(log).reasons == ("nvme1n1 had I/O errors",)
    assert host_checks.io_errors("all is well").status is OK


ADDRESS = "0000:3b:00.0"
INVENTORY = {
    "pci": {ADDRESS: {"dev": "mlx5_0", "slot": "1", "link_speed": ["32 GT/s", "32.0 GT/s PCIe"], "link_width": "16"}},
    "ib": {
        "link_rate": "400 Gb/sec (4X NDR)",
        "firmware_version": ["28.40.1000"],
        "interfaces": {"ib0": {"mlx": "mlx5_0"}},
    },
    "eth": {"lom": {"netdev": "eth0", "flags": ["UP", "LOWER_UP"], "speed": 25000, "mtu": 9000}},
}
PLACE = f"/sys/bus/pci/devices/{ADDRESS}"
GOOD = {
    f"{PLACE}/current_link_speed": "32.0 GT/s PCIe\n",
    f"{PLACE}/current_link_width": "16\n",
    f"{PLACE}/infiniband/mlx5_0/fw_ver": "28.40.1000\n",
    f"{PLACE}/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    f"{PLACE}/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    f"{PLACE}/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
    f"{PLACE}/net/ib0/operstate": "up\n",
}


def renamed(files: dict[str, str]) -> dict[str, str]:
    return {path.replace("mlx5_0", "mlx5_4"): content for path, content in files.items()}


def test_a_good_node() -> None:
    assert pci_links(INVENTORY, GOOD).status is OK
    assert infiniband_links(INVENTORY, GOOD).status is OK
    assert infiniband_links({}, {}).status is OK


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("infiniband/mlx5_0/fw_ver", "20.1.1", "firmware 20.1.1"),
        ("infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (2X NDR)", "runs at 200"),
        ("infiniband/mlx5_0/ports/1/state", "1: DOWN", "1: DOWN"),
        ("infiniband/mlx5_0/ports/1/phys_state", "3: Disabled", "3: Disabled"),
        ("net/ib0/operstate", "down", "ib0 is down"),
    ],
)
def test_what_is_wrong_with_an_interface(path: str, content: str, said: str) -> None:
    found = infiniband_links(INVENTORY, {**GOOD, f"{PLACE}/{path}": content})
    assert found.status is CRITICAL
    assert said in found.reasons[0]


def test_a_bound_to_another_adapter() -> None:
    assert "bound to mlx5_4, not to mlx5_0" in infiniband_links(INVENTORY, renamed(GOOD)).reasons[0]
    assert infiniband_links(INVENTORY, {}).reasons == ("ib0 is missing",)


@pytest.mark.parametrize(
    ("leaf", "content", "said"),
    [("current_link_speed", "16.0 GT/s PCIe", "16.0 GT/s"), ("current_link_width", "8", "8 lanes, not 16")],
)
def test_a_degraded_pci_link(leaf: str, content: str, said: str) -> None:
    found = pci_links(INVENTORY, {**GOOD, f"{PLACE}/{leaf}": content})
    assert found.status is CRITICAL
    assert said in found.reasons[0]
    assert "not on the bus" in pci_links(INVENTORY, {}).reasons[0]


def ethernet(**changes: object) -> CheckOutcome:
    seen = {
        "intf_status": [{"ifname": "eth0", "flags": ["UP", "LOWER_UP", "BROADCAST"], "mtu": 9000}],
        "link_speed": {"eth0": "25000"},
        "phys_macaddr": {"eth0": "AA:BB"},
        "intf_ifcfg": {"eth0": {"HWADDR": "aa:bb"}},
    }
    return ethernet_links(INVENTORY, {**seen, **changes})


def test_ethernet() -> None:
    assert ethernet().status is OK
    assert ethernet(link_speed={"eth0": "10000"}).status is WARN
    assert ethernet(link_speed={"eth0": "unknown"}).status is OK
    assert ethernet(phys_macaddr={"eth0": "cc:dd"}).status is CRITICAL
    assert ethernet(intf_status=[{"ifname": "eth0", "flags": ["UP"], "mtu": 9000}]).status is CRITICAL
    assert ethernet(intf_status=[{"ifname": "eth0", "flags": ["UP", "LOWER_UP"], "mtu": 1500}]).status is CRITICAL
    assert ethernet(intf_status=[]).reasons == ("eth0 is missing",)


def test_any_text_is_survived() -> None:
    draw = random.Random(13)
    checks: list[Callable[[str | None], CheckOutcome]] = [
        host_checks.nvlink_is_up,
        host_checks.nvlink_has_no_errors,
        host_checks.event_log,
        host_checks.sensors,
        host_checks.slurm_node,
        host_checks.lost_carriers,
        host_checks.io_errors,
    ]
    for _ in range(200):
        text = draw.randbytes(draw.choice((0, 5, 400))).decode("utf-8", "replace")
        text = draw.choice(("", "gpuId 0:\n", "1 | 2 | 3 | 4 | ", "a,b,c,d,e,f'", "ib0: ")) + text
        for check in checks:
            assert check(text).reasons
    long = "ib0: " * 200_000
    for check in checks:
        check(long)
    for path in GOOD:
        broken = {**GOOD, path: draw.randbytes(50).decode("utf-8", "replace")}
        infiniband_links(INVENTORY, broken)
        pci_links(INVENTORY, broken)
