"""``docker compose`` with the project's own files, as an operator calls it, on the tests' own engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.compose.engine import Engine
from tests.ports import free_ports
from tests.stack.parts.compose import BASE
from tests.stack.parts.go_programs import COMPOSE, built
from tests.stack.parts.placing import DEPLOY, REPOSITORY
from tests.stack.parts.service import get_json
from tests.stack.parts.stores import login

ABSENT = Path(__file__).with_name("absent.yaml")
WAIT_S = 900


class Project:
    """Ports, passwords and certificates of its own."""

    def __init__(self, engine: Engine, folder: Path, *overlays: str, profiles: tuple[str, ...] = ()) -> None:
        self.engine = engine
        self.kafka_port, self.prometheus_port = free_ports(2)
        self.secrets = folder / "secrets"
        for of in ("kafka", "collector", "prometheus"):
            engine.run(DEPLOY / of / "passwords.sh", self.secrets)
        engine.run(DEPLOY / "kafka" / "certificates.sh", self.secrets / "tls")
        self.environment = {
            "GRAFANA_ADMIN_PASSWORD": "not-used",
            "KAFKA_PORT": str(self.kafka_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "WHICHRANK_SECRETS": str(self.secrets),
            "WHICHRANK_TLS": str(self.secrets / "tls"),
        }
        self._name = f"whichrank-test-{os.urandom(3).hex()}"
        files = [*(REPOSITORY / file for file in (BASE, *overlays)), ABSENT]
        self._command: list[str | Path] = [built(COMPOSE), "--project-name", self._name, "--env-file", os.devnull]
        self._command += [word for file in files for word in ("--file", file)]
        self._command += [word for profile in profiles for word in ("--profile", profile)]

    def compose(self, *words: str, check: bool = True) -> str:
        return self.engine.run(*self._command, *words, check=check, environment=self.environment).stdout

    def up(self) -> None:
        """Everything, until it is healthy; fails with what the services said."""
        done = self.engine.run(
            *self._command,
            *("up", "--wait", f"--wait-timeout={WAIT_S}", "--no-build"),
            check=False,
            environment=self.environment,
        )
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{self.logs()}"

    def logs(self, *services: str) -> str:
        return self.compose("logs", "--no-color", "--tail=40", *services, check=False)

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout=20", check=False)

    def states(self) -> dict[str, tuple[str, str, int]]:
        """Service -> state, health and exit code of its container."""
        lines = self.compose("ps", "--all", "--format=json").splitlines()
        rows = [json.loads(line) for line in lines]
        return {row["Service"]: (row["State"], row["Health"], row["ExitCode"]) for row in rows}

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine made of it."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        return dict(json.loads(self.engine.run("docker", "inspect", container).stdout)[0])

    def ask_prometheus(self, path: str, *, with_password: bool = True) -> Any:
        """What its API has at this path below ``/api/v1/``, at the published port. Raises OSError."""
        headers = login((self.secrets / "prometheus_password").read_text()) if with_password else {}
        return get_json(f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}", headers)["data"]

    def execute(self, service: str, *command: str) -> int:
        container = self.compose("ps", "--quiet", service).strip()
        return self.engine.run("docker", "exec", container, *command, check=False).returncode
