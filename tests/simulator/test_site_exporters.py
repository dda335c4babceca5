"""Exporters of simulated servers and switches: their pages follow from the same load that slows the jobs down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from whichrank.processors.entity.rules import load_rules
from whichrank.processors.runner_decode import MessageDecoder
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.fabric import FLOWS_PER_UPLINK, UplinkState
from whichrank.simulator.fabric_ports import FabricPorts
from whichrank.simulator.resources import ParameterChange, Resources
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.scraped_page import Page
from whichrank.simulator.sensing import Sensing
from whichrank.telemetry.records import Samples
from whichrank.telemetry.topics import TOPIC_METRICS


def test_servers_count_by_job_what_clients_count_by_node() -> None:
    """And both reach the operators under their own entities."""
    world = SCENARIOS["metadata_storm"].build(32, 7, at_s=30.0, sensing=Sensing.ALL)
    decoder, counted = MessageDecoder(load_rules().wanted), defaultdict[str, dict[str, float]](dict)
    for _, sent in world.run(55.0):
        for message in sent:
            if message.topic != TOPIC_METRICS:
                continue
            for samples in decoder.decode(message.topic, message.value):
                assert isinstance(samples, Samples)
                for point in samples.points:
                    told = point.attributes
                    if point.name == "whichrank.storage.server.job.operations" and samples.identity.node == "mds1":
                        key = f"{told['whichrank.storage.job']}/{told['whichrank.storage.operation']}"
                        counted["server"][key] = point.value
                    if point.name == "whichrank.nfs.operations" and told["whichrank.storage.operation"] == "metadata":
                        counted["clients"][samples.identity.node] = point.value
                    if samples.entity != "node":
                        counted[samples.entity][samples.identity.node] = 1.0
    assert decoder.nameless == 0
    assert {"mds1", "oss1", "oss8"} <= set(counted["storage"])
    assert any(switch.startswith("leaf-") for switch in counted["switch"])
    assert any(switch.startswith("spine-") for switch in counted["switch"])
    by_job = {job: sum(v for key, v in counted["server"].items() if key.startswith(job)) for job in ("job-a", "job-d")}
    assert by_job["job-d"] > 5 * by_job["job-a"] > 0
    # They are asked at different moments of the last seconds.
    assert sum(counted["server"].values()) == pytest.approx(sum(counted["clients"].values()), rel=0.5)


def test_without_clients_sensors_nodes_tell_nothing_of_storage_and_fabric() -> None:
    world = SCENARIOS["metadata_storm"].build(32, 7, sensing=Sensing.SERVERS)
    decoder = MessageDecoder(load_rules().wanted)
    told = {
        (samples.entity, point.name)
        for _, sent in world.run(20.0)
        for message in sent
        if message.topic == TOPIC_METRICS
        for samples in decoder.decode(message.topic, message.value)
        if isinstance(samples, Samples)
        for point in samples.points
    }
    of_nodes = {name for entity, name in told if entity == "node"}
    assert "whichrank.collector.watching" in of_nodes
    assert not of_nodes & {"whichrank.nfs.operations", "hw.network.up", "hw.gpu.utilization"}
    assert ("storage", "whichrank.storage.server.job.operations") in told


class Fabric:
    """Four nodes of one GPU under two leaves, two spines, half loaded."""

    def __init__(self) -> None:
        self.topology = Topology(shape=ClusterShape(nodes=4, gpus_per_node=1, nodes_per_leaf=2, spines=2))
        self.resources = Resources(self.topology)
        self.ports = FabricPorts(self.topology, self.resources)

    def goes_on(self, seconds: float = 15.0) -> dict[tuple[str, str, str], float]:
        """By the switch or host, port and counter."""
        up = self.resources.of("leaf", "up") * self.resources.of("leaf", "capacity")
        capacity = np.tile(FLOWS_PER_UPLINK * up[:, None], (1, 2))
        load = np.full((2, 2), FLOWS_PER_UPLINK / 2)
        self.ports.advance(seconds, UplinkState(load=load, capacity=capacity, of_spine=np.ones((2, 2))))
        return dict(_counters(self.ports.page()))

    def change(self, family: str, name: str, value: float, place: int) -> None:
        self.resources.apply(ParameterChange(at_s=0.0, family=family, name=name, value=value, places=(place,)))


def _counters(page: Page) -> Iterator[tuple[tuple[str, str, str], float]]:
    for line in page.lines:
        yield (line.labels["node_desc"].removesuffix(":MQM9700/U1"), line.labels["port_num"], line.name), line.value


def test_what_an_uplink_does_not_carry_waits_before_it() -> None:
    fabric = Fabric()
    usual = fabric.goes_on()
    fabric.change("leaf", "capacity", 0.02, 0)
    after = fabric.goes_on()
    waits = {
        leaf: after[f"MF0;leaf-000{leaf}", "3", "PortXmitWaitExtended"]
        - usual[f"MF0;leaf-000{leaf}", "3", "PortXmitWaitExtended"]
        for leaf in (0, 1)
    }
    assert waits[0] > 100 * waits[1] > 0
    assert after["MF0;leaf-0000", "3", "PortXmitDiscardsExtended"] > 0
    assert after["MF0;leaf-0001", "3", "PortXmitDiscardsExtended"] == 0
    sent = [each["MF0;leaf-0000", "3", "PortXmitDataExtended"] for each in (usual, after)]
    assert sent[1] - sent[0] == pytest.approx(0.04 * sent[0], rel=0.01)


def test_a_switch_that_is_off_is_told_by_its_neighbours() -> None:
    fabric = Fabric()
    assert ("node-00001 mlx5_0", "1", "LinkDownedCounter") in fabric.goes_on()
    fabric.change("leaf", "up", 0.0, 0)
    gone = fabric.goes_on()
    assert not any(name in ("MF0;leaf-0000", "node-00001 mlx5_0") for name, _, _ in gone)
    assert gone["MF0;spine-0001", "1", "LinkDownedCounter"] == 1
    assert gone["MF0;spine-0001", "2", "LinkDownedCounter"] == 0
    fabric.change("leaf", "up", 1.0, 0)
    back = fabric.goes_on()
    assert back["MF0;leaf-0000", "2", "LinkDownedCounter"] == 1


def test_errors_and_lost_links_of_a_port_are_counted_at_both_of_its_ends() -> None:
    fabric = Fabric()
    fabric.change("port", "errors", 20.0, 1)
    fabric.change("port", "up", 0.0, 3)
    told = fabric.goes_on(10.0)
    for name, port in (("MF0;leaf-0000", "2"), ("node-00001 mlx5_0", "1")):
        assert told[name, port, "SymbolErrorCounterExtended"] == 200
    assert told["MF0;leaf-0001", "2", "LinkDownedCounter"] == 1
    assert not any(name == "node-00003 mlx5_0" for name, _, _ in told)
