"""What a real node_exporter said to a real Collector, as conditions: recorded by tests.stack.parts.node_exporter.

The scrape is of a healthy node at 127.0.0.1. A test changes single values of it, as that node's kernel would.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.entity.node import Node
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.runner_decode import MessageDecoder
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.records import Samples
from whichrank.telemetry.topics import TOPIC_METRICS
from whichrank.telemetry.vocabulary import Kind

RECORDED = Path(__file__).parents[2] / "diagnosis/crosswalk/payloads/node_exporter_scraped.json"
HOST = "gpu-node-02"
#: A metric, a label that its point has ("" any), and what it says instead.
Change = tuple[str, str, float]
#: Nobody kept the clock of the machine on which it was recorded.
IN_TIME: Change = ("node_timex_sync_status", "", 1.0)


def scrape(changes: tuple[Change, ...] = (), *, at: float = 0.0, without: str = "") -> bytes:
    """at: seconds after START_S."""
    request = json_format.Parse(RECORDED.read_text(), ExportMetricsServiceRequest())
    wanted = {name for name, _, _ in changes}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in list(scope.metrics):
                if metric.name == without:
                    scope.metrics.remove(metric)
                    continue
                for point in points_of(metric):
                    point.time_unix_nano = round((START_S + at) * 1e9)
                    for name, label, value in (IN_TIME, *changes):
                        if metric.name == name and (not label or label in labels_of(point).values()):
                            point.as_double = value
                            wanted.discard(name)
    assert not wanted, f"not recorded: {wanted}"
    return request.SerializeToString()


def points_of(metric: Metric) -> list[NumberDataPoint]:
    kind = metric.WhichOneof("data")
    return list(getattr(metric, kind).data_points) if kind in ("gauge", "sum") else []


def labels_of(point: NumberDataPoint) -> Mapping[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in point.attributes}


def hear(node: Node, *changes: Change, at: float) -> None:
    for payload in MessageDecoder(load_rules().wanted).decode(TOPIC_METRICS, scrape(changes, at=at)):
        assert isinstance(payload, Samples)
        assert payload.identity.node == HOST
        if payload.entity == "node":
            node.take(payload)


@pytest.fixture
def node() -> Node:
    """Seen twice, and well."""
    node = Node(HOST)
    hear(node, at=-30.0)
    hear(node, at=-15.0)
    assert node.open == {}
    return node


def test_every_point_is_of_a_host_though_the_target_is_at_127_0_0_1() -> None:
    everything = MessageDecoder(frozenset(node_metrics()))
    told = [payload for payload in everything.decode(TOPIC_METRICS, scrape()) if isinstance(payload, Samples)]
    assert {samples.identity.node for samples in told} == {HOST}
    assert everything.nameless == 0
    names = {point.name for samples in told for point in samples.points}
    assert {"whichrank.pressure.time", "system.memory.linux.available", "whichrank.memory.oom_kills"} <= names
    assert {"system.filesystem.limit", "whichrank.filesystem.inodes.limit", "whichrank.clock.offset"} <= names
    assert {"whichrank.nfs.client.retransmissions", "whichrank.sensor.critical", "hw.network.up"} <= names
    assert len(names) >= 32
    (up,) = [point for samples in told for point in samples.points if point.name == "hw.network.up"]
    assert up.attributes == {"hw.id": "eth0"}, "no cable is behind docker0"


def test_without_a_name_points_are_counted_and_said_once() -> None:
    said: list[str] = []
    decoder = MessageDecoder(load_rules().wanted, said.append)
    for _ in range(2):
        assert decoder.decode(TOPIC_METRICS, scrape(without="node_uname_info")) == []
    assert decoder.nameless > 20
    (line,) = said
    assert "127.0.0.1:9100" in line


@pytest.mark.parametrize(
    ("change", "condition", "kind"),
    [
        (("node_infiniband_state_id", "mlx5_0", 1.0), "port_down/mlx5_0/1", Kind.COLLECTIVE_STALLED),
        (("node_vmstat_oom_kill", "", 1.0), "host_oom_kills/", Kind.RANK_DIED),
        (("node_edac_uncorrectable_errors_total", "", 1.0), "memory_errors/mc0", Kind.NUMERIC_FIRST_RANK),
        (("node_memory_MemAvailable_bytes", "", 1e9), "memory_short/", Kind.RANK_DIED),
        (("node_filesystem_avail_bytes", "/ckpt", 0.0), "filesystem_full//ckpt", Kind.RANK_RAISED),
        (("node_filesystem_files_free", "/ckpt", 0.0), "filesystem_full//ckpt", Kind.RANK_RAISED),
        (("node_filesystem_device_error", "/ckpt", 1.0), "mount_stalls//ckpt", Kind.RANK_NOT_ENTERED),
        (("node_hwmon_temp_crit_alarm_celsius", "", 1.0), "host_too_hot/coretemp/temp1", Kind.RANK_SLOW),
        (("node_network_up", "eth0", 0.0), "port_down/eth0", Kind.COLLECTIVE_STALLED),
    ],
)
def test_what_a_node_says_is_a_condition_and_explains_an_incident(change: Change, condition: str, kind: Kind) -> None:
    court = Court()
    node = Node(HOST, court)
    node.rank(2, "GPU-2")
    hear(node, at=-30.0)
    hear(node, at=-15.0)
    hear(node, change, at=1.0)
    assert set(node.open) == {condition}
    suspect = {"scope": "rank", "id": "2", "rank": 2, "node": HOST, "pid": 102, "probability": 0.9}
    court.hear(make_finding(kind, 2, at=4.0, onset=0.0, suspects=[suspect]))
    (document,) = court.pages
    assert document["cause"]["condition"] == condition.partition("/")[0]
    assert document["cause"]["entity"] == HOST
    for at in (100.0, 200.0, 400.0):
        hear(node, at=at)
    assert node.open == {}, "it is over"


def test_the_clock_and_what_ends_nothing(node: Node) -> None:
    hear(node, ("node_timex_sync_status", "", 0.0), at=0.0)
    assert set(node.open) == {"clock_unsynchronized/"}


@pytest.mark.parametrize(
    ("metric", "per_s", "condition"),
    [
        ("node_pressure_memory_stalled_seconds_total", 0.4, "memory_pressure/"),
        ("node_pressure_io_stalled_seconds_total", 0.7, "io_pressure/"),
        ("node_pressure_io_stalled_seconds_total", 0.3, ""),
        ("node_pressure_cpu_waiting_seconds_total", 1.0, ""),
        ("node_pressure_io_waiting_seconds_total", 1.0, ""),
    ],
)
def test_processes_that_all_wait(node: Node, metric: str, per_s: float, condition: str) -> None:
    for at in range(0, 61, 15):
        hear(node, (metric, "", 1000.0 + per_s * at), at=at)
    assert set(node.open) == ({condition} if condition else set())


def test_waiting_for_the_disk_leads_nothing_where_the_mount_is_seen_not_to_answer() -> None:
    court = Court()
    node = Node(HOST, court)
    node.rank(2, "GPU-2")
    for at in range(-60, 1, 15):
        changes = [("node_pressure_io_stalled_seconds_total", "", 1000.0 + 0.9 * at)]
        if at >= -15:
            changes.append(("node_filesystem_device_error", "/ckpt", 1.0))
        hear(node, *changes, at=float(at))
    assert set(node.open) == {"io_pressure/", "mount_stalls//ckpt"}
    suspect = {"scope": "rank", "id": "2", "rank": 2, "node": HOST, "pid": 102, "probability": 0.9}
    court.hear(make_finding(Kind.RANK_SLOW, 2, at=4.0, onset=0.0, suspects=[suspect]))
    (document,) = court.pages
    assert document["cause"]["condition"] == "mount_stalls"


# --- controls ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        ("node_edac_correctable_errors_total", "", 900.0),
        ("node_network_up", "docker0", 0.0),
        ("node_infiniband_symbol_error_total", "", 13.0),
        ("node_vmstat_pgmajfault", "", 9e6),
        ("node_load1", "", 900.0),
        ("node_memory_MemAvailable_bytes", "", 1e11),
        ("node_filesystem_avail_bytes", "/ckpt", 1e9),
        ("node_nfs_rpc_retransmissions_total", "", 18.0),
    ],
)
def test_what_is_no_fault(node: Node, change: Change) -> None:
    for at in (0.0, 15.0, 30.0):
        hear(node, change, at=at)
    assert node.open == {}


@pytest.mark.parametrize(
    "change",
    [
        ("node_filesystem_avail_bytes", "/ckpt", 0.0),  # as of an image that is full by nature
        ("node_filesystem_device_error", "/ckpt", 1.0),  # a mount that strangers may not look at
        ("node_infiniband_state_id", "mlx5_0", 1.0),  # a port that nobody uses
        ("node_network_up", "eth0", 0.0),
    ],
)
def test_what_was_so_from_the_first_look_on(change: Change) -> None:
    node = Node(HOST)
    for at in (0.0, 15.0, 30.0):
        hear(node, change, at=at)
    assert node.open == {}


def test_a_file_system_that_makes_inodes_as_it_needs_them() -> None:
    node = Node(HOST)
    for free in (100.0, 0.0):
        hear(node, ("node_filesystem_files", "/ckpt", 0.0), ("node_filesystem_files_free", "/ckpt", free), at=-free)
    assert node.open == {}


def test_where_the_kernels_log_is_read_it_says_whom_it_killed(node: Node) -> None:
    seen = {"kernel_log": 1.0}
    node.measure("whichrank.collector.watching", seen, at=-5.0, attribute="whichrank.collector")
    hear(node, ("node_vmstat_oom_kill", "", 1.0), at=0.0)
    assert "host_oom_kills/" not in node.open
