"""The intake as compose runs it: what is scraped and what is sent by OTLP, to Kafka."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.stack.parts.compose import service
from tests.stack.parts.go_programs import built_collector
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.placing import DEPLOY, place, replace
from tests.stack.parts.service import Service, answers_http

TARGETS = DEPLOY / "collector/targets"
#: Tests have no minutes: not places, but nothing else than how often.
OFTEN = {
    "scrape_interval: 15s": "scrape_interval: 1s",
    "scrape_timeout: 10s": "scrape_timeout: 1s",
    "scrape_interval: 30s": "scrape_interval: 2s",
    "scrape_timeout: 25s": "scrape_timeout: 2s",
}


class Intake:
    """``targets``: the folder of whom to scrape, which ``scrape`` fills. ``grpc``, ``http``: where OTLP goes."""

    def __init__(self, folder: Path, kafka: Kafka) -> None:
        grpc, http, health, metrics = (f"127.0.0.1:{port}" for port in free_ports(4))
        self.grpc, self.http, self.metrics = grpc, http, metrics
        self.targets = folder / "targets"
        self.targets.mkdir(parents=True)
        definition = service("intake", kafka.security.overlays)
        words = {
            **OFTEN,
            "kafka:9092": kafka.address,
            "0.0.0.0:4317": grpc,
            "0.0.0.0:4318": http,
            "0.0.0.0:13133": health,
            "127.0.0.1:8888": metrics,
            "host: 0.0.0.0, port: 8888": f"host: 127.0.0.1, port: {metrics.rpartition(':')[2]}",
            "/etc/otelcol/targets": str(self.targets),
        }
        self.token = ""
        self.ca = kafka.ca
        if kafka.ca is not None:
            words["/etc/whichrank-tls/ca.crt"] = str(kafka.ca)
            words["/etc/whichrank-tls/kafka.pem"] = str(kafka.ca.with_name("kafka.pem"))
        if kafka.security.sasl:
            words["/run/secrets"] = str(kafka.secrets)
            subprocess.run([DEPLOY / "collector/passwords.sh", kafka.secrets], check=True, capture_output=True)
            self.token = (kafka.secrets / "intake_token").read_text().strip()
        config = folder / "config"
        files = {Path(target).name: source for target, source in definition.binds.items() if target.endswith(".yaml")}
        place(config, files, words)
        self.service = Service(
            "the intake",
            [built_collector(), *(replace(word, {"/etc/otelcol": str(config)}) for word in definition.command)],
            log=folder / "intake.log",
            ready=lambda: answers_http(f"http://{health}/"),
            environment=definition.environment,
        )

    def scrape(self, name: str, groups: Sequence[Mapping[str, Any]]) -> None:
        """As whoever fills ``targets/NAME.yaml``; it is read while the Collector runs."""
        new = self.targets / f"{name}.new"
        new.write_text(json.dumps(groups))
        new.rename(self.targets / f"{name}.yaml")

    def send(self, signal: str, request: bytes, token: str | None = None) -> int:
        """An OTLP request ("logs", "metrics", "traces") by HTTP; the status of the answer."""
        headers = {"Content-Type": "application/x-protobuf"}
        shown = self.token if token is None else token
        if shown:
            headers["Authorization"] = f"Bearer {shown}"
        scheme = "https" if self.ca is not None else "http"
        trusted = ssl.create_default_context(cafile=self.ca) if self.ca is not None else None
        asked = urllib.request.Request(f"{scheme}://{self.http}/v1/{signal}", data=request, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=10, context=trusted) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
