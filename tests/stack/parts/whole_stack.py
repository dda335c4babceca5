"""The whole road for people: Kafka, the bridge, Prometheus, VictoriaLogs and Jaeger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports
from tests.stack.parts.bridge import Bridge
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.placing import Placed
from tests.stack.parts.service import Service
from tests.stack.parts.stores import Jaeger, Prometheus, VictoriaLogs
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
    logs: VictoriaLogs
    jaeger: Jaeger
    bridge: Bridge
    #: Where Prometheus looks for a processor (``OwnService``); not started here.
    processor_port: int

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order in which they start."""
        return self.jaeger.service, self.logs.service, self.prometheus.service, self.bridge.service

    @property
    def placed(self) -> list[Placed]:
        return [*self.kafka.placed, *self.jaeger.placed, *self.prometheus.placed, *self.bridge.placed]

    def start(self) -> None:
        for service in self.services:
            service.start()

    def kill(self) -> None:
        for service in self.services:
            service.kill()


def assemble(kafka: Kafka, folder: Path, *, make_topics: bool = True) -> Stack:
    """All parts beside a running broker, none started yet. Prometheus has users where the broker has."""
    if make_topics:
        admin = make_client(kafka.settings()).admin()
        for topic in BRIDGED:
            admin.create(TopicFacts(name=topic, partitions=2, replication=1, configuration={}))
        admin.close()
    metrics_port, processor_port = free_ports(2)
    jaeger = Jaeger(folder / "jaeger")
    logs = VictoriaLogs(folder / "victorialogs")
    scraped = {
        "processor:8461": f"127.0.0.1:{processor_port}",
        "collector:8888": f"127.0.0.1:{metrics_port}",
        "victorialogs:9428": logs.address,
        "jaeger:8888": jaeger.metrics_address,
    }
    secrets = kafka.secrets if kafka.security.sasl else None
    prometheus = Prometheus(folder / "prometheus", scraped, secrets=secrets)
    addresses = {"prometheus:9090": prometheus.address, "victorialogs:9428": logs.address, "jaeger:4318": jaeger.otlp}
    bridge = Bridge(folder / "bridge", kafka, addresses, metrics_port)
    return Stack(
        kafka=kafka, prometheus=prometheus, logs=logs, jaeger=jaeger, bridge=bridge, processor_port=processor_port
    )
