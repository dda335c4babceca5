"""The Collector as compose runs it: from Kafka to Prometheus, VictoriaLogs and Jaeger."""

from __future__ import annotations

from pathlib import Path

from tests.ports import free_ports
from tests.stack.parts.compose import service
from tests.stack.parts.go_programs import built_collector
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.placing import Placed, place, replace
from tests.stack.parts.service import Service, answers_http


class Bridge:
    """``addresses``: where prometheus:9090, jaeger:4318 and victorialogs:9428 are here. metrics_port: of its own."""

    def __init__(self, folder: Path, kafka: Kafka, addresses: dict[str, str], metrics_port: int | None = None) -> None:
        health, metrics = free_ports(2)
        metrics = metrics_port or metrics
        self.health_address = f"127.0.0.1:{health}"
        definition = service("collector", kafka.security.overlays)
        words = {
            "kafka:9092": kafka.address,
            "0.0.0.0:13133": self.health_address,
            "host: 0.0.0.0, port: 8888": f"host: 127.0.0.1, port: {metrics}",
            **addresses,
        }
        if kafka.ca is not None:
            words["/etc/whichrank-tls/ca.crt"] = str(kafka.ca)
        if kafka.security.sasl:
            words["/run/secrets"] = str(kafka.secrets)
        config = folder / "config"
        files = {
            Path(target).name: source
            for target, source in definition.binds.items()
            if target.startswith("/etc/otelcol/")
        }
        self.placed: list[Placed] = place(config, files, words)
        self.service = Service(
            "the Collector",
            [built_collector(), *(replace(word, {"/etc/otelcol": str(config)}) for word in definition.command)],
            log=folder / "collector.log",
            ready=lambda: answers_http(f"http://{self.health_address}/"),
            environment=definition.environment,
        )
