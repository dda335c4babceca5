"""whichrank's own services as compose runs them: the same command and variables, with places of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ports import free_ports
from tests.stack.parts.compose import service
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.placing import replace
from tests.stack.parts.service import Service


class OwnService:
    """``topic-init``, ``processor`` or another one beside a broker. health_port: of a processor."""

    def __init__(self, name: str, folder: Path, kafka: Kafka, health_port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.definition = service(name, kafka.security.overlays)
        self.health_address = f"127.0.0.1:{health_port or free_ports(1)[0]}"
        words = {
            "kafka:9092": kafka.address,
            "0.0.0.0:8461": self.health_address,
            "/var/lib/whichrank": str(folder),
            "/run/secrets": str(kafka.secrets),
            "/etc/whichrank-tls/ca.crt": str(kafka.ca),
        }
        self.service = Service(
            name,
            [sys.executable, "-m", "whichrank.commands.main", *self.definition.command],
            log=folder / f"{name}.log",
            ready=self.is_healthy,
            environment={key: replace(value, words) for key, value in self.definition.environment.items()},
        )

    def is_healthy(self) -> bool:
        """What its health check in compose finds."""
        check = self.definition.raw["healthcheck"]["test"]
        words = {"127.0.0.1:8461": self.health_address}
        command = [sys.executable if word == "python" else replace(word, words) for word in check[1:]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
