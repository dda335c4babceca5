"""Bytes of a large job on the way to Kafka, as ``whichrank bench --cost`` prints them."""

from __future__ import annotations

import pytest

from whichrank.evaluation.bench.wire import ASKED_BYTES, NodesWire, wire_lines
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import mesh_for
from whichrank.simulator.world import World
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName


def test_all_that_some_nodes_send_is_counted() -> None:
    nodes = 1024 // 8
    spec = JobSpec(name="job", mesh=mesh_for(1024), nodes=tuple(range(nodes)))
    topology = Topology(shape=ClusterShape(nodes=nodes))
    names = [topology.node_name(node) for node in (3, 77)]
    world = World(topology, [spec], seed=1, senses=[3, 77])
    wire = NodesWire(names, 8)
    plain = 0
    for until_s, sent in world.run(30.0):
        if until_s > 20.0:
            wire.see(sent)
            plain += sum(
                getattr(getattr(payload, "rows", None), "nbytes", 0)
                for message in sent
                if message.node in names
                for payload in message.payloads
            )
    found, messages = wire.per_rank_s(10.0), wire.messages_s(10.0)
    assert found["all"] == pytest.approx(found[TOPIC_BLOCKS] + found[TOPIC_METRICS])
    assert messages[TOPIC_BLOCKS] == pytest.approx(1 / 8, rel=0.2), "once a second"
    tables = {name.value for name in (EventName.BLOCK_PROGRESS, EventName.BLOCK_STEPS, EventName.BLOCK_GROUP_PROGRESS)}
    assert tables <= set(found)
    packed = sum(measured for name, measured in found.items() if name not in ("all", TOPIC_BLOCKS, TOPIC_METRICS))
    assert packed < plain / 160 / 2, "half of what the rows take by themselves, at most"
    lines = wire_lines(1024, found, messages, nodes)
    assert lines[-1].asked == f"<= {ASKED_BYTES:g}"
    assert float(lines[-1].measured) == pytest.approx(found["all"], abs=0.1)
    assert lines[-1].ok is (found["all"] <= ASKED_BYTES)
