"""Reading /sys/class/infiniband and /sys/class/net: the words of drivers, what is missing, what is garbage."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from whichrank.diagnosis.counters.sample import (
    Layer,
    LinkState,
    bytes_of,
    parse_counter,
    parse_megabits,
    parse_physical,
    parse_rate,
    parse_state,
)
from whichrank.diagnosis.counters.sysfs import read_sample


def lay(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


PORT = "class/infiniband/mlx5_3/ports/1"
NODE: dict[str, str | bytes] = {
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)\n",
    f"{PORT}/link_layer": "InfiniBand\n",
    f"{PORT}/counters/link_downed": "2\n",
    f"{PORT}/counters/port_xmit_data": "18446744073709551615\n",
    f"{PORT}/counters/symbol_error": "N/A (no PMA)\n",
    f"{PORT}/hw_counters/local_ack_timeout_err": "12\n",
    f"{PORT}/hw_counters/lifespan": "10\n",
    "class/net/eth0/device/vendor": "0x15b3\n",
    "class/net/eth0/operstate": "up\n",
    "class/net/eth0/speed": "25000\n",
    "class/net/eth0/carrier_changes": "4\n",
    "class/net/eth0/statistics/rx_errors": "7\n",
    "class/net/eth0/type": "1\n",
    "class/net/ib0/device/vendor": "0x15b3\n",
    "class/net/ib0/type": "32\n",
    "class/net/lo/operstate": "unknown\n",
    "class/net/eth1/device/vendor": "0x8086\n",
    "class/net/eth1/operstate": "unknown\n",
    "class/net/eth1/carrier": "0\n",
    "class/net/eth1/speed": "-1\n",
}


def test_a_node(tmp_path: Path) -> None:
    sample = read_sample(lay(tmp_path, NODE), 5.0)
    ports = {port.name: port for port in sample.ports}
    assert sample.t_s == 5.0
    assert sorted(ports) == ["eth0", "eth1", "mlx5_3/1"], "lo has no device, ib0 is the port's own interface"
    rdma = ports["mlx5_3/1"]
    assert (rdma.state, rdma.physical, rdma.layer) == (LinkState.ACTIVE, "linkup", Layer.INFINIBAND)
    assert rdma.rate is not None
    assert (rdma.rate.gbps, rdma.rate.lanes, rdma.rate.generation) == (400, 4, "NDR")
    assert rdma.counters == {
        "link_downed": 2,
        "port_xmit_data": 2**64 - 1,
        "symbol_error": None,
        "local_ack_timeout_err": 12,
    }
    assert ports["eth0"].rate is not None
    assert ports["eth0"].rate.gbps == 25
    assert ports["eth0"].counters == {"carrier_changes": 4, "rx_errors": 7}
    assert (ports["eth1"].state, ports["eth1"].rate) == (LinkState.DOWN, None)


def test_any_level_of_the_tree_will_do(tmp_path: Path) -> None:
    lay(tmp_path / "sys", NODE)
    for root in (tmp_path, tmp_path / "sys", tmp_path / "sys" / "class", tmp_path / "sys" / "class" / "infiniband"):
        assert "mlx5_3/1" in [port.name for port in read_sample(root, 0.0).ports], root
    assert read_sample(tmp_path / "nowhere", 0.0).ports == ()


def test_what_is_missing_is_unknown_and_not_zero(tmp_path: Path) -> None:
    (port,) = read_sample(lay(tmp_path, {f"{PORT}/gid_attrs/x": "1"}), 0.0).ports
    assert (port.state, port.physical, port.rate, port.counters) == (LinkState.UNKNOWN, "", None, {})


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self/mem").exists(), reason="needs a file that fails")
def test_a_file_that_fails_when_read_is_unknown(tmp_path: Path) -> None:
    """A port without carrier answers EINVAL; reading /proc/self/mem at 0 fails the same way for everyone."""
    lay(tmp_path, NODE)
    state = tmp_path / PORT / "state"
    state.unlink()
    state.symlink_to("/proc/self/mem")
    (port,) = [each for each in read_sample(tmp_path, 0.0).ports if each.device == "mlx5_3"]
    assert port.state is LinkState.UNKNOWN


def test_this_machine_s_own_tree_can_be_read() -> None:
    if not Path("/sys/class/net").is_dir():
        pytest.skip("no /sys here")
    for port in read_sample(Path("/sys"), 0.0).ports:
        assert port.device


def test_any_bytes_are_survived(tmp_path: Path) -> None:
    draw = random.Random(11)
    garbage = [b"", b"\0" * 100, b"\xff" * 9000, b"9" * 5000, "٣".encode(), b"4: ", b"-1\n", b"1e9", b"0x10"]
    for turn in range(60):
        files: dict[str, str | bytes] = {
            name: draw.choice([*garbage, draw.randbytes(40)]) for name in NODE if draw.random() < 0.9
        }
        for port in read_sample(lay(tmp_path / str(turn), files), 0.0).ports:
            assert all(value is None or 0 <= value < 2**64 for value in port.counters.values())


@pytest.mark.parametrize(
    ("text", "gbps", "lanes"),
    [
        ("2.5 Gb/sec (1X SDR)\n", 2.5, 1),
        ("100 Gb/sec (4X EDR)", 100, 4),
        ("800 Gb/sec (4X XDR)", 800, 4),
        ("0 GB/sec", 0, 0),
        ("400", 400, 0),
        ("25Gbps", 25, 0),
        (400, 400, 0),
    ],
)
def test_rates(text: str | float, gbps: float, lanes: int) -> None:
    rate = parse_rate(text)
    assert rate is not None
    assert (rate.gbps, rate.lanes, rate.bytes_per_s) == (gbps, lanes, gbps * 125_000_000)


@pytest.mark.parametrize("text", ["", "Gb/sec", "-5 Gb/sec", "nan", float("inf"), None, "1" * 70, True])
def test_no_rates(text: str | float | None) -> None:
    assert parse_rate(text) is None


def test_words() -> None:
    assert parse_state("1: DOWN") is parse_state("Down") is parse_state("lowerlayerdown") is LinkState.DOWN
    assert parse_state("2: INIT") is parse_state("Initializing") is LinkState.INIT
    assert parse_state("3: ARMED") is LinkState.ARMED
    assert parse_state("up") is parse_state("Active\n") is LinkState.ACTIVE
    assert parse_state("who knows") is parse_state(None) is LinkState.UNKNOWN
    assert parse_physical("2: Polling\n") == "polling"
    assert parse_megabits("4294967295") is parse_megabits("-1") is None
    assert parse_counter("18446744073709551616") is None
    assert bytes_of("port_rcv_data", 10) == 40
    assert bytes_of("rx_bytes", 10) == 10
