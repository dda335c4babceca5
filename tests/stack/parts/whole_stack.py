"""The whole road for people: Kafka, the bridge, Prometheus, Loki, and a Collector in the place of Tempo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports
from tests.stack.parts.bridge import Bridge
from tests.stack.parts.file_collector import FileCollector
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.placing import Placed
from tests.stack.parts.service import Service
from tests.stack.parts.stores import Loki, Prometheus
from whichrank.telemetry.topics import TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import TopicFacts

#: What the bridge reads.
BRIDGED = (TOPIC_SPANS, TOPIC_METRICS, TOPIC_LOGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """``start`` starts everything but Kafka, which runs already."""

    kafka: Kafka
    prometheus: Prometheus
    loki: Loki
    tempo: FileCollector
    bridge: Bridge
    #: Where Prometheus looks for a processor (``OwnService``); not started here.
    processor_port: int

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order in which they start."""
        return self.tempo.service, self.loki.service, self.prometheus.service, self.bridge.service

    @property
    def placed(self) -> list[Placed]:
        return [*self.kafka.placed, *self.loki.placed, *self.prometheus.placed, *self.bridge.placed]

    def start(self) -> None:
        for service in self.services:
            service.start()

    def kill(self) -> None:
        for service in self.services:
            service.kill()


def assemble(kafka: Kafka, folder: Path, *, make_topics: bool = True) -> Stack:
    """All parts beside a running broker, none started yet."""
    if make_topics:
        admin = make_client(kafka.settings()).admin()
        for topic in BRIDGED:
            admin.create(TopicFacts(name=topic, partitions=2, replication=1, configuration={}))
        admin.close()
    metrics_port, processor_port = free_ports(2)
    tempo = FileCollector(folder / "tempo")
    loki = Loki(folder / "loki")
    scraped = {
        "processor:8461": f"127.0.0.1:{processor_port}",
        "collector:8888": f"127.0.0.1:{metrics_port}",
        "loki:3100": loki.address,
        "tempo:3200": tempo.address,
    }
    prometheus = Prometheus(folder / "prometheus", scraped)
    addresses = {"prometheus:9090": prometheus.address, "loki:3100": loki.address, "tempo:4318": tempo.address}
    bridge = Bridge(folder / "bridge", kafka, addresses, metrics_port)
    return Stack(
        kafka=kafka, prometheus=prometheus, loki=loki, tempo=tempo, bridge=bridge, processor_port=processor_port
    )
