"""What exporters give (payloads/*.prom, in the shape in which Prometheus reads them), as a collector passes it on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.diagnosis.crosswalk.hosts import entity_of, host_of, with_scraped_host
from whichrank.diagnosis.crosswalk.rules import rule_for, sources
from whichrank.diagnosis.crosswalk.translate import Crossed, EntityKind, crosswalk
from whichrank.diagnosis.network_counters import network_counters
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.records import Point

PAYLOADS = Path(__file__).parent / "payloads"
SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: What the collector's Prometheus receiver says of a target, in resource attributes.
RESOURCE = {
    "service.name": "exporter",
    "service.instance.id": "10.0.0.5:9400",
    "server.address": "10.0.0.5",
    "server.port": "9400",
    "url.scheme": "http",
}
GPU = "GPU-5c3a1f0e-0000-4000-8000-00000000a001"


def samples(exporter: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in (PAYLOADS / f"{exporter}.prom").read_text().splitlines():
        match = SAMPLE.fullmatch(line)
        if match is not None:
            yield match["name"], dict(LABEL.findall(match["labels"] or "")), float(match["value"])


def crossed(exporter: str, **resource: str) -> list[tuple[str, Crossed | None]]:
    return [
        (name, crosswalk(name, labels, {**RESOURCE, **resource}, value)) for name, labels, value in samples(exporter)
    ]


def told(exporter: str, **resource: str) -> list[tuple[str, str, str, float, tuple[str, ...]]]:
    """(entity, its id, metric, value, attributes' values) of those that are known."""
    return [
        (one.entity_kind.value, one.entity_id, one.point.name, one.point.value, tuple(one.point.attributes.values()))
        for _, one in crossed(exporter, **resource)
        if one is not None
    ]


def unknown(exporter: str) -> list[str]:
    return [name for name, one in crossed(exporter) if one is None]


def test_dcgm() -> None:
    assert {(kind, entity, about[0]) for kind, entity, _, _, about in told("dcgm")} == {("node", "gpu-node-02", GPU)}
    assert [(metric, round(value, 9), about[1:]) for _, _, metric, value, about in told("dcgm")] == [
        ("whichrank.gpu.speed", 1.98e9, ("sm",)),
        ("hw.temperature", 61, ("gpu",)),
        ("hw.power", 688.412, ("gpu",)),
        ("hw.energy", 1.5, ("gpu",)),
        ("hw.gpu.utilization", 0.97, ("general",)),
        ("hw.gpu.memory.usage", 70000 * 2**20, ()),
        ("whichrank.gpu.xid.last", 79, ()),
        ("hw.errors", 4, ("gpu", "pcie_replay")),
        ("whichrank.gpu.remapped_rows.failure", 0, ()),
        ("whichrank.gpu.active", 0.431, ("tensor",)),
        ("whichrank.gpu.throttled.time", 2, ("sw_power_cap",)),
    ]
    assert unknown("dcgm") == ["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_VGPU_LICENSE_STATUS"]


def test_node_exporter() -> None:
    node, storage = ("node", "gpu-node-02"), ("storage", "gpu-node-02")
    assert told("node_exporter", **{"k8s.node.name": "gpu-node-02"}) == [
        (*node, "hw.network.io", 1380366808104, ("mlx5_0/1", "receive")),
        (*node, "hw.errors", 3, ("mlx5_0/1", "network", "link_downed")),
        (*node, "hw.errors", 12, ("mlx5_0/1", "network", "symbol_error")),
        (*node, "whichrank.network.port.state", 4, ("mlx5_0/1",)),
        (*node, "hw.network.bandwidth.limit", 5e10, ("mlx5_0/1",)),
        (*node, "whichrank.fabric.congestion", 30011, ("mlx5_0/1", "np_cnp_sent")),
        (*node, "hw.errors", 7, ("eth0", "network", "rx_errors")),
        (*node, "whichrank.fabric.carrier.changes", 2, ("eth0",)),
        (*node, "hw.network.bandwidth.limit", 2.5e10, ("eth0",)),
        (*node, "hw.network.up", 1, ("eth0",)),
        (*node, "system.disk.io", 511650894848, ("nvme0n1", "read")),
        (*node, "system.filesystem.usage", 4.6e10, ("/", "ext4", "free")),
        (*node, "whichrank.mount.read_only", 1, ("/", "ext4")),
        (*node, "whichrank.filesystem.unanswered", 1, ("/mnt/data", "nfs4")),
        (*node, "whichrank.nfs.round_trip_time", 44.25, ("nas1:/data", "READ")),
        (*node, "whichrank.memory.errors", 1, ("mc0", "uncorrected")),
        (*storage, "whichrank.storage.server.operations", 1881, ("GetAttr", "nfsd")),
        (*storage, "whichrank.storage.server.errors", 5, ("auth", "nfsd")),
        (*node, "system.cpu.load_average.1m", 3.1, ()),
    ]


def test_switches_by_snmp() -> None:
    leaf, telegraf = ("switch", "leaf-3.fabric"), ("switch", "leaf-3")
    assert told("snmp") == [
        (*leaf, "hw.network.io", 1e13, ("Eth1/7", "receive")),
        (*leaf, "hw.network.io", 5, ("if8", "transmit")),
        (*leaf, "hw.network.up", 0, ("Eth1/7",)),
        (*leaf, "hw.network.bandwidth.limit", 5e10, ("Eth1/7",)),
        (*telegraf, "hw.network.io", 44, ("Eth1/7", "receive")),
        (*telegraf, "whichrank.fabric.congestion", 6, ("Eth1/7", "tx_dropped")),
    ]
    assert unknown("snmp") == ["ifInOctets", "sysUpTime"]


def test_switches_by_gnmi() -> None:
    leaf = ("switch", "leaf-3")
    assert told("gnmi") == [
        (*leaf, "hw.network.io", 77, ("Ethernet1/7", "receive")),
        (*leaf, "hw.errors", 3, ("Ethernet1/7", "network", "rx_crc_errors")),
        (*leaf, "hw.network.up", 1, ("Ethernet1/7",)),
        (*leaf, "whichrank.fabric.congestion", 9, ("Ethernet1/7", "queue_drops")),
    ]
    path = "openconfig-interfaces:/interfaces/interface/state/counters/in-octets"
    one = crosswalk(path, {"name": "Ethernet1/7", "target": "leaf-3"}, {}, 4)
    assert one is not None
    assert one.point.name == "hw.network.io"


def test_a_fabric_by_ufm_has_switches_and_nodes() -> None:
    assert told("ufm") == [
        ("switch", "leaf-3", "hw.network.io", 4000, ("31", "transmit")),
        ("switch", "leaf-3", "whichrank.fabric.congestion", 12, ("31", "port_xmit_wait")),
        ("switch", "leaf-3", "hw.errors", 5, ("31", "network", "symbol_error")),
        ("node", "gpu-node-02", "hw.errors", 6, ("mlx5_4/1", "network", "symbol_error")),
        ("node", "gpu-node-02", "hw.errors", 2, ("HCA-1/1", "network", "link_downed")),
        ("node", "gpu-node-02", "hw.errors", 1, ("1", "network", "link_downed")),
        ("switch", "0xb83fd20300a10001", "hw.errors", 8, ("4", "network", "port_rcv_errors")),
    ]


def test_lustre_servers() -> None:
    server = ("storage", "oss-07")
    assert told("lustre", **{"service.instance.id": "OSS-07:9169", "server.address": "oss-07"}) == [
        (*server, "whichrank.storage.server.operations", 5.5e6, ("lfs-MDT0000", "open")),
        (*server, "whichrank.storage.server.io", 9e12, ("lfs-OST0003", "read")),
        (*server, "whichrank.storage.server.job.operations", 880, ("lfs-MDT0000", "getattr", "python3.1001")),
        (*server, "whichrank.storage.server.space", 1048576, ("lfs-OST0003", "free")),
        (*server, "whichrank.storage.server.healthy", 1, ("lustre",)),
    ]


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node-1:9400", "node-1"),
        ("http://Node-1.example.com:9100/metrics", "node-1.example.com"),
        ("10.0.0.5:9100", "10.0.0.5"),
        ("[fd00::7]:9100", "fd00::7"),
        ("fd00::7", "fd00::7"),
        ("localhost:9400", ""),
        ("127.0.0.1:9400", ""),
        ("dcgm-exporter-x7k2p", ""),
        ("", ""),
        ("two words", ""),
        ("x" * 300, ""),
    ],
)
def test_hosts_in_labels(text: str, host: str) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    ("labels", "resource", "node"),
    [
        ({"Hostname": "gpu-1", "instance": "10.0.0.5:9400"}, {}, "gpu-1"),
        ({"exported_instance": "gpu-1:9400", "instance": "10.0.0.5:9400"}, {}, "gpu-1"),
        ({"kubernetes_node": "gpu-1", "Hostname": "dcgm-exporter-abcde"}, {}, "gpu-1"),
        # A collector that scrapes other hosts says its own name.
        ({"instance": "gpu-1:9100"}, {"host.name": "collector-0"}, "gpu-1"),
        # One beside the exporter is on its node.
        ({"instance": "localhost:9400"}, {"host.name": "gpu-1"}, "gpu-1"),
        ({}, {"service.instance.id": "gpu-1:9400"}, "gpu-1"),
        ({}, {"host.name": "collector-0", "server.address": "10.0.0.5"}, "10.0.0.5"),
        ({}, {"host.name": "gpu-1", "service.instance.id": "627cc493-f310-47de-96bd-71410b7dec09"}, "gpu-1"),
        ({"Hostname": "gpu-1"}, {"k8s.node.name": "ip-10-0-0-5"}, "ip-10-0-0-5"),
        ({"Hostname": 7}, {}, ""),
    ],
)
def test_who_is_meant(labels: dict[str, object], resource: dict[str, object], node: str) -> None:
    assert entity_of("node", labels, resource, {}) == node


def test_a_name_that_is_known_goes_before_one_that_is_not() -> None:
    aliases = {"10.0.0.5": "node-02", "gpu-1": "node-01", GPU.lower(): "node-03", "6f1c": "node-04"}
    assert entity_of("node", {"Hostname": "x9", "instance": "10.0.0.5:9400"}, {}, aliases) == "node-02"
    assert entity_of("node", {"Hostname": "gpu-1.cluster.local"}, {}, aliases) == "node-01"
    assert entity_of("node", {"Hostname": "gpu-1", "UUID": GPU}, {}, aliases) == "node-03"
    assert entity_of("node", {}, {"host.id": "6F1C", "host.name": "x9"}, aliases) == "node-04"
    assert entity_of("node", {"Hostname": "x9"}, {}, aliases) == "x9"


def test_a_collectors_own_node_is_not_blamed_for_what_it_scrapes() -> None:
    """A gateway on node-07 scrapes a node by an address that nobody knows yet."""
    aliases = {"node-07": "node-07"}
    resource = {"host.name": "node-07", "service.instance.id": "10.0.0.5:9100", "server.address": "10.0.0.5"}
    assert entity_of("node", {}, resource, aliases) == "10.0.0.5"


def test_what_is_nobodys_or_nothing_is_left_out() -> None:
    assert crosswalk("DCGM_FI_DEV_GPU_UTIL", {"Hostname": "gpu-1"}, {}, 1) is None
    assert crosswalk("DCGM_FI_DEV_GPU_UTIL", {"UUID": GPU, "Hostname": "gpu-1"}, {}, math.nan) is None
    assert crosswalk("lustre_stats_total", {"target": "lfs-MDT0000"}, {"server.address": "mds1"}, 1) is None
    assert crosswalk("my_own_metric", {"Hostname": "gpu-1"}, {}, 1) is None
    assert crosswalk("node_network_up", {"device": "docker0", "instance": "gpu-1:9100"}, {}, 0) is None


def test_what_names_no_host_says_so() -> None:
    one = crosswalk("DCGM_FI_DEV_GPU_UTIL", {"UUID": GPU, "Hostname": "localhost"}, {}, 1)
    assert one is not None
    assert (one.entity_kind, one.entity_id) == (EntityKind.NODE, "")


def test_a_host_that_its_exporter_names_itself() -> None:
    """A target at 127.0.0.1 has no other name; behind an address it is the one that people know."""
    uname = Point(name="node_uname_info", value=1.0, attributes={"nodename": "gpu-node-02"}, time_ns=1)
    load = Point(name="node_load1", value=1.0, time_ns=1)
    for instance, host in (("127.0.0.1:9100", ""), ("10.0.0.5:9100", "10.0.0.5")):
        resource = {"service.instance.id": instance}
        assert entity_of("node", {}, with_scraped_host(resource, [load]), {}) == host
        assert entity_of("node", {}, with_scraped_host(resource, [load, uname]), {}) == "gpu-node-02"
    known = {"10.0.0.5": "node-02"}
    resource = {"service.instance.id": "10.0.0.5:9100"}
    assert entity_of("node", {}, with_scraped_host(resource, [uname]), known) == "node-02"
    pod = Point(name="node_uname_info", value=1.0, attributes={"nodename": "node-exporter-x7k2p"}, time_ns=1)
    assert entity_of("node", {}, with_scraped_host({"service.instance.id": "gpu-1:9100"}, [pod]), {}) == "gpu-1"


def test_times_are_kept() -> None:
    one = crosswalk("node_load1_", {}, {}, 1, time_ns=5)
    assert one is None
    one = crosswalk("node_network_up", {"device": "eth0", "instance": "a:1"}, {}, 1, time_ns=5, start_ns=3)
    assert one is not None
    assert (one.point.time_ns, one.point.start_ns) == (5, 3)


def test_a_counter_is_known_with_and_without_its_suffix() -> None:
    assert rule_for("node_network_receive_errs") is rule_for("node_network_receive_errs_total") is not None
    assert rule_for("node_network_receive_err") is None


def test_the_tables_are_right() -> None:
    """Each target is a metric of ours with these attributes, each kernel counter one that the kernel has."""
    known = node_metrics()
    gpu_part_is_there = "hw.gpu.utilization" in known
    switch_words = {"ecn_marked", "queue_drops"}
    for source in sources().values():
        for name, rule in source.rules.items():
            metric = known.get(rule.metric)
            if metric is None and not gpu_part_is_there and rule.metric.startswith(("whichrank.gpu.", "hw.")):
                continue
            assert metric is not None, f"{name}: {rule.metric}"
            assert {*rule.attributes, *([rule.device_attribute] if rule.device else [])} <= set(metric.attributes), name
            assert rule.entity == "fabric" or EntityKind(rule.entity)
            kind = rule.attributes.get("whichrank.network.counter") or (
                rule.attributes.get("hw.type") == "network" and rule.attributes.get("error.type")
            )
            assert not kind or kind in network_counters() or kind in switch_words, kind


@given(
    st.sampled_from([name for source in sources().values() for name in source.rules]),
    st.dictionaries(
        st.sampled_from(
            ["UUID", "Hostname", "instance", "device", "port", "node_desc", "ifName", "target", "port_num"]
        ),
        st.one_of(st.text(max_size=40), st.integers(), st.booleans(), st.floats(), st.none()),
    ),
    st.floats(),
)
@settings(max_examples=300, deadline=None)
def test_any_labels_and_values(name: str, labels: dict[str, object], value: float) -> None:
    one = crosswalk(name, labels, {}, value)
    if one is not None:
        assert math.isfinite(one.point.value)
        assert all(text and isinstance(text, str) for text in one.point.attributes.values())


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_name(name: str) -> None:
    crosswalk(name, {"instance": name}, {"host.name": name}, 1.0)
