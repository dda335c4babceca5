"""From a node's kernel to a condition, by other people's programs alone: node_exporter, the Collector, Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.parts.kafka import Kafka
from tests.stack.parts.node_exporter import EDAC, PORT, NodeExporter, scraper
from tests.stack.parts.service import Service, eventually
from tests.stack.test_process_command import Bench
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Finding
from whichrank.telemetry.topics import TOPIC_FINDINGS, TOPIC_METRICS
from whichrank.transport.kafka_read import read_whole

HOST = os.uname().nodename


class Road:
    """Two exporters at 127.0.0.1: one says on which host it runs, the other does not."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path) -> None:
        self.bench = Bench(kafka, prefix, folder)
        assert self.bench.command("topics", "--partitions", "2").returncode == 0
        for name in ("named", "nameless"):
            (folder / name).mkdir()
        self.named = NodeExporter(folder / "named")
        self.nameless = NodeExporter(folder / "nameless", without=["uname"])
        targets = [self.named.address, self.nameless.address]
        topic = f"{prefix}{TOPIC_METRICS}"
        collector = scraper(folder, targets, kafka=kafka.address, topic=topic, exporter="kafka")
        self.services: list[Service] = [self.named.service, self.nameless.service, collector]

    def start(self) -> None:
        self.bench.process()
        self.bench.wait_until_ready()
        for service in self.services:
            service.start()

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Of our host, as last told: name/device -> the condition."""
        found: dict[str, dict[str, Any]] = {}
        for message in read_whole(self.bench.client, TOPIC_FINDINGS):
            for payload in decode_logs(TOPIC_FINDINGS, message.value):
                if isinstance(payload, Finding) and "condition" in payload.body:
                    condition = dict(payload.body["condition"])
                    assert condition["entity"].lower() == HOST.lower()
                    found[f"{condition['name']}/{condition['device']}"] = condition
        return found

    def count(self, name: str) -> float:
        lines = self.bench.ask("/metrics")[1].splitlines()
        return next(
            (float(line.split()[1]) for line in lines if line.startswith(f"whichrank_process_{name}_total ")), 0.0
        )

    def end(self) -> None:
        for service in self.services:
            service.kill()
        for process in self.bench.running:
            process.kill()
            process.wait()


@pytest.fixture
def road(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Road]:
    made = Road(kafka, topic_prefix, tmp_path)
    yield made
    made.end()


def test_what_a_nodes_kernel_says_becomes_conditions(road: Road) -> None:
    road.start()
    eventually(lambda: road.count("nameless_points") > 0, what="points without a host are counted")
    assert "nothing says of which host it is" in road.bench.said()
    seen = road.count("records")
    eventually(lambda: road.count("records") >= seen + 3, what="three scrapes of a healthy node")
    assert road.conditions() == {}

    road.named.say(f"sys/{PORT}/state", "1: DOWN")
    road.named.say(f"sys/{EDAC}/ue_count", "2")
    road.named.say("proc/vmstat", "pgmajfault 27483\npswpin 0\npswpout 0\noom_kill 1")
    road.nameless.say("proc/meminfo", "MemTotal:  1056784368 kB\nMemAvailable: 9 kB")
    wanted = {"port_down/mlx5_0/1", "memory_errors/mc0", "host_oom_kills/"}
    eventually(lambda: set(road.conditions()) >= wanted, what=f"conditions, not {sorted(road.conditions())}")
    conditions = road.conditions()
    assert set(conditions) == wanted, "of a node without a name nothing is told"
    assert all(condition["until"] is None for condition in conditions.values())

    road.named.say(f"sys/{PORT}/state", "4: ACTIVE")
    eventually(lambda: road.conditions()["port_down/mlx5_0/1"]["until"] is not None, what="the port is up again")
