"""Ports of trees that the tests write, and of this machine: state, speed, counters, resets, wraps, garbage."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.agents.collectors.port_tree import infiniband_port, network_interface, write
from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.base.counter_series import CounterSeries, CounterValue, wrapped_at
from whichrank.agents.collectors.network.ethtool import interface_statistics
from whichrank.agents.collectors.network.network_collector import MAX_POINTS, NetworkCollector
from whichrank.agents.collectors.network.sysfs_ports import MAX_PORTS, parse_rate, parse_state
from whichrank.diagnosis.network_counters import network_counters
from whichrank.telemetry.node_metrics import NodeMetricInstrument, node_metrics
from whichrank.telemetry.records import Point

SECOND_NS = 1_000_000_000


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=int((1_700_000_000 + seconds) * SECOND_NS), mono_ns=int(seconds * SECOND_NS))


def values(collected: Collected, metric: str, device: str, kind: str = "") -> list[Point]:
    """Points of one series, oldest first."""
    return [
        point
        for point in collected.points
        if point.name == metric
        and point.attributes["hw.id"] == device
        and (not kind or kind in point.attributes.values())
    ]


def value(collected: Collected, metric: str, device: str, kind: str = "") -> float:
    (point,) = values(collected, metric, device, kind)
    return point.value


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
def collector(sys: Path) -> NetworkCollector:
    return NetworkCollector(sys=sys, statistics=None)


@pytest.mark.parametrize(
    ("text", "gigabits", "lanes", "speed"),
    [
        ("400 Gb/sec (4X NDR)", 400, 4, "NDR"),
        ("2.5 Gb/sec (1X SDR)", 2.5, 1, "SDR"),
        ("25 Gb/sec (1X EDR)\n", 25, 1, "EDR"),
        ("0 GB/sec", 0, None, ""),
        ("800 Gb/sec (4X XDR)", 800, 4, "XDR"),
        ("1.6 Tb/sec", 1600, None, ""),
    ],
)
def test_rates_are_read(text: str, gigabits: float, lanes: int | None, speed: str) -> None:
    rate = parse_rate(text)
    assert rate is not None
    assert (rate.bytes_per_s, rate.lanes, rate.speed) == (gigabits * 1e9 / 8, lanes, speed)


def test_what_is_no_rate_or_state_is_unknown() -> None:
    assert parse_rate("fast") is None
    assert parse_rate("") is None
    assert parse_state("ACTIVE") is None
    assert parse_state("4: ACTIVE") == 4


def test_an_infiniband_port(sys: Path, collector: NetworkCollector) -> None:
    port = infiniband_port(sys, interface="ib0")
    write(port / "counters", {"port_rcv_data": 1000, "port_xmit_data": 11, "symbol_error": 3})
    write(port / "hw_counters", {"np_cnp_sent": 7})
    seen = collector.collect(at(0))
    assert seen.problems == []
    assert value(seen, "hw.network.up", "mlx5_0/1") == 1
    assert value(seen, "hw.network.bandwidth.limit", "mlx5_0/1") == 50e9
    assert value(seen, "whichrank.network.port.lanes", "mlx5_0/1") == 4
    assert value(seen, "whichrank.network.port.phys_state", "mlx5_0/1") == 5
    assert value(seen, "hw.network.io", "mlx5_0/1", "receive") == 4000  # words of four bytes
    assert value(seen, "hw.network.io", "mlx5_0/1", "transmit") == 44
    assert value(seen, "hw.errors", "mlx5_0/1", "symbol_error") == 3
    assert value(seen, "whichrank.network.congestion", "mlx5_0/1", "np_cnp_sent") == 7
    (info,) = values(seen, "whichrank.network.port.info", "mlx5_0/1")
    assert info.attributes == {
        "hw.id": "mlx5_0/1",
        "hw.name": "mlx5_core",
        "hw.model": "MT_0000000838",
        "hw.firmware_version": "28.43.2566",
        "hw.parent": "0000:18:00.0",
        "whichrank.network.link_layer": "InfiniBand",
        "whichrank.network.speed": "NDR",
        "whichrank.network.interface": "ib0",
    }


def test_a_port_that_is_down_and_slower_than_it_was(sys: Path, collector: NetworkCollector) -> None:
    infiniband_port(sys)
    collector.collect(at(0))
    infiniband_port(sys, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)")
    seen = collector.collect(at(5))
    assert value(seen, "hw.network.up", "mlx5_0/1") == 0
    assert value(seen, "whichrank.network.port.state", "mlx5_0/1") == 1
    assert value(seen, "hw.network.bandwidth.limit", "mlx5_0/1") == 1.25e9


def test_ports_and_interfaces_of_one_device_belong_together(sys: Path, collector: NetworkCollector) -> None:
    """Two ports of one function: dev_port says which interface is whose; RoCE's GID table says it first."""
    first = infiniband_port(sys, "mlx4_0", port=1, interface="ens1")
    infiniband_port(sys, "mlx4_0", port=2, interface="ens1d1")
    seen = collector.collect(at(0))
    named = [values(seen, "whichrank.network.port.info", f"mlx4_0/{port}")[0].attributes for port in (1, 2)]
    assert [about["whichrank.network.interface"] for about in named] == ["ens1", "ens1d1"]
    write(first, {"gid_attrs/ndevs/0": "bond0"})
    seen = collector.collect(at(5))
    (info,) = values(seen, "whichrank.network.port.info", "mlx4_0/1")
    assert info.attributes["whichrank.network.interface"] == "bond0"


def test_an_interface_and_what_is_left_out(sys: Path, collector: NetworkCollector) -> None:
    folder = network_interface(sys, "ens3f0")
    write(folder / "statistics", {"rx_crc_errors": 9, "rx_bytes": 12})
    for name in ("lo", "docker0", "veth12ab", "br0"):
        network_interface(sys, name, address="")
    virtual = network_interface(sys, "ens3f0v0", address="0000:3b:00.2")
    (virtual / "device/physfn").symlink_to(sys / "devices/pci0000:00/0000:3b:00.0")
    seen = collector.collect(at(0))
    assert {point.attributes["hw.id"] for point in seen.points} == {"ens3f0"}
    assert value(seen, "hw.errors", "ens3f0", "rx_crc_errors") == 9
    assert value(seen, "hw.network.io", "ens3f0", "receive") == 12
    assert value(seen, "hw.network.bandwidth.limit", "ens3f0") == 25e9
    assert value(seen, "whichrank.network.carrier.changes", "ens3f0") == 2


def test_an_interface_set_down_by_hand_is_told_from_a_lost_carrier(sys: Path, collector: NetworkCollector) -> None:
    network_interface(sys, "eth0", operstate="down", flags="0x1002", speed=-1)
    network_interface(sys, "eth1", operstate="down", flags="0x1003", address="0000:3b:00.1")
    seen = collector.collect(at(0))
    assert [value(seen, "hw.network.up", name) for name in ("eth0", "eth1")] == [0, 0]
    assert [value(seen, "whichrank.network.port.enabled", name) for name in ("eth0", "eth1")] == [0, 1]
    assert values(seen, "hw.network.bandwidth.limit", "eth0") == []


def test_a_port_that_vanishes_is_told_as_absent(sys: Path, collector: NetworkCollector) -> None:
    infiniband_port(sys)
    infiniband_port(sys, "mlx5_1", address="0000:2a:00.0")
    collector.collect(at(0))
    shutil.rmtree(sys / "class/infiniband/mlx5_1")
    seen = collector.collect(at(5))
    assert value(seen, "whichrank.network.port.present", "mlx5_1/1") == 0
    assert value(seen, "whichrank.network.port.present", "mlx5_0/1") == 1
    assert values(seen, "hw.network.up", "mlx5_1/1") == []


def test_a_standing_counter_is_told_rarely_and_its_jump_with_both_ends(sys: Path, collector: NetworkCollector) -> None:
    port = infiniband_port(sys)
    told = [values(collector.collect(at(s)), "hw.errors", "mlx5_0/1", "link_downed") for s in (0, 5, 10)]
    assert [len(points) for points in told] == [1, 0, 0]
    write(port / "counters", {"link_downed": 1})
    jump = values(collector.collect(at(15)), "hw.errors", "mlx5_0/1", "link_downed")
    assert [(point.time_ns, point.value) for point in jump] == [(at(10).wall_ns, 0), (at(15).wall_ns, 1)]
    later = [values(collector.collect(at(s)), "hw.errors", "mlx5_0/1", "link_downed") for s in (20, 25, 30, 35, 89, 90)]
    assert [len(points) for points in later] == [1, 1, 1, 0, 0, 1]  # a rate is seen to end; then once a minute


def test_a_reset_moves_the_start(sys: Path, collector: NetworkCollector) -> None:
    port = infiniband_port(sys)
    write(port / "counters", {"symbol_error": 60})
    collector.collect(at(0))
    write(port / "counters", {"symbol_error": 2})
    (point,) = values(collector.collect(at(5)), "hw.errors", "mlx5_0/1", "symbol_error")
    assert (point.value, point.start_ns) == (2, at(0).wall_ns)


def test_a_device_made_again_starts_anew_even_if_it_counts_higher(sys: Path, collector: NetworkCollector) -> None:
    folder = network_interface(sys)
    write(folder / "statistics", {"rx_errors": 5})
    collector.collect(at(0))
    write(folder, {"ifindex": 9})
    write(folder / "statistics", {"rx_errors": 8})
    (point,) = values(collector.collect(at(5)), "hw.errors", "eth0", "rx_errors")
    assert (point.value, point.start_ns) == (8, at(0).wall_ns)


def test_a_wrap_goes_on(sys: Path, collector: NetworkCollector) -> None:
    folder = network_interface(sys)
    write(folder / "statistics", {"rx_bytes": 2**32 - 100})
    collector.collect(at(0))
    write(folder / "statistics", {"rx_bytes": 50})
    (point,) = values(collector.collect(at(5)), "hw.network.io", "eth0", "receive")
    assert (point.value, point.start_ns) == (2**32 + 50, 0)


def test_several_counters_that_fall_at_once_were_reset(sys: Path, collector: NetworkCollector) -> None:
    folder = network_interface(sys)
    write(folder / "statistics", {"rx_bytes": 2**32 - 100, "rx_packets": 70})
    collector.collect(at(0))
    write(folder / "statistics", {"rx_bytes": 50, "rx_packets": 2})
    (point,) = values(collector.collect(at(5)), "hw.network.io", "eth0", "receive")
    assert (point.value, point.start_ns) == (50, at(0).wall_ns)


@pytest.mark.parametrize(
    ("before", "after", "width"),
    [
        (2**32 - 1, 0, 2**32),
        (2**64 - 5, 7, 2**64),
        (2**32 - 1, 2**31, 0),  # fell too little: nobody wraps to the middle
        (2**31, 3, 0),
        (1000, 0, 0),
        (2**40, 5, 0),
        (2**70, 5, 0),
    ],
)
def test_wraps_and_resets_are_told_apart(before: int, after: int, width: int) -> None:
    assert wrapped_at(before, after) == width


def test_a_series_never_falls_within_one_start() -> None:
    dice = random.Random(7)
    series = CounterSeries()
    raw = 0
    told: list[CounterValue] = []
    for second in range(3000):
        jump = dice.random()
        raw = 0 if jump < 0.01 else (raw + dice.choice((0, 0, 1, 2**30))) % 2**32
        told += series.take(raw, second * 5 * SECOND_NS + 1)
    for earlier, later in pairwise(told):
        assert earlier.time_ns < later.time_ns
        assert later.start_ns >= earlier.start_ns
        if later.start_ns == earlier.start_ns:
            assert later.value >= earlier.value


def test_a_counter_at_the_end_of_its_register_is_a_problem(sys: Path, collector: NetworkCollector) -> None:
    port = infiniband_port(sys)
    write(port / "counters", {"link_downed": 255, "symbol_error": 70_000})  # the latter is wider than the old 16 bits
    problems = collector.collect(at(0)).problems
    assert list(problems) == [
        "mlx5_0/1: link_downed stands at its maximum of 255 and counts no further; perfquery -R sets it to 0"
    ]


def test_a_node_without_network_devices_says_so_once_and_briefly(collector: NetworkCollector) -> None:
    seen = collector.collect(at(0))
    assert seen.points == []
    assert len(seen.problems) == 1


def test_missing_and_unreadable_files_cost_only_themselves(sys: Path, collector: NetworkCollector) -> None:
    port = infiniband_port(sys)
    (port / "rate").unlink()
    shutil.rmtree(port / "hw_counters")
    write(port / "counters", {"port_rcv_errors": "N/A (no PMA)"})
    (port / "state").unlink()
    (port / "state").mkdir()
    seen = collector.collect(at(0))
    assert values(seen, "hw.network.up", "mlx5_0/1") == []
    assert values(seen, "hw.errors", "mlx5_0/1", "port_rcv_errors") == []
    assert value(seen, "whichrank.network.port.phys_state", "mlx5_0/1") == 5


def test_the_number_of_points_is_bounded(sys: Path, collector: NetworkCollector) -> None:
    for number in range(MAX_PORTS + 6):
        infiniband_port(sys, f"mlx5_{number}", address=f"0000:{number:02x}:00.0")
    seen = collector.collect(at(0))
    assert len(seen.points) == MAX_POINTS
    assert any(f"more than {MAX_PORTS} ports" in line for line in seen.problems)
    assert any(f"more than {MAX_POINTS} values" in line for line in seen.problems)


def test_every_point_is_a_metric_that_is_written_down(sys: Path, collector: NetworkCollector) -> None:
    infiniband_port(sys, interface="ib0")
    network_interface(sys)
    known = node_metrics()
    for point in collector.collect(at(0)).points:
        assert set(point.attributes) <= set(known[point.name].attributes), point.name


def test_the_table_of_counters_names_counters() -> None:
    for counter in network_counters().values():
        metric = node_metrics()[counter.metric]
        assert metric.instrument is NodeMetricInstrument.COUNTER
        assert set(counter.attributes) <= set(metric.attributes)
        assert counter.factor in (1, 4)


def test_garbage_in_every_file(sys: Path) -> None:
    dice = random.Random(11)
    infiniband_port(sys, interface="ib0")
    network_interface(sys)
    files = [path for path in sys.rglob("*") if path.is_file() and not path.is_symlink()]
    collector = NetworkCollector(sys=sys, statistics=None)
    for round_ in range(40):
        for path in dice.sample(files, 25):
            path.write_bytes(
                dice.choice((b"", b"\0" * 9, b"-1", b"9" * 400, b"4: \xff", dice.randbytes(60), b"x" * 1_000_000))
            )
        seen = collector.collect(at(round_ * 5))
        assert len(seen.points) <= MAX_POINTS
        assert all(point.value == point.value for point in seen.points)


def test_this_machine() -> None:
    collector = NetworkCollector()
    seen = collector.collect(at(0))
    real = [path.name for path in Path("/sys/class/net").iterdir() if (path / "device").exists()]
    if not real:
        pytest.skip("no network device here")
    assert {point.attributes["hw.id"] for point in seen.points} >= set(real)
    assert "lo" not in {point.attributes["hw.id"] for point in seen.points}
    received = int(Path(f"/sys/class/net/{real[0]}/statistics/rx_bytes").read_text())
    assert 0 <= received - value(seen, "hw.network.io", real[0], "receive") < 100 << 20


def test_ethtool_of_an_interface_without_statistics_is_empty() -> None:
    assert interface_statistics("lo") == {}
    assert interface_statistics("no-such-one") == {}
    assert interface_statistics("x" * 300) == {}
